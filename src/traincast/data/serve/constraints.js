// What a plan is held to, edited where it is read: values and limits of the layout, memory, and the run that is costed.

import { labelOf } from "./fields.js";
import { button, el } from "./ui.js";

const FIRST = ["tp", "pp", "cp", "ep", "vpp", "micro_batch", "zero", "recompute"];
const WORDS = [
  { name: "headroom", title: "Memory left free", placeholder: "enough", tip: "Share of the GPU's memory that stays free, such as 10%; by default so much that running out of it is very unlikely." },
];
const SEVERAL = [
  { name: "clusters", title: "Clusters", placeholder: "that of the form", tip: "Several with commas, such as h100,b200,gb300: each is planned, and they are ranked." },
  { name: "gpus", title: "Numbers of GPUs", placeholder: "that of the form", tip: "Several with commas, such as 256,512,1024." },
  { name: "models", title: "Models", placeholder: "that of the form", tip: "Several with commas, or a pattern such as llama3*." },
  { name: "days", title: "At most days", placeholder: "any", tip: "Days that the whole run may take: numbers of GPUs are tried until it is known what they buy." },
  { name: "budget", title: "At most money", placeholder: "any", tip: "What the whole run may cost, such as 1M; a GPU-hour needs a cost for this." },
  { name: "tokens_per_parameter", title: "Tokens a parameter", placeholder: "none", tip: "Tokens of the run by the size of the model, in place of its tokens: 20 trains a dense model best for its FLOPs." },
];
const RANKS = [["", "tokens/s"], ["days", "days"], ["cost", "money"], ["energy", "energy"]];
const RUN = [
  { name: "tokens", title: "Tokens of the run", placeholder: "none", tip: "Days and money are told of a run of so many tokens, such as 15T." },
  { name: "gpu_hour_price", title: "Cost of a GPU-hour", placeholder: "none", tip: "What an hour of a GPU costs, such as 2.5: money is told, too. Of several clusters one each: h100=2.5,b200=4." },
];
const AT_MOST = /^(?:<=|≤|<|max\s)\s*(\d+)$/i;

/** Write what a plan says of a field as it is edited: `8`, `4,8` or `≤8`; empty: any. */
export function limitText(plan, name) {
  if (plan[`max_${name}`]) return `≤${plan[`max_${name}`]}`;
  return plan.fix?.[name] ?? "";
}

/** Return a plan in which a field is held to what was typed. */
export function withLimit(plan, name, typed) {
  const { [`max_${name}`]: _, fix: { [name]: __, ...fix } = {}, ...rest } = plan;
  const most = typed.trim().match(AT_MOST)?.[1];
  const held = typed.trim() && !most ? { ...fix, [name]: typed.trim().replace(/[\s,]+/g, ",") } : fix;
  return { ...rest, ...(Object.keys(held).length ? { fix: held } : {}), ...(most ? { [`max_${name}`]: most } : {}) };
}

/** Return what the server is told of a plan: its words, without what is only of the chart. */
export function planWords({ x, y, colour, hold, fix, ...words }) {
  const held = Object.entries(fix ?? {}).map(([name, values]) => `${name}=${values}`).join(" ");
  return held ? { ...words, fix: held } : words;
}

/** Return the words of a plan of one case among those of several. */
export function ofOne(words) {
  const several = new Set([...SEVERAL.slice(0, 5).map((each) => each.name), "rank_by", "gpu_hour_price"]);
  return Object.fromEntries(Object.entries(words).filter(([name]) => !several.has(name)));
}

/** Return a job without what a plan says of several cases. */
export function withoutCases(job, plan) {
  const said = { cluster: plan.clusters, gpus: plan.gpus, model: plan.models };
  return Object.fromEntries(Object.entries(job).filter(([name]) => !said[name]));
}

/** Count what a plan is held to. */
export const limitsOf = ({ fix, ...plan }) => Object.keys(planWords(plan)).length + Object.keys(fix ?? {}).length;

export class Constraints {
  constructor(app) {
    this.app = app;
    this.inputs = new Map();
    const axes = [...app.fields.values()].filter((field) => field.axis);
    const named = (name) => axes.find((field) => field.name === name);
    const first = FIRST.map(named).filter(Boolean);
    this.clear = button("Clear all", () => this.update({ ...Object.fromEntries(["x", "y", "colour"].map((name) => [name, this.plan[name]])) }), { class: "small quiet" });
    this.hold = this.check("hold", "Keep the layout that the form says", "What the form says of the layout is then fixed; else all of it is planned.");
    this.full = this.check("space", "All that can be run", "Also layouts that nobody would run: a larger space, which takes longer.", "full");
    const rest = axes.filter((field) => !first.includes(field));
    this.several = el("details", {}, el("summary", {}, "Several clusters, or what days and money buy"),
      el("div", { class: "limits-of" }, SEVERAL.map((each) => this.word(each)), this.rank()));
    this.root = el("div", { class: "limits", role: "group", "aria-label": "What the plan is held to" },
      el("div", { class: "limits-of" }, first.map((field) => this.field(field)), WORDS.map((each) => this.word(each)), RUN.map((each) => this.ofRun(each))),
      this.several, el("details", {}, el("summary", {}, "More of the layout"), el("div", { class: "limits-of" }, rest.map((field) => this.field(field)))),
      el("div", { class: "row" }, this.hold, this.full, this.clear));
  }

  get plan() { return this.app.state.plan; }

  update(plan) { this.app.update({ plan }); }

  input(name, title, attributes, change) {
    const id = `limit-${name}`;
    const input = el("input", { id, type: "text", autocomplete: "off", spellcheck: "false", ...attributes, onchange: (event) => change(event.target.value) });
    this.inputs.set(name, input);
    return el("div", { class: "limit" }, el("label", { for: id }, title), input);
  }

  field(field) {
    const limited = field.limited ? ", or ≤8 for no larger one" : "";
    const tip = `${field.help} Here: one value, several with commas${limited}; empty plans it.`;
    const choices = field.choices?.length ? el("datalist", { id: `of-${field.name}` }, field.choices.map((value) => el("option", { value }))) : null;
    const list = choices ? { list: `of-${field.name}` } : {};
    const made = this.input(field.name, labelOf(field.name), { placeholder: "any", "data-tip": tip, ...list }, (typed) => this.update(withLimit(this.plan, field.name, typed)));
    if (choices) made.append(choices);
    return made;
  }

  word({ name, title, placeholder, tip }) {
    return this.input(name, title, { placeholder, "data-tip": tip }, (typed) => this.say(name, typed));
  }

  /** What several cases are ranked by. */
  rank() {
    const select = el("select", { id: "limit-rank_by", "data-tip": "What comes first, and what is told to be too close to it.", onchange: () => this.say("rank_by", select.value) },
      RANKS.map(([value, text]) => el("option", { value }, text)));
    this.inputs.set("rank_by", select);
    return el("div", { class: "limit" }, el("label", { for: "limit-rank_by" }, "Ranked by"), select);
  }

  /** A field of the whole run, which the form has, too; what says NAME=PRICE is of the plan alone. */
  ofRun({ name, title, placeholder, tip }) {
    return this.input(name, title, { placeholder, "data-tip": tip }, (typed) => {
      const ofPlan = typed.includes("=");
      if (ofPlan || this.plan[name]) this.say(name, ofPlan ? typed : "");
      if (!ofPlan) this.app.change({ [name]: typed.trim() || null });
    });
  }

  /** Say a word of a plan, or leave it out where nothing is said. */
  say(name, typed) {
    const { [name]: _, ...rest } = this.plan;
    this.update(typed.trim() ? { ...rest, [name]: typed.trim().replace(/\s*,\s*/g, ",") } : rest);
  }

  check(name, title, tip, value = true) {
    const box = el("input", { type: "checkbox", onchange: () => {
      const { [name]: _, ...rest } = this.plan;
      this.update(box.checked ? { ...rest, [name]: value } : rest);
    } });
    this.inputs.set(name, box);
    return el("label", { "data-tip": tip }, box, ` ${title}`);
  }

  textOf(plan, name) {
    if (RUN.some((each) => each.name === name)) return plan[name] ?? this.app.job[name] ?? "";
    return name === "rank_by" || [...WORDS, ...SEVERAL].some((each) => each.name === name) ? plan[name] ?? "" : limitText(plan, name);
  }

  /** Show what the state says. */
  show(plan) {
    for (const [name, input] of this.inputs) {
      if (input === document.activeElement && input.type === "text") continue;
      if (input.type === "checkbox") input.checked = Boolean(plan[name]);
      else input.value = this.textOf(plan, name);
      input.classList.toggle("said", input.type === "text" && input.value !== "");
    }
    if (SEVERAL.some(({ name }) => plan[name])) this.several.open = true;
    this.clear.disabled = !limitsOf(plan) && !plan.hold;
  }
}
