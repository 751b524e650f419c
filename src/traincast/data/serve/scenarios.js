// The scenarios at hand, above the form: which one it is about, their names, one more, one less.

import { MOST_SCENARIOS } from "./state.js";
import { button, el, put, rove } from "./ui.js";
import { SERIES, colour } from "./charts.js";

/** A row of scenarios; a second click on the name of the chosen one renames it. */
export class ScenarioBar {
  constructor(app) {
    this.app = app;
    this.row = el("div", { class: "scenario-row", role: "radiogroup", "aria-label": "Scenario", onkeydown: (event) => rove(event, [...this.row.querySelectorAll("[role=radio]")])?.click() });
    this.more = button("Duplicate the scenario", () => app.addScenario(app.job), { symbol: "copy", "aria-keyshortcuts": "d" });
    this.root = el("div", { class: "scenarios" }, this.row, this.more);
  }

  show(state) {
    const key = JSON.stringify([state.scenarios.map((each) => each.name), state.at]);
    if (key === this.shown) return;
    const hadFocus = this.row.contains(document.activeElement);
    this.shown = key;
    put(this.row, state.scenarios.map((each, at) => this.one(each, at, state)));
    this.more.disabled = state.scenarios.length >= MOST_SCENARIOS;
    if (hadFocus) this.row.querySelector("[aria-checked=true]")?.focus();
  }

  one(scenario, at, state) {
    const isAt = at === state.at;
    const pick = el("button", { type: "button", role: "radio", "aria-checked": String(isAt), tabindex: isAt ? "0" : "-1", class: "scenario",
      "data-tip": isAt ? "Press again to rename" : null, onclick: () => (isAt ? this.rename(pick, at) : this.app.update({ at }, { undoable: false })) },
    el("span", { class: "chip", style: { background: colour(SERIES[at]) } }), scenario.name);
    const remove = isAt && state.scenarios.length > 1 ? button(`Remove scenario ${scenario.name}`, () => this.remove(at), { symbol: "close" }) : null;
    return el("span", { class: isAt ? "scenario-of at" : "scenario-of" }, pick, remove);
  }

  rename(pick, at) {
    const name = this.app.state.scenarios[at].name;
    let done = false;
    const settle = (value) => {
      if (done) return;
      done = true;
      const named = value.trim().slice(0, 60) || name;
      this.shown = null;
      this.app.update({ scenarios: this.app.state.scenarios.map((each, place) => (place === at ? { ...each, name: named } : each)) });
      this.show(this.app.state);
      this.row.querySelector("[aria-checked=true]")?.focus();
    };
    const input = el("input", { class: "rename", value: name, "aria-label": "Name of the scenario", maxlength: "60", onblur: (event) => settle(event.target.value),
      onkeydown: (event) => { event.stopPropagation(); if (event.key === "Enter") settle(event.target.value); if (event.key === "Escape") settle(name); } });
    pick.replaceWith(input);
    input.select();
    input.focus();
  }

  remove(at) {
    const scenarios = this.app.state.scenarios.filter((_, place) => place !== at);
    this.app.update({ scenarios, at: Math.min(at, scenarios.length - 1) });
  }
}
