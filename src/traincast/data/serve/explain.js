// The view Explain: files of a run are dropped; what they are, where the step's time goes, who is slow, and what would help.

import { Check } from "./verdict.js";
import { WhatIfs, criticalPath, more, notes, stragglers, theStep, whatItIs } from "./evidence.js";
import { Search } from "./search.js";
import { StepView } from "./timeline.js";
import { DropPlace, send } from "./upload.js";
import { button, card, el, empty, failure, put, speak, write } from "./ui.js";

class ExplainView {
  constructor(root, app) {
    this.app = app;
    this.search = new Search(app.server, {
      start: () => this.busy(true), progress: (told) => this.progress(told), done: (answer, task) => this.done(answer, task),
      failed: (error) => this.failed(error), cancelled: () => this.failed(null),
    });
    this.drop = new DropPlace((files) => this.upload(files));
    this.step = new StepView(app);
    this.whatIfs = new WhatIfs((expression) => app.server.ask("/api/whatif", { task: this.task, expression }));
    this.check = new Check(app);
    this.build(root);
    this.examples();
  }

  build(root) {
    this.meter = el("progress", { max: "1", "aria-label": "How far it is" });
    this.what = el("span", { class: "hint", role: "status" });
    this.work = el("div", { class: "row", hidden: true }, this.meter, this.what, button("Stop", () => this.stop(), { class: "small" }));
    this.bundled = el("div", { class: "examples" });
    this.answer = el("div", { class: "cards" });
    this.drop.over(root);
    put(root, el("div", { class: "cards" }, el("section", { class: "card wide", "aria-label": "Files" }, this.drop.root, this.work, this.bundled), this.answer));
    this.answer.classList.add("answer-of");
  }

  /** Offer what is bundled, to try by a click. */
  async examples() {
    try {
      const found = await this.app.server.get("/api/examples");
      const some = (found.examples ?? found).filter((each) => (each.view ?? "explain") === "explain");
      put(this.bundled, el("span", { class: "hint" }, "Or try:"), some.map((each) => button(each.name, () => this.example(each), { class: "small", "data-tip": each.text })));
    } catch {
      put(this.bundled);
    }
  }

  /** Show what the address names as a task: what the server was started with, or what was explained before. */
  open({ task, name } = {}) {
    if (!task || task === this.opened) return;
    Object.assign(this, { opened: task, name: String(name ?? "Files"), again: true });
    this.search.run(async () => ({ task }));
  }

  example({ name }) {
    this.name = name;
    this.search.run(() => this.app.server.ask("/api/explain", { example: name, words: this.words }));
  }

  /** How files are simulated: communication is estimated on the cluster that the form says. */
  get words() { return this.app.job.cluster ? { cluster: this.app.job.cluster } : {}; }

  upload(files) {
    this.name = files.length === 1 ? files[0].label : `${files.length} files`;
    this.search.run(async () => {
      write(this.what, `Reading ${this.name}…`);
      const { answer, abort } = send(this.app.server, "/api/explain", files, (share) => { this.meter.value = 0.3 * share; }, this.words);
      this.abort = abort;
      return answer;
    });
  }

  stop() {
    this.abort?.();
    this.search.cancel();
  }

  busy(is) {
    this.work.hidden = !is;
    this.abort = null;
    if (is) { this.meter.removeAttribute("value"); write(this.what, `Reading ${this.name}…`); this.answer.classList.add("waiting"); }
    else this.answer.classList.remove("waiting");
  }

  progress({ share, what }) {
    if (typeof share === "number") this.meter.value = 0.3 + 0.7 * share;
    write(this.what, what ?? "");
  }

  failed(error) {
    this.busy(false);
    this.step.clear();
    const gone = this.again ? empty("These files are not kept any more", "Drop them again, or try an example.") : null;
    this.again = false;
    put(this.answer, card(this.name ?? "Files", { wide: true }, gone ?? (error ? failure(error) : empty("Stopped", "Drop files again, or try an example."))));
  }

  done(answer, task) {
    Object.assign(this, { task, opened: task, again: false });
    this.app.look("explain", { task, name: this.name });
    this.busy(false);
    this.whatIfs.show(answer);
    this.check.show(answer, task);
    const showRank = (rank) => { this.step.showRank(rank); };
    const parts = answer.shown ? [theStep(answer), stragglers(answer, showRank), criticalPath(answer, () => this.showPath()), this.whatIfs.root] : [];
    const timeline = answer.has_timeline ? card("Timeline", { id: "explained-timeline", wide: true }, this.step.root) : null;
    put(this.answer, this.title(answer), this.check.root, ...parts, timeline, more(answer), whatItIs(answer), notes(answer));
    if (answer.has_timeline) this.step.show(() => this.app.server.ask("/api/timeline", { task }, { slot: "explain-timeline" }));
    else this.step.clear();
    speak(`${this.name}: ${answer.headline}`);
  }

  /** What was read, and what a job or a file of another kind is good for. */
  title(answer) {
    const job = answer.kind === "job" ? answer.reading?.job : null;
    const use = job ? button("Open it in the form", () => { this.app.replaceJob(job); this.app.go("forecast"); }, { class: "main" }) : null;
    if (answer.kind === "other") return card(this.name, { wide: true }, empty("This holds no step", answer.headline));
    return use ? card(this.name, { wide: true }, el("p", {}, answer.headline), el("p", { class: "row" }, use)) : null;
  }

  showPath() {
    this.step.path();
    this.step.root.scrollIntoView({ block: "nearest" });
  }
}

export default {
  name: "explain",
  title: "Explain",
  mount(root, app) {
    const view = new ExplainView(root, app);
    return { show(state) { view.open(state.look?.explain); }, hide() {} };
  },
};
