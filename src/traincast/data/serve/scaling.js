// How scenarios scale over GPUs and over sequence length: points are asked for as one moves the slider.

import { Figure, colour, colourOfSeries, csv, logTicks } from "./charts.js";
import { button, card, chip, download, el, inBrief, put, write } from "./ui.js";

const Plot = window.Plot;
const FACTORS = [1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8, 16];
const AXES = { gpus: "GPUs", seq_length: "Sequence length" };
const SHOWS = { step: ["Step", "s"], tokens: ["Tokens/s", ""], per_gpu: ["Tokens/s a GPU", ""], mfu: ["MFU", "%"] };
const KEEPS = { batch: "same global batch", share: "same batch a GPU" };
const AHEAD_MS = 600;

export class Scaling {
  constructor(app) {
    this.app = app;
    this.points = new Map(); // of a job and an axis: value to its point
    this.slider = el("input", { type: "range", class: "slider", min: "0", step: "1", "aria-label": "Value", oninput: () => this.moved() });
    this.value = el("output", { class: "slider-value" });
    this.along = this.choice("Over", AXES, "along");
    this.keep = this.choice("Batch", KEEPS, "keep");
    this.shows = this.choice("Show", Object.fromEntries(Object.entries(SHOWS).map(([name, [title]]) => [name, title])), "shows");
    this.chart = new Figure({ name: "scaling", height: 300, describe: (data) => this.describe(data), draw: (width, data) => this.draw(width, data) });
    this.readout = el("tbody");
    const save = button("CSV", () => this.save(), { class: "small quiet" });
    this.root = card("How it scales", { wide: true, id: "scaling", tools: [save, ...this.chart.tools] },
      el("div", { class: "row scaling-tools" }, this.along, this.keep, this.shows, el("label", { class: "slide" }, this.value, this.slider)),
      el("div", { class: "scaling" }, this.chart.root, el("div", { class: "table-of", tabindex: "0", role: "region", "aria-label": "At the value of the slider" }, el("table", {}, el("caption", { class: "unseen" }, "At the value of the slider"),
        el("thead", {}, el("tr", {}, ["scenario", "step", "tokens/s", "MFU", "memory"].map((each) => el("th", { scope: "col" }, each)))), this.readout))));
  }

  get look() { return { along: "gpus", keep: "batch", shows: "tokens", ...this.app.state.look.compare }; }

  choice(title, options, key) {
    const entries = Object.entries(options).map(([value, text]) => el("option", { value }, text));
    const select = el("select", { "aria-label": title, onchange: () => this.app.look("compare", { [key]: select.value, slide: null }) }, entries);
    return select;
  }

  show(scenarios) {
    const { along, keep, shows } = this.look;
    this.along.value = along;
    this.keep.value = keep;
    this.keep.hidden = along !== "gpus";
    this.shows.value = shows;
    const key = JSON.stringify([scenarios.map((each) => each.job), along, keep]);
    this.scenarios = scenarios;
    if (key !== this.key) {
      this.key = key;
      this.values = valuesOf(scenarios, along);
      this.slider.max = String(this.values.length - 1);
      clearTimeout(this.soon);
      this.soon = setTimeout(() => this.ahead(key), AHEAD_MS);
    }
    const base = Math.max(0, this.values.indexOf(plain(scenarios[this.app.state.at].job[along])));
    this.slider.value = String(Math.min(this.look.slide ?? base, this.values.length - 1));
    this.redraw();
  }

  hide() {
    clearTimeout(this.soon);
    this.key = null; // what is missing is asked for when it is seen again
  }

  moved() {
    this.app.look("compare", { slide: Number(this.slider.value) });
    clearTimeout(this.soon);
    this.soon = setTimeout(() => this.ahead(this.key), 30);
  }

  /** Ask for the value of the slider first, then for all others, scenario after scenario. */
  async ahead(key) {
    const here = this.values[Number(this.slider.value)];
    for (const values of [[here], this.values]) {
      for (const each of this.scenarios) {
        if (key !== this.key || this.app.state.view !== "compare") return;
        await this.ask(each, values);
      }
    }
  }

  pointsOf(job) {
    const key = JSON.stringify([this.look.along, this.look.keep, job]);
    if (!this.points.has(key)) this.points.set(key, new Map());
    if (this.points.size > 64) this.points.delete(this.points.keys().next().value);
    return this.points.get(key);
  }

  async ask({ job }, values) {
    const known = this.pointsOf(job);
    const missing = values.filter((value) => value !== undefined && !known.has(value));
    if (!missing.length) return;
    try {
      const answer = await this.app.server.ask("/api/scaling", { job, along: this.look.along, keep: this.look.keep, values: missing }, { slot: "scaling" });
      for (const [at, point] of (answer?.points ?? []).entries()) known.set(missing[at], point);
    } catch (error) {
      for (const value of missing) known.set(value, { error: error.message });
    }
    this.redraw();
  }

  redraw() {
    const value = this.values[Number(this.slider.value)];
    write(this.value, value === undefined ? `Give ${AXES[this.look.along].toLowerCase()} first` : `${AXES[this.look.along]}: ${value.toLocaleString("en")}`);
    this.slider.setAttribute("aria-valuetext", value === undefined ? "" : value.toLocaleString("en"));
    const points = this.scenarios.flatMap(({ job, name }, at) => [...this.pointsOf(job)]
      .filter(([x, point]) => point.figures?.step && this.values.includes(x)).map(([x, { figures }]) => ({ x, at, name, figures })));
    this.chart.show({ points, value, ...this.look });
    put(this.readout, this.scenarios.map((each, at) => this.line(each, at, this.pointsOf(each.job).get(value))));
  }

  line(scenario, at, point) {
    const cells = point?.figures?.step ? ["step", "tokens_per_s", "mfu", "memory"].map((name) => point.figures[name]?.text) : null;
    return el("tr", {}, el("th", { scope: "row" }, chip(colourOfSeries(at)), scenario.name), cells ? cells.map((text) => el("td", {}, text ?? "–"))
      : el("td", { colspan: "4", class: "hint" }, inBrief(point?.error || "…")));
  }

  describe({ points, shows }) {
    return `${SHOWS[shows][0]} over ${AXES[this.look.along].toLowerCase()}: ${points.map((each) => `${each.name} at ${each.x}: ${each.figures.step.text}`).join(", ")}`;
  }

  draw(width, { points, value, along, shows }) {
    const y = {
      step: (each) => each.figures.step.value, tokens: (each) => each.figures.tokens_per_s?.value,
      per_gpu: (each) => perGpu(each, along, this.scenarios), mfu: (each) => 100 * (each.figures.mfu?.value ?? NaN),
    }[shows];
    const [title, unit] = SHOWS[shows];
    const sorted = [...points].sort((a, b) => a.x - b.x);
    const heights = sorted.map(y).filter((each) => each > 0);
    const round = heights.length ? logTicks(Math.min(...heights), Math.max(...heights)) : [];
    const ticks = heights.length && (shows === "mfu" || round.length < 2) ? 6 : round;
    const every = Math.ceil(this.values.length / Math.max(2, Math.floor(width / 78)));
    return {
      height: 300, marginLeft: 62, marginBottom: 36,
      x: { type: "log", base: 2, label: AXES[along], labelArrow: "none", domain: extent(this.values), ticks: this.values.filter((_, at) => at % every === 0), tickFormat: (each) => each.toLocaleString("en") },
      y: { type: shows === "mfu" ? "linear" : "log", label: unit ? `${title}, ${unit}` : title, labelArrow: "none", grid: true, zero: shows === "mfu", tickFormat: "~s", tickSize: 0, ticks },
      marks: [
        value === undefined ? null : Plot.ruleX([value], { stroke: colour("accent"), strokeWidth: 1.5, strokeDasharray: "3 3" }),
        Plot.line(sorted, { x: "x", y, z: "at", stroke: (each) => colourOfSeries(each.at), strokeWidth: 2 }),
        Plot.dot(sorted, { x: "x", y, fill: (each) => colourOfSeries(each.at), r: (each) => (each.x === value ? 6 : 3.5), stroke: colour("page") }),
      ],
    };
  }

  save() {
    const points = this.chart.data?.points ?? [];
    const figure = (name) => [name, (each) => each.figures[name]?.value];
    const columns = [["scenario", (each) => each.name], [this.look.along, (each) => each.x], figure("step"), figure("tokens_per_s"), figure("mfu")];
    download("scaling.csv", csv(columns, points), "text/csv");
  }
}

const extent = (values) => (values.length ? [values[0], values.at(-1)] : [1, 2]);

function perGpu(each, along, scenarios) {
  const gpus = along === "gpus" ? each.x : plain(scenarios[each.at].job.gpus);
  return each.figures.tokens_per_s ? each.figures.tokens_per_s.value / gpus : NaN;
}

/** Return a count as typed as a plain number; undefined where it is none. */
export function plain(text) {
  const [, digits, unit] = String(text ?? "").match(/^\s*([\d.,]+)\s*([kKmM]?)\s*$/) ?? [];
  return digits ? Number(digits.replaceAll(",", "")) * { "": 1, k: 1024, m: 1048576 }[unit.toLowerCase()] : undefined;
}

/** Return the values that are tried: fractions and multiples of what scenarios say. */
function valuesOf(scenarios, along) {
  const said = scenarios.map((each) => plain(each.job[along])).filter((value) => value !== undefined);
  if (!said.length) return [];
  const all = new Set([...said, ...FACTORS.map((factor) => said[0] * factor)]);
  return [...all].filter((value) => Number.isInteger(value) && value >= 1).sort((a, b) => a - b);
}
