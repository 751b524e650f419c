// A training log checked against the job of the form: as fast as it should be, or slower, and what would explain it.

import { Figure, colour, csv } from "./charts.js";
import { facts } from "./layout.js";
import { small } from "./evidence.js";
import { button, card, download, el, failure, put } from "./ui.js";

const KIND = { "as expected": "good", faster: "good", slower: "bad" };

export class Check {
  constructor(app) {
    this.app = app;
    this.answer = el("div", { role: "status" });
    this.steps = new Figure({ name: "steps", height: 220, describe: ({ steps }) => `Time of ${steps.length} logged steps`, draw: (width, data) => this.draw(width, data) });
    this.told = el("p", { class: "hint" });
    this.own = button("Check against the job of its own arguments", () => this.check(null), { class: "main" });
    this.form = button("Check against the job in the form", () => this.check(this.app.job));
    this.save = button("CSV", () => download("steps.csv", csv([["step", (each) => each.step], ["seconds", (each) => each.time_s]], this.log.steps), "text/csv"), { class: "small quiet" });
    this.root = card("The log", { wide: true, tools: [...this.steps.tools, this.save] }, this.told, this.steps.root, el("p", { class: "row" }, this.own, this.form), this.answer);
  }

  /** Show the log of an answer; nothing where it is none. */
  show(answer, task) {
    this.log = answer.log ?? null;
    this.task = task;
    this.root.hidden = !this.log;
    put(this.answer);
    if (!this.log) return;
    put(this.told, facts(this.log.facts ?? []));
    this.own.hidden = !this.log.job;
    this.steps.root.hidden = this.save.hidden = !this.log.steps?.length;
    if (this.log.steps?.length) this.steps.show(this.log);
    this.check(this.log.job ? null : this.app.job);
  }

  draw(width, { steps, expected }) {
    const Plot = window.Plot;
    const marks = [Plot.dot(steps, { x: "step", y: "time_s", r: 2, fill: colour("compute") })];
    if (expected) marks.unshift(Plot.rectY([expected], { y1: "low_s", y2: "high_s", fill: colour("accent"), fillOpacity: 0.12 }), Plot.ruleY([expected.step_s], { stroke: colour("accent") }));
    return { height: 220, marginLeft: 56, x: { label: "step", labelArrow: "none" }, y: { label: "seconds", labelArrow: "none", zero: true, grid: true }, marks };
  }

  async check(job) {
    this.answer.classList.add("waiting");
    try {
      const said = await this.app.server.ask("/api/check", { task: this.task, ...(job ? { job } : {}) }, { slot: "check" });
      if (said !== null) put(this.answer, this.verdict(said));
    } catch (error) {
      put(this.answer, failure(error));
    } finally {
      this.answer.classList.remove("waiting");
    }
  }

  verdict(said) {
    if (said.expected) this.steps.show({ ...this.log, expected: said.expected });
    return [
      el("p", { class: `plan-headline verdict ${KIND[said.verdict] ?? ""}` }, said.headline ?? said.verdict),
      (said.lines ?? []).map((text) => el("p", {}, text)),
      said.causes?.length ? small("What would explain it", [["cause", (row) => row.name, true], ["", (row) => row.text, true], ["of the step", (row) => row.saving?.text ?? ""]], said.causes) : null,
    ];
  }
}
