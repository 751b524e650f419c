// The explorer's timeline within the page: its scripts come from the server as one module, as report.html has them.

import { button, el, empty, failure, put } from "./ui.js";

let loading = null;

/** Load the explorer's module once. */
const explorer = () => (loading ??= import("./explorer.js"));

let prefixes = 0;

/** A timeline with its summary and tables, of what `ask()` returns: `{header, columns}` as the explorer packs a run. */
export class StepView {
  constructor(app) {
    this.app = app;
    this.prefix = `step-${++prefixes}-`;
    this.places = {
      summary: el("section", { class: "summary", "aria-label": "Where the time goes and what would help" }),
      timeline: el("section", { class: "timeline-of", "aria-label": "Timeline", tabindex: "-1" }),
      tables: el("section", { "aria-label": "Tables of the step" }),
    };
    this.root = el("div", { class: "explorer", hidden: true });
    this.off = app.on("theme", () => this.explorer?.recolour());
  }

  /** Ask for a run and show it; what is newer wins. */
  async show(ask) {
    this.clear();
    const mine = (this.asked = {});
    this.root.hidden = false;
    put(this.root, el("p", { class: "hint", role: "status" }, "Simulating every operation of the step…"));
    try {
      const [module, answer] = await Promise.all([explorer(), ask()]);
      if (mine !== this.asked || answer === null) return;
      const run = new module.Run(answer.header, 0);
      await run.load(answer.columns);
      if (mine === this.asked) this.draw(module, run);
    } catch (error) {
      if (mine === this.asked) put(this.root, failure(error, button("Try again", () => this.show(ask))));
    }
  }

  draw(module, run) {
    if (!run.count) return put(this.root, empty("No operation to draw", "This step has no single operations."));
    const { summary, timeline, tables } = this.places;
    const shown = run.header.shown ? el("p", { class: "hint" }, run.header.shown) : null;
    const save = button("Save trace", () => module.saveTrace([run]), { class: "small" });
    const perfetto = button("Open in Perfetto", () => module.openInPerfetto([run]), { class: "small", "data-tip": "Opens ui.perfetto.dev in a new tab and hands it this trace" });
    put(this.root, summary, shown, timeline, el("p", { class: "row" }, save, perfetto), tables);
    this.explorer = new module.Explorer(this.places, [run], new module.Colours(), this.prefix);
  }

  /** Show the ranks that are named, over the whole step. */
  showRank(rank) {
    const [run] = this.explorer?.runs ?? [];
    if (run?.isShown(rank)) this.explorer.showRank(run, rank);
  }

  /** Show the critical path, or hide it. */
  path() { this.explorer?.path(); }

  clear() {
    this.asked = null;
    this.explorer?.close();
    this.explorer = null;
    this.root.hidden = true;
    put(this.root);
  }

  close() { this.clear(); this.off(); }
}
