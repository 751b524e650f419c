// The layouts of a plan as records with columns: what the server tells, how it is shown, what stands out.

import { labelOf } from "./fields.js";
import { jobAsTyped } from "./state.js";

const BINARY = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];
const TIMES = [["s", 1], ["ms", 1e3], ["us", 1e6]];
const SHORT = (value, digits = 4) => Number(value.toPrecision(digits)).toLocaleString("en", { maximumFractionDigits: 6 });

/** How a number of a unit is written, as the terminal does. */
export const UNITS = {
  s(value) {
    const [unit, factor] = TIMES.find(([, each]) => Math.abs(value) * each >= 1) ?? TIMES[2];
    return `${SHORT(value * factor)} ${unit}`;
  },
  bytes(value) {
    const [unit, factor] = BINARY.find(([, each]) => value >= each) ?? ["B", 1];
    return `${SHORT(value / factor)} ${unit}`;
  },
  share: (value) => `${(100 * value).toFixed(1)} %`,
  money: (value) => Math.round(value).toLocaleString("en"),
  days: (value) => `${SHORT(value, 3)} days`,
  number: (value) => SHORT(value, 6),
  words: (value) => String(value).replaceAll("_", " "),
};

const KNOWN = {
  step_s: ["step", "s"], peak_bytes: ["memory", "bytes"], cost: ["money", "money"], days: ["days", "days"], gpu_hours: ["GPU-hours", "number"],
  energy_mwh: ["energy, MWh", "number"], mfu: ["MFU", "share"], probability: ["fastest, chance", "share"], regret: ["longer on average", "share"],
  tokens_per_s: ["tokens/s", "number"], simulated: ["simulated", "words"], pareto: ["Pareto set", "words"], tied: ["too close to tell", "words"],
  cluster: ["cluster", "words"], gpus: ["GPUs", "number"], micro_batch: ["micro batch", "number"], recompute: ["recompute", "words"], recomputed: ["recompute", "words"],
};
const TIPS = {
  tied: "The difference from the fastest is smaller than what forecasts of the two may be off by.",
  simulated: "Its step was simulated, not only estimated by closed forms.",
  pareto: "No other simulated layout is better in both step and memory.",
};
const SHOWN_FIRST = ["text", "cluster", "gpus", "model", "step_s", "peak_bytes", "days", "cost", "tied", "simulated"];
export const LESS_IS_BETTER = new Set(["step_s", "peak_bytes", "days", "cost", "gpu_hours", "energy_mwh"]);
const HIDDEN = new Set(["id", "full", "chosen", "dp"]);
const DEGREES = ["tp", "pp", "vpp", "cp", "ep", "etp", "zero"];
const TELLING = ["tp", "pp", "cp", "ep", "dp", "vpp", "micro_batch", "zero", "recompute", "schedule"];

/** The layouts that are known by now. */
export class Layouts {
  constructor() { this.clear(); }

  clear() { Object.assign(this, { rows: [], names: [], common: {}, fields: new Map(), final: false, several: false }); }

  /** Add what a screen has found, as columns. */
  add({ columns, common = {}, fields = [] }) {
    Object.assign(this.common, common);
    for (const field of fields) this.fields.set(field.name, field);
    const names = Object.keys(columns);
    this.names = [...new Set([...this.names, ...names])];
    const count = names.length ? columns[names[0]].length : 0;
    for (let at = 0; at < count; at++) {
      const row = { id: this.rows.length };
      for (const name of names) row[name] = columns[name][at];
      this.rows.push(row);
    }
  }

  /** Take the answer in place of what the screen said of the same layouts; the others stay. */
  finish(answer) {
    const { rows } = this;
    this.clear();
    this.add(answer);
    this.final = true;
    const known = new Set(this.rows.map((row) => row.text));
    const chosen = this.rows.find((row) => row.chosen) ?? this.rows[0];
    this.rows.push(...rows.filter((row) => !known.has(row.text)).map((row) => ({ ...row, ...figures(row, chosen) })));
    this.rows.forEach((row, at) => { row.id = at; });
    this.several = (answer.cases ?? []).length > 0;
    const full = new Map(answer.best.map((each) => [this.nameOf(each.text, each.job), each]));
    for (const row of this.rows) if (row.simulated) row.full = full.get(this.nameOf(row.text, row));
  }

  /** What one layout of an answer is told from the others by: its line, and of several cases which one it is. */
  nameOf(text, of) { return this.several ? [text, of.model, of.cluster, of.gpus].join("\n") : text; }

  title(name) { return this.fields.get(name)?.title ?? KNOWN[name]?.[0] ?? (DEGREES.includes(name) ? labelOf(name) : name.replaceAll("_", " ")); }

  unit(name) {
    const said = this.fields.get(name)?.unit ?? KNOWN[name]?.[1];
    return said ?? (this.rows.some((row) => typeof row[name] === "string") ? "words" : "number");
  }

  text(row, name) {
    const value = row[name];
    if (value === null || value === undefined) return "";
    if (value === true || value === false) return value ? "yes" : "";
    return typeof value === "number" ? UNITS[this.unit(name)]?.(value) ?? String(value) : String(value);
  }

  /** Return the names of what differs among the layouts, or is told of each whatever it is. */
  varied() {
    return this.names.filter((name) => {
      if (name === "step_s" || name === "peak_bytes" || name === "text") return true;
      if (HIDDEN.has(name)) return false;
      const first = this.rows[0]?.[name];
      return this.rows.some((row) => row[name] !== first);
    });
  }

  /** What a table shows: the layout in a line, what it takes, then its degrees. */
  columns() {
    const varied = this.varied();
    const names = [...SHOWN_FIRST.filter((name) => varied.includes(name)), ...varied.filter((name) => !SHOWN_FIRST.includes(name))];
    return names.map((name) => ({
      name, title: name === "text" ? "layout" : this.title(name), tip: TIPS[name], words: this.unit(name) === "words",
      value: (row) => row[name] ?? null, text: (row) => (name === "text" ? this.line(row) : this.text(row, name)),
    }));
  }

  /** A layout in a line: what the server says, else its degrees. */
  line(row) {
    if (row.text) return row.text;
    const degrees = ["tp", "pp", "vpp", "cp", "ep", "dp"].filter((name) => row[name] > 1).map((name) => `${name.toUpperCase()}${row[name]}`);
    return [degrees.join(" ") || "no degrees", row.micro_batch ? `micro batch ${row.micro_batch}` : null].filter(Boolean).join(", ");
  }

  /** Names that an axis may show. */
  axes() { return this.varied().filter((name) => name !== "text" && this.rows.some((row) => typeof row[name] === "number")); }

  /** Names that may colour, those that tell most first. */
  colours(most) {
    // A degree is offered before a second value of it is found, so that the colour does not change on the way.
    const offered = new Set([...TELLING.filter((name) => this.names.includes(name)), ...this.varied()]);
    const few = [...offered].filter((name) => !["text", "simulated", "pareto", "step_s", "peak_bytes"].includes(name) && new Set(this.rows.map((row) => row[name])).size <= most);
    return [...TELLING.filter((name) => few.includes(name)), ...few.filter((name) => !TELLING.includes(name))];
  }

  get tied() { return this.rows.filter((row) => row.tied); }

  /** The job of the form for the case of a layout, where several were planned. */
  caseOf(base, row) { return this.several ? { ...base, model: row.model, cluster: row.cluster, gpus: String(row.gpus) } : base; }

  /** The job of a layout: that of the form, with the layout's fields in place of what a plan decides. */
  job(base, row, fields) {
    if (row.full) return jobAsTyped(row.full.job);
    const said = { ...this.common, ...row };
    const known = Object.entries(said).filter(([name]) => fields.has(name) && (this.several || name !== "gpus"));
    return jobAsTyped({ ...base, ...Object.fromEntries(known.map(([name, value]) => [name, asField(value)])) });
  }
}

/** What a whole run takes with a layout: as much longer as its step is than that of the one to run. */
function figures(row, chosen) {
  const longer = row.step_s / chosen.step_s;
  const grown = ["days", "cost", "energy_mwh"].map((name) => [name, chosen[name] === null ? null : chosen[name] * longer]);
  const { model, cluster } = chosen;
  return { model, cluster, ...Object.fromEntries(grown), tokens_per_s: chosen.tokens_per_s / longer, mfu: chosen.mfu === null ? null : chosen.mfu / longer, tied: false, pareto: false };
}

/** Return the fields of a layout that say which one it is. */
export const told = (row, fields) => Object.fromEntries(Object.entries(row).filter(([name, value]) => fields.get(name)?.axis && value !== null && value !== undefined));

const asField = (value) => (value === true ? "on" : value === false ? "off" : value);

/** Fields that change the numbers, or what runs, and are not a layout: what the form says of them holds. */
const HELD = new Set(["precision", "cp_kind", "moe_dispatcher"]);

/** Return the job of the form without the layout, which a plan decides. */
export function openJob(job, fields) {
  return Object.fromEntries(Object.entries(job).filter(([name]) => !fields.get(name)?.axis || HELD.has(name)));
}

/** Return the rows that no other is better than in both, the best in `x` first; both the less the better. */
export function paretoSet(rows, x, y) {
  const known = rows.filter((row) => typeof row[x] === "number" && typeof row[y] === "number");
  const sorted = known.sort((a, b) => a[x] - b[x] || a[y] - b[y]);
  const front = [];
  for (const row of sorted) if (!front.length || row[y] < front.at(-1)[y]) front.push(row);
  return front;
}
