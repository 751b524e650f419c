// What would help, each a click that applies it; what was assumed, each with what it may cost and a way to replace it.

import { labelOf } from "./fields.js";
import { button, card, el, put, toast, write } from "./ui.js";

const FIRST_SHOWN = 8;
const NOT_GIVEN = /^(.+?) (?:is|are) not given: (.+)$/s;
const spaced = (name) => name.replaceAll("_", " ");
const valueText = (value) => (typeof value === "boolean" ? (value ? "on" : "off") : String(value));
const slow = (text) => el("p", { class: "hint", role: "status" }, text);

/** Apply fields to the job at hand, with a way back. */
function apply(app, fields, said) {
  app.change(fields);
  toast(said, { action: { text: "Undo", run: () => app.store.undo() } });
}

export class Advice {
  constructor(app) {
    this.app = app;
    this.body = el("div", { class: "advice" }, slow("Trying what could be changed…"));
    this.root = card("What would help", { id: "advice" }, this.body);
  }

  async ask(job) {
    this.body.classList.toggle("waiting", this.body.querySelector(".choices") !== null);
    try {
      const answer = await this.app.server.ask("/api/advice", { job }, { slot: "advice" });
      if (answer) this.show(answer);
    } catch (error) {
      put(this.body, slow(error.message));
    }
    this.body.classList.remove("waiting");
  }

  show({ advice = [], what_if: changes = [] }) {
    const keeps = advice.filter((each) => !each.changes_numerics);
    const rest = advice.filter((each) => each.changes_numerics);
    const list = (title, some) => (some.length ? [el("h3", {}, title), el("ul", { class: "choices" }, some.map((each) => this.one(each)))] : []);
    put(this.body, advice.length ? null : slow("No change that we know makes this step faster."), list("The same numbers learned", keeps),
      list("Changes what a model learns from", rest), changes.length ? this.whatIfs(changes) : null);
  }

  one(each) {
    const fields = each.apply ?? {};
    const about = each.notes?.length ? each.notes : [each.memory, each.needs, each.changes_numerics].filter(Boolean);
    return el("li", {},
      el("div", { class: "choice" }, el("p", {}, each.text, each.switch ? el("code", { class: "switch" }, each.switch) : null), about.length ? el("p", { class: "hint" }, about.join("; ")) : null),
      each.taken === false ? saving({ text: each.alone.text, between: "alone" }) : saving(each.saving),
      Object.keys(fields).length ? button("Apply", () => apply(this.app, fields, `Applied: ${each.text}.`), { class: "small", "aria-label": `Apply: ${each.text}` }) : el("span"));
  }

  whatIfs(changes) {
    return el("details", {}, el("summary", {}, "If the hardware or the code were better"), el("ul", { class: "choices" }, changes.map((each) => el("li", {},
      el("div", { class: "choice" }, el("p", {}, each.text)), saving(each.saving), el("span")))));
  }
}

const saving = ({ text, between }) => el("p", { class: "saving better" }, `−${text}`, between ? el("small", { class: "hint" }, between) : null);

export class Assumptions {
  constructor(app) {
    this.app = app;
    this.worth = new Map();
    this.list = el("ul", { class: "choices" });
    this.minor = el("ul", { class: "choices" });
    this.count = el("summary", {});
    this.rest = el("details", {}, this.count, this.minor);
    this.root = card("Assumed", { id: "assumptions", note: "What the job does not say. Give your own value where yours differs." }, this.list, this.rest);
  }

  show({ assumptions = [] }) {
    const key = JSON.stringify(assumptions);
    if (key === this.key) return;
    this.key = key;
    this.worth.clear();
    const told = assumptions.slice(0, FIRST_SHOWN);
    const rest = assumptions.slice(FIRST_SHOWN);
    put(this.list, told.length ? told.map((each) => this.one(each)) : el("li", { class: "hint" }, "Nothing."));
    put(this.minor, rest.map((each) => this.one(each)));
    write(this.count, `${rest.length} more`);
    this.rest.hidden = !rest.length;
  }

  one(each) {
    const [, what, said] = each.text.match(NOT_GIVEN) ?? [];
    const worth = el("p", { class: "saving hint" });
    const others = el("p", { class: "row others" });
    const field = each.field ?? what?.replaceAll(" ", "_");
    const known = this.app.fields.has(field);
    if (known) this.worth.set(field, { worth, others });
    const text = what ? el("p", {}, el("strong", {}, spaced(what)), " ", said) : el("p", {}, each.text);
    return el("li", {}, el("div", { class: "choice" }, text, others), worth,
      known ? button("Set", () => this.app.focusField(field), { class: "small", "aria-label": `Set ${labelOf(field)}` }) : el("span"));
  }

  /** Ask what the assumed values may cost: the step with each other value. */
  async ask(job) {
    try {
      const answer = await this.app.server.ask("/api/assumptions", { job }, { slot: "assumptions" });
      for (const each of answer?.assumptions ?? []) this.tell(each);
    } catch { /* the list stays as it is: its worth is a hint only */ }
  }

  tell({ field, may_cost: cost, others = [] }) {
    const places = this.worth.get(field);
    if (!places) return;
    write(places.worth, cost?.value ? `up to ${cost.text} of the step` : "");
    const possible = others.filter((each) => each.difference);
    put(places.others, possible.map(({ value, difference }) => button(`${valueText(value)} ${difference.text}`, () => apply(this.app, { [field]: value }, `${labelOf(field)} is ${valueText(value)}.`),
      { class: "small other", "aria-label": `${labelOf(field)} ${valueText(value)} instead: step ${difference.text}` })));
  }
}
