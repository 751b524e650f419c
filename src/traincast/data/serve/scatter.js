// Layouts as points: any number across and up, a degree as colour, the Pareto set joined, what is tied with the best ringed.

import { Figure, colour } from "./charts.js";
import { LESS_IS_BETTER, UNITS, paretoSet } from "./layouts.js";
import { chip, el, put } from "./ui.js";

const PALETTE = ["compute", "tp", "backward", "pp", "cp", "ep", "dp", "weight", "recompute", "copy", "gap", "mp"];
export const MOST_COLOURS = PALETTE.length;
const SPREAD_OF_LOG = 20;
const HEIGHT = 400;
const GIB = 2 ** 30;

const ordered = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a) > String(b) ? 1 : -1);

export class Scatter {
  /** `open(row)` is called with the point that is clicked. */
  constructor(layouts, open) {
    Object.assign(this, { layouts, open, rows: [], chosen: null });
    this.legend = el("div", { class: "row legend-of" });
    this.figure = new Figure({ name: "layouts", height: HEIGHT, describe: () => this.describe(), draw: (width) => this.draw(width) });
    this.figure.root.classList.add("points");
    this.figure.root.addEventListener("click", () => { const row = this.pointed; if (row) this.open(row); });
  }

  /** The layout that is nearest to the pointer. */
  get pointed() { return this.figure.root.firstElementChild?.value ?? null; }

  describe() {
    const { x, y } = this.axes;
    return `${this.layouts.title(y)} over ${this.layouts.title(x)} of ${this.rows.length} layouts; the table below has the same`;
  }

  /** Show rows; `axes` has the names `x`, `y` and `colour`. */
  show(rows, axes, chosen = null) {
    Object.assign(this, { axes, chosen });
    this.rows = rows.filter((row) => typeof row[axes.x] === "number" && typeof row[axes.y] === "number");
    const values = axes.colour ? [...new Set(this.layouts.rows.map((row) => row[axes.colour] ?? null))].sort(ordered) : [];
    this.hues = new Map(values.map((value, at) => [value, colour(PALETTE[at % PALETTE.length])]));
    put(this.legend, this.words());
    this.figure.show(this.rows);
  }

  words() {
    const named = (value) => this.layouts.text({ [this.axes.colour]: value }, this.axes.colour) || (value === false ? "no" : "none");
    const hues = [...this.hues].map(([value, hue]) => el("span", {}, chip(hue), named(value)));
    const title = this.axes.colour ? el("span", {}, `${this.layouts.title(this.axes.colour)}:`) : null;
    return [title, ...hues, this.front.length > 1 ? el("span", {}, el("span", { class: "dash", "aria-hidden": "true" }), "Pareto set") : null,
      this.tied.length > 1 ? el("span", {}, el("span", { class: "ring", "aria-hidden": "true" }), "too close to tell from the best") : null,
      this.layouts.final ? el("span", {}, "large: simulated, pale: estimated") : null];
  }

  hue(row) { return this.hues.get(row[this.axes.colour] ?? null) ?? colour("compute"); }

  get tied() { return this.rows.filter((row) => row.tied); }

  get front() {
    const { x, y } = this.axes;
    return LESS_IS_BETTER.has(x) && LESS_IS_BETTER.has(y) && x !== y ? paretoSet(this.rows, x, y) : [];
  }

  /** What is drawn of a column: bytes in GiB, so that the marks of an axis are round. */
  of(name) { return this.layouts.unit(name) === "bytes" ? (row) => row[name] / GIB : (row) => row[name]; }

  scale(name) {
    const values = this.rows.map(this.of(name));
    const [least, most] = values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
    const log = least > 0 && most / least > SPREAD_OF_LOG;
    const unit = this.layouts.unit(name);
    const format = unit === "bytes" ? (value) => value.toLocaleString("en") : UNITS[unit];
    return { label: `${this.layouts.title(name)}${unit === "bytes" ? ", GiB" : ""}`, type: log ? "log" : "linear", nice: !log, grid: true, labelArrow: "none", tickFormat: format, ticks: 6 };
  }

  draw(width) {
    const Plot = window.Plot;
    const [x, y] = [this.of(this.axes.x), this.of(this.axes.y)];
    const sure = (row) => row.simulated || !this.layouts.final;
    const [pale, solid] = [this.rows.filter((row) => !sure(row)), this.rows.filter(sure)];
    const dots = (rows, more) => Plot.dot(rows, { x, y, fill: (row) => this.hue(row), ...more });
    const ringed = (rows, r, stroke) => Plot.dot(rows, { x, y, r, fill: "none", stroke: colour(stroke), strokeWidth: 2 });
    return {
      height: HEIGHT, marginLeft: 72, marginBottom: 42, marginRight: 22,
      x: { ...this.scale(this.axes.x), ticks: Math.max(3, Math.floor(width / 110)) }, y: this.scale(this.axes.y), color: { type: "identity" },
      marks: [
        Plot.line(this.front, { x, y, stroke: colour("accent"), strokeWidth: 1.6, strokeDasharray: "5 4" }),
        dots(pale, { r: 3, fillOpacity: 0.4 }), dots(solid, { r: this.layouts.final ? 5 : 3, fillOpacity: 0.9 }),
        ringed(this.tied.length > 1 ? this.tied : [], 8, "text"),
        ringed(this.rows.filter((row) => row === this.chosen), 11, "accent"),
        Plot.tip(this.rows, Plot.pointer({ x, y, title: (row) => this.tip(row), maxRadius: 30, fill: "var(--page)", stroke: "var(--line)" })),
      ],
    };
  }

  tip(row) {
    const { x, y, colour: by } = this.axes;
    const told = ["step_s", "peak_bytes", x, y, by].filter((name, at, all) => name && all.indexOf(name) === at);
    const facts = told.map((name) => [this.layouts.title(name), this.layouts.text(row, name)]).filter(([, text]) => text);
    return [this.layouts.line(row), ...facts.map((each) => each.join(": ")), row.tied ? "too close to tell from the best" : ""].filter(Boolean).join("\n");
  }

  close() { this.figure.close(); }
}
