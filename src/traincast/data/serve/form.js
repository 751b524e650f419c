// The form of a job: its main fields, all others folded by section, what is wrong at the field that it is about.

import { Combobox } from "./combobox.js";
import { MAIN, RUN, brief, labelOf, offers } from "./fields.js";
import { ScenarioBar } from "./scenarios.js";
import { button, el, inBrief, put, write } from "./ui.js";

const CALM_MS = 350; // an error is shown when it lasts: half a number is not a mistake
const ASSUME_MS = 300; // after a change, where the form itself asks what a forecast takes
const SWITCH = [["", "auto"], ["on", "on"], ["off", "off"]];
const STEPPED = new Set(["count", "tokens"]);

/** One field: its label, its control, what is wrong with it. */
class FieldRow {
  constructor(about, field, app, explain) {
    Object.assign(this, { field, app, name: field.name });
    const id = `field-${field.name}`;
    const shared = { id, "aria-describedby": `${id}-wrong`, "aria-description": field.help, onfocusin: () => explain(field) };
    this.control = this.makeControl(about, shared);
    this.clear = button(`Leave ${labelOf(field.name)} open`, () => { app.change({ [this.name]: null }); this.control.focus(); }, { symbol: "close" });
    this.wrong = el("p", { class: "wrong", id: `${id}-wrong`, hidden: true });
    this.root = el("div", { class: "field", "data-field": field.name },
      el("label", { for: id, "data-tip": `${field.help} ${field.flag ?? ""}`.trim() }, labelOf(field.name)),
      el("div", { class: "control" }, this.combobox?.root ?? this.control, this.clear), this.wrong);
  }

  makeControl(about, shared) {
    const { takes, choices } = this.field;
    const offered = offers(this.name, about);
    if (offered) {
      this.combobox = new Combobox(offered, (value) => this.say(value), { ...shared, "aria-label": labelOf(this.name) });
      return this.combobox.input;
    }
    if (takes === "switch") return this.select(SWITCH, shared);
    if (takes === "choice" && choices.length) return this.select([["", "auto"], ...choices.map((each) => [each, each])], shared);
    const numeric = STEPPED.has(takes) || takes === "number";
    return el("input", { type: "text", autocomplete: "off", spellcheck: "false", inputmode: numeric ? "decimal" : null, ...shared,
      oninput: (event) => this.say(event.target.value), onkeydown: (event) => this.step(event) });
  }

  select(options, shared) {
    return el("select", { ...shared, onchange: (event) => this.say(event.target.value) }, options.map(([value, text]) => el("option", { value }, text)));
  }

  say(value) {
    if (value === this.shown && this.field.takes === "text") return; // a file's text is shown in brief
    if ((this.app.job[this.name] ?? "") !== value) this.app.change({ [this.name]: value || null }, { merge: `${this.app.state.at} ${this.name}` });
  }

  /** Arrow keys double and halve a count. */
  step(event) {
    const factor = { ArrowUp: 2, ArrowDown: 0.5 }[event.key];
    if (!factor || !STEPPED.has(this.field.takes)) return;
    const [, digits, unit] = this.control.value.match(/^\s*(\d+)\s*([kKmM]?)\s*$/) ?? [null, this.control.value ? "" : "1", ""];
    const next = Number(digits) * factor;
    if (!digits || !Number.isInteger(next) || next < (this.field.least ?? 1)) return;
    event.preventDefault();
    this.control.value = `${next}${unit}`;
    this.say(this.control.value);
  }

  show(value, assumed) {
    const isSet = value !== "";
    this.root.classList.toggle("set", isSet);
    this.clear.hidden = !isSet;
    this.shown = this.field.takes === "text" ? brief(value) : value;
    const typing = document.activeElement === this.control && this.combobox;
    if (this.control.tagName === "SELECT") this.showChoice(value, assumed);
    else if (!typing && this.control.value !== this.shown) this.control.value = this.shown;
    if (this.control.tagName !== "SELECT") this.control.placeholder = assumed ?? (this.field.usual || (this.field.asExample ? `such as ${this.field.example}` : "open"));
  }

  showChoice(value, assumed) {
    if (![...this.control.options].some((option) => option.value === value)) this.control.append(el("option", { value }, value));
    this.control.value = value;
    write(this.control.options[0], assumed ? `${assumed} (auto)` : this.field.usual ? `${this.field.usual} (auto)` : "auto");
  }

  showWrong(message) {
    this.control.setAttribute("aria-invalid", String(Boolean(message)));
    this.wrong.hidden = !message;
    write(this.wrong, message ?? "");
  }
}

/** The form on the left of every view but Explain. */
export class Form {
  constructor(root, app) {
    this.app = app;
    this.fields = app.fields;
    this.rows = new Map();
    this.help = el("p", { class: "field-help hint", "aria-hidden": "true" }, "Point at a name to see what it means. ↑ and ↓ double and halve.");
    this.scenarios = new ScenarioBar(app);
    this.summary = el("summary", { class: "form-summary" });
    const folded = this.sections();
    this.find = el("input", { id: "find-setting", type: "search", placeholder: "Find a setting", "aria-label": "Find a setting", oninput: () => this.search(folded) });
    this.found = el("p", { class: "hint", hidden: true }, "No setting of this name. Pasted flags are read by the paste box.");
    const fields = el("form", { class: "fields", autocomplete: "off", onsubmit: (event) => event.preventDefault() },
      MAIN.map((group) => this.group(group.title, group.rows)), el("div", { class: "find" }, this.find), this.found, folded.map(({ root: section }) => section), this.help);
    this.whole = el("details", { class: "form", open: !matchMedia("(max-width: 860px)").matches }, this.summary, fields);
    put(root, this.scenarios.root, this.whole);
    app.on("forecast", (answer) => this.assume(answer));
    app.on("wrong", (error) => this.showWrong(error));
    app.on("field", (name) => this.focus(name));
  }

  row(name) {
    const row = new FieldRow(this.app.about, this.fields.get(name), this.app, (field) => write(this.help, `${field.help} ${field.flag ?? ""}`));
    this.rows.set(name, row);
    return row.root;
  }

  group(title, rows) {
    const known = rows.map((names) => names.filter((name) => this.fields.has(name))).filter((names) => names.length);
    return el("fieldset", {}, el("legend", {}, title), known.map((names) => el("div", { class: `fields-row of-${names.length}` }, names.map((name) => this.row(name)))));
  }

  /** All fields that are not above, folded by section. */
  sections() {
    const above = new Set(MAIN.flatMap((group) => group.rows.flat()).concat(RUN.fields));
    const bySection = new Map([[RUN.title, RUN.fields.filter((name) => this.fields.has(name))]]);
    for (const { name, section } of this.fields.values()) {
      if (above.has(name)) continue;
      if (!bySection.has(section)) bySection.set(section, []);
      bySection.get(section).push(name);
    }
    return [...bySection].map(([title, names]) => {
      const count = el("span", { class: "count" });
      const root = el("details", { class: "section" }, el("summary", {}, el("span", {}, title), count), el("div", { class: "fields-row of-2" }, names.map((name) => this.row(name))));
      return { root, names, count };
    });
  }

  search(folded) {
    const words = this.find.value.toLowerCase().split(/[\s_-]+/).filter(Boolean);
    const fits = (name) => {
      const { help, flag } = this.fields.get(name);
      const text = `${name.replaceAll("_", " ")} ${labelOf(name)} ${help} ${flag}`.toLowerCase();
      return words.every((word) => text.includes(word));
    };
    let any = false;
    for (const { root, names } of folded) {
      const found = names.filter(fits);
      for (const name of names) this.rows.get(name).root.hidden = !found.includes(name);
      root.hidden = !found.length;
      root.open = words.length > 0 && found.length > 0;
      any ||= found.length > 0;
    }
    this.found.hidden = any;
  }

  /** Open what hides a field, and go there. */
  focus(name) {
    const row = this.rows.get(name);
    if (!row) return;
    this.whole.open = true;
    const section = row.root.closest("details.section");
    if (section) section.open = true;
    row.root.hidden = false;
    row.control.focus();
    row.root.scrollIntoView({ block: "center", behavior: "smooth" });
  }

  show(state) {
    const job = this.app.job;
    this.scenarios.show(state);
    if (this.job !== job) this.showJob(job);
    clearTimeout(this.askSoon);
    if (state.view !== "forecast" && this.assumedOf !== job && job.model) this.askSoon = setTimeout(() => this.ask(job), ASSUME_MS);
  }

  /** Ask what a forecast takes where nothing is given: only the view Forecast tells it. */
  async ask(job) {
    this.assumedOf = job;
    try {
      const answer = await this.app.server.ask("/api/forecast", { job }, { slot: "form" });
      if (answer && job === this.job) this.assume(answer);
    } catch { /* the view says what is wrong */ }
  }

  showJob(job) {
    this.job = job;
    for (const [name, row] of this.rows) row.show(job[name] ?? "", this.assumed?.get(name));
    for (const section of this.whole.querySelectorAll("details.section")) {
      const set = section.querySelectorAll(".field.set").length;
      write(section.querySelector(".count"), set ? `${set} set` : "");
    }
    const degrees = ["tp", "pp", "cp", "ep"].filter((name) => job[name]).map((name) => `${name} ${job[name]}`).join(" ");
    write(this.summary, [brief(job.model ?? "no model"), job.gpus ? `${job.gpus} GPUs` : null, brief(job.cluster ?? ""), degrees].filter(Boolean).join(" · "));
  }

  /** What a forecast took where nothing is given shows in the fields, in grey. */
  assume(answer) {
    const told = (answer.assumptions ?? []).filter((each) => each.field).map((each) => [each.field, each.value ?? each.text.match(/is not given: ([^\s,;]+)/)?.[1]]);
    const taken = { ...answer.result?.job, ...answer.result?.parallel };
    const plain = Object.entries(taken).filter(([name, value]) => this.rows.has(name) && ["string", "number", "boolean"].includes(typeof value));
    this.assumedOf = this.job;
    this.assumed = new Map([...told.filter(([, value]) => value), ...plain].map(([name, value]) => [name, typeof value === "boolean" ? (value ? "on" : "off") : String(value)]));
    this.showWrong(null);
    for (const [name, row] of this.rows) row.show(this.job[name] ?? "", this.assumed.get(name));
  }

  /** Show an error at its field, once it lasts; null takes it away. */
  showWrong(error) {
    clearTimeout(this.soon);
    const tell = () => { for (const [name, row] of this.rows) row.showWrong(error?.where === name ? inBrief(error.message).replace(`${name}: `, "") : null); };
    if (!error) return tell();
    this.soon = setTimeout(tell, CALM_MS);
    return null;
  }
}
