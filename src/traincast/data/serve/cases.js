// Several models, clusters and numbers of GPUs next to each other: the best first, and what is too close to it to tell.

import { small } from "./sections.js";
import { button, card, el, put } from "./ui.js";

export class Cases {
  /** `open(each)` is called with the case whose layout is chosen. */
  constructor(open) {
    this.open = open;
    this.body = el("div");
    this.root = card("Where each stands", { id: "plan-cases", wide: true }, this.body);
    this.root.hidden = true;
  }

  /** Show the cases of an answer, and those that cannot be run; nothing of a plan of one. */
  show({ cases = [], refused = [] } = {}) {
    this.root.hidden = !cases.length;
    put(this.body, cases.length ? small("Cases", this.columns(cases), cases) : null, refused.length ? this.refused(refused) : null);
  }

  columns(cases) {
    const differs = (name) => new Set(cases.map((each) => each[name])).size > 1;
    const told = (name, title) => (cases.some((each) => each[name]) ? [[title, (each) => each[name]?.text]] : []);
    const limited = cases.some((each) => each.chance);
    return [
      ...(differs("model") ? [["model", (each) => each.model, true]] : []), ["cluster", (each) => each.cluster, true], ["GPUs", (each) => each.gpus.toLocaleString("en")],
      ["behind", (each) => (each.tied ? [each.behind, " ", el("span", { class: "badge" }, "too close to tell")] : each.behind)],
      ...(limited ? [["within the limits", (each) => `${each.meets ? "yes" : "no"}, ${each.chance}`]] : []),
      ...told("days", "days"), ...told("cost", "money"), ...told("energy", "MWh"),
      ["step", (each) => each.step.text], ["tokens/s", (each) => each.tokens_per_s.text], ["memory", (each) => each.memory.text],
      ["layout", (each) => button(each.layout, () => this.open(each), { class: "link" }), "long"],
    ];
  }

  refused(refused) {
    return el("details", { class: "fold" }, el("summary", {}, `Cannot be run (${refused.length})`),
      el("ul", { class: "notes" }, refused.map((each) => el("li", {}, `${each.model} on ${each.gpus ?? "its"} GPUs of ${each.cluster}: ${each.reason}`))));
  }
}
