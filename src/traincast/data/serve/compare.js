// The view Compare: up to four scenarios as columns, their differences with intervals, their parts, and how they scale.

import { Changes } from "./compare_changes.js";
import { Parts, Table } from "./compare_parts.js";
import { Scaling } from "./scaling.js";
import { button, el, failure, put, speak } from "./ui.js";

const QUIET_MS = 20;
const CALM_MS = 350;

class Compare {
  constructor(root, app) {
    this.app = app;
    this.problem = el("div", { class: "first", hidden: true });
    this.changes = new Changes(app);
    this.table = new Table(app);
    this.parts = new Parts();
    this.scaling = new Scaling(app);
    this.numbers = el("div", { class: "cards" }, this.changes.root, this.table.root, this.parts.root, this.scaling.root);
    put(root, this.problem, this.numbers);
  }

  show({ scenarios, at }) {
    this.changes.show(scenarios, at);
    this.scaling.show(scenarios, at);
    const key = JSON.stringify(scenarios);
    if (key === this.key) return this.table.mark(at);
    this.key = key;
    clearTimeout(this.soon);
    for (const part of [this.table, this.parts]) part.wait(true);
    this.soon = setTimeout(() => this.ask(scenarios, key), QUIET_MS);
  }

  hide() { this.scaling.hide(); }

  async ask(scenarios, key) {
    try {
      const answer = await this.app.server.ask("/api/compare", { scenarios }, { slot: "compare" });
      if (answer === null || key !== this.key) return;
      clearTimeout(this.wrongSoon);
      this.problem.hidden = true;
      this.answer(scenarios, answer);
    } catch (error) {
      if (key === this.key) this.refuse(error);
    }
  }

  answer(scenarios, answer) {
    const { at } = this.app.state;
    const toFirst = new Map(answer.differences.filter(({ a }) => a === 0).map((each) => [each.b, each]));
    const columns = scenarios.map((each, place) => ({ ...answer.scenarios[place], name: each.name, at: place, job: each.job, difference: toFirst.get(place) }));
    this.table.show(columns, at);
    this.parts.show(columns.filter((each) => each.shown));
    for (const part of [this.table, this.parts]) part.wait(false);
    const mine = columns[at];
    this.app.emit("wrong", scenarios[at].job.model ? mine?.error ?? null : { where: "model", message: "choose one" });
    speak(columns.map((each) => `${each.name}: ${each.shown ? each.shown.step.text : each.error?.message}`).join("; "));
  }

  refuse(error) {
    clearTimeout(this.wrongSoon);
    this.wrongSoon = setTimeout(() => {
      this.problem.hidden = false;
      put(this.problem, failure(error, button("Try again", () => { this.key = null; this.show(this.app.state); }, { class: "main" })));
    }, CALM_MS);
  }
}

export default {
  name: "compare",
  title: "Compare",
  mount(root, app) {
    const view = new Compare(root, app);
    return { show: (state) => view.show(state), hide: () => view.hide() };
  },
};
