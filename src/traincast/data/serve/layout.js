// A layout of a plan in full: its forecast, why it is not the best, its flags for each framework, its timeline.

import { ofOne } from "./constraints.js";
import { UNITS, told } from "./layouts.js";
import { facts } from "./sections.js";
import { StepView } from "./timeline.js";
import { button, card, copy, download, el, empty, failure, put, toast } from "./ui.js";

const FRAMEWORKS = [["megatron", "Megatron-LM"], ["torchtitan", "torchtitan"], ["bridge", "Megatron-Bridge"], ["job.toml", "Job file"], ["command", "Command line"]];

/** What a forecast says, in lines: the step with its interval, rates, memory, and where the time goes. */
export function forecastLines({ shown }, { parts = true } = {}) {
  const memory = shown.memory?.length ? shown.memory.reduce((a, b) => (b.peak.value > a.peak.value ? b : a)) : null;
  return [
    facts([
      ["step", shown.step.text], ["90 % interval", shown.low && shown.high ? `${shown.low.text} to ${shown.high.text}` : null],
      ["tokens/s", shown.tokens_per_s?.text], ["MFU", shown.mfu?.text],
      ["memory", memory ? `${memory.peak.text}${memory.limit ? ` of ${memory.limit.text}` : ""}, stage ${memory.stage}` : null],
    ]),
    parts && shown.breakdown?.length ? facts(shown.breakdown.map((part) => [part.label, `${UNITS.s(part.seconds)}, ${part.share_text}`])) : null,
  ];
}

export class LayoutCard {
  constructor(app, layouts) {
    Object.assign(this, { app, layouts, row: null });
    this.title = el("p", { class: "layout-line" });
    this.parts = Object.fromEntries(["forecast", "why", "flags"].map((name) => [name, el("div", { class: `layout-${name}` })]));
    this.use = button("Use this layout", () => this.take(), { class: "main" });
    this.actions = el("div", { class: "row" }, this.use,
      button("Why not this one?", () => this.why()), button("Show its timeline", () => this.timeline()),
      FRAMEWORKS.map(([as, name]) => button(name, () => this.flags(as, name), { class: "small", "data-tip": `This layout for ${name}` })));
    this.step = new StepView(app);
    this.content = el("div", { hidden: true }, this.title, this.actions,
      el("div", { class: "layout-parts" }, this.parts.why, this.parts.forecast, this.parts.flags));
    this.nothing = empty("No layout is chosen", "Click a point of the chart or a row of the table: here are its forecast, its timeline, its flags, and why it is not the best.");
    this.root = card("Layout", { id: "layout" }, this.nothing, this.content);
    this.root.classList.add("layout-card");
    this.timelineRoot = card("Timeline of the layout", { id: "layout-timeline", wide: true, tools: [button("Close", () => this.closeTimeline(), { symbol: "close" })] }, this.step.root);
    this.timelineRoot.hidden = true;
  }

  get job() { return this.layouts.job(this.base, this.row, this.app.fields); }

  /** Show a layout of the plan of a job. */
  show(row, base, words) {
    Object.assign(this, { row, base, words });
    this.nothing.hidden = row !== null;
    this.content.hidden = row === null;
    this.closeTimeline();
    for (const part of Object.values(this.parts)) put(part);
    if (row === null) return;
    put(this.title, this.layouts.line(row), this.layouts.several ? `, ${row.gpus.toLocaleString("en")} GPUs of ${row.cluster}` : null, row.tied ? el("span", { class: "badge" }, "too close to tell from the best") : null);
    put(this.parts.why, this.known(row.full));
    this.forecast();
  }

  /** What the plan itself says of a layout that it simulated. */
  known(full) {
    if (!full) return null;
    return facts([
      ["chance to be the fastest", full.best.text], ["longer on average", full.chosen ? null : full.regret.text], ["most is lost to", full.lost_to],
      ["hardly tried", full.risks.join("; ")], ...full.run.map(([name, value, counts]) => [name, [value, counts].filter(Boolean).join(", ")]),
    ]);
  }

  /** Ask of the layout that is chosen now, and draw the answer where it still is chosen. */
  async ask(part, path, body, draw) {
    const { row } = this;
    part.classList.add("waiting");
    try {
      const answer = await this.app.server.ask(path, body, { slot: `layout${path}` });
      if (answer !== null && row === this.row) put(part, draw(answer));
    } catch (error) {
      if (row === this.row) put(part, failure(error));
    } finally {
      part.classList.remove("waiting");
    }
  }

  forecast() { return this.ask(this.parts.forecast, "/api/forecast", { job: this.job }, (answer) => [el("h3", {}, "Forecast"), forecastLines(answer)]); }

  why() {
    const body = { job: this.layouts.caseOf(this.base, this.row), plan: ofOne(this.words), layout: told(this.row, this.app.fields) };
    return this.ask(this.parts.why, "/api/why", body, (answer) => [
      el("h3", {}, answer.verdict === "best" ? "Why this one" : "Why not this one"), el("p", {}, answer.text),
      answer.change ? el("p", {}, `What helps most: ${answer.change}`) : null,
    ]);
  }

  async flags(as, name) {
    await this.ask(this.parts.flags, "/api/export", { job: this.job, as }, (answer) => [
      el("div", { class: "card-head" }, el("h3", {}, name), el("div", { class: "card-tools" },
        button("Copy", () => copy(answer.text, `${name}: copied.`), { class: "small" }),
        button("Save", () => download(answer.name ?? `layout.${as}`, answer.text), { class: "small" }))),
      el("pre", { class: "code", tabindex: "0", "aria-label": `This layout for ${name}` }, answer.text),
    ]);
    this.parts.flags.scrollIntoView({ block: "nearest" });
  }

  closeTimeline() {
    this.step.clear();
    this.timelineRoot.hidden = true;
  }

  timeline() {
    this.timelineRoot.hidden = false;
    this.step.show(() => this.app.server.ask("/api/timeline", { job: this.job }, { slot: "timeline" }));
    this.timelineRoot.scrollIntoView({ block: "start" });
  }

  /** Put the layout into the form of the scenario. */
  take() {
    this.app.replaceJob(this.job);
    toast("The form has this layout now.", { action: { text: "Forecast it", run: () => this.app.go("forecast") } });
  }
}
