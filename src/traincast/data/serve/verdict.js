// A training log checked against a job: as fast as it should be, or slower, and what would explain it.

import { linesOf, sectionCard } from "./sections.js";
import { button, card, el, failure, put } from "./ui.js";

const KIND = { "as expected": "good", faster: "good", slower: "bad" };

export class Check {
  constructor(app) {
    this.app = app;
    this.answer = el("div", { role: "status", class: "check-of" });
    this.against = el("h3");
    this.own = button("Against the job of its own arguments", () => this.check(null));
    this.form = button("Against the job in the form", () => this.check(this.app.job), { class: "main" });
    this.fill = button("Put its job into the form", () => this.take());
    this.root = card("Is it as fast as it should be?", { id: "check", wide: true }, this.against, this.answer, el("p", { class: "row" }, this.form, this.own, this.fill));
  }

  /** Show what a log says; nothing where the answer is of none. */
  show(answer, task) {
    this.task = task;
    this.root.hidden = answer.kind !== "log";
    this.job = answer.reading?.job ?? null;
    if (this.root.hidden) return;
    this.own.hidden = this.fill.hidden = !this.job;
    put(this.against, this.job ? "Against the job of its own arguments" : "The log does not say its job: check it against the one in the form");
    const verdict = answer.headline.split(":")[0];
    put(this.answer, answer.sections.length ? this.told(verdict, answer.sections) : answer.warnings.map((each) => el("p", { class: "note" }, each.text)));
  }

  async check(job) {
    this.answer.classList.add("waiting");
    try {
      const said = await this.app.server.ask("/api/check", { task: this.task, ...(job ? { job } : {}) }, { slot: "check" });
      if (said === null) return;
      put(this.against, job ? "Against the job in the form" : "Against the job of its own arguments");
      put(this.answer, this.told(said.verdict, said.sections));
    } catch (error) {
      put(this.answer, failure(error));
    } finally {
      this.answer.classList.remove("waiting");
    }
  }

  /** The verdict, then what it rests on. */
  told(verdict, sections) {
    const [first, ...others] = sections;
    return [
      el("p", { class: `plan-headline verdict ${KIND[verdict] ?? ""}` }, first.lines[0].text),
      linesOf({ ...first, lines: first.lines.slice(1) }), others.map((each) => sectionCard(each)),
    ];
  }

  take() {
    this.app.replaceJob(this.job);
    this.app.go("forecast");
  }
}
