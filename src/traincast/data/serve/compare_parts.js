// Scenarios next to each other: a table of their figures with differences, and their parts as bars.

import { Figure, colour, colourOfPart, colourOfSeries, csv } from "./charts.js";
import { brief, labelOf } from "./fields.js";
import { button, card, chip, download, el, inBrief, put, word } from "./ui.js";

const Plot = window.Plot;

/** A row of the table: what it is called, and how a column says it. */
const ROWS = [
  ["tokens/s", (each) => each.shown.tokens_per_s?.text],
  ["MFU", (each) => each.shown.mfu?.text],
  ["memory", (each) => fullest(each)?.peak.text, (each) => (fullest(each)?.limit ? `of ${fullest(each).limit.text}` : "")],
  ["layout", (each) => layoutOf(each)],
];
const fullest = ({ shown }) => shown.memory.reduce((most, each) => (!most || each.peak.value > most.peak.value ? each : most), null);
const layoutOf = (each) => (each.shown.facts.find(([what]) => what === "layout")?.[1] ?? "").split(";")[0].replace(/^[\d,]+ ranks: /, "");

/** Columns of the table as a file. */
const COLUMNS = [
  ["scenario", (each) => each.name], ["step_s", (each) => each.shown.step.value],
  ["step_low_s", (each) => each.shown.low?.value], ["step_high_s", (each) => each.shown.high?.value],
  ["tokens_per_s", (each) => each.shown.tokens_per_s?.value], ["mfu", (each) => each.shown.mfu?.value],
  ["peak_memory_bytes", (each) => fullest(each)?.peak.value], ["ratio_to_first", (each) => each.difference?.ratio],
  ["ratio_low", (each) => each.difference?.low], ["ratio_high", (each) => each.difference?.high],
];

/** Return how a scenario differs from the first one, in words of the form. */
function changed(job, first) {
  const names = [...new Set([...Object.keys(first), ...Object.keys(job)])].filter((name) => String(job[name] ?? "") !== String(first[name] ?? ""));
  return names.map((name) => `${labelOf(name)} ${brief(job[name] ?? "open")}`).join(", ");
}

export class Table {
  constructor(app) {
    this.app = app;
    this.head = el("tr");
    this.body = el("tbody");
    this.place = el("div", { class: "table-of", tabindex: "0", role: "region", "aria-label": "Scenarios" }, el("table", { class: "scenarios-table" },
      el("caption", { class: "unseen" }, "Scenarios and how they differ from the first one"), el("thead", {}, this.head), this.body));
    const save = button("CSV", () => this.save(), { class: "small quiet" });
    this.root = card("Scenarios", { wide: true, id: "scenarios", tools: [save] }, this.place);
  }

  wait(on) { this.place.classList.toggle("waiting", on); }

  mark(at) { for (const [place, cell] of [...this.head.children].entries()) cell.classList.toggle("at", place - 1 === at); }

  show(columns, at) {
    this.columns = columns;
    put(this.head, el("td", {}), columns.map((each) => this.heading(each, columns[0])));
    const runs = [...new Set(columns.flatMap((each) => (each.shown?.run ?? []).map(([what]) => what)))];
    put(this.body, this.steps(columns), columns.length > 1 ? this.differences(columns) : null,
      ROWS.map(([name, of, beneath]) => this.row(name, columns, of, beneath)),
      runs.map((name) => this.row(name, columns, (each) => each.shown.run.find(([what]) => what === name)?.[1])));
    this.mark(at);
  }

  heading(each, first) {
    const pick = el("button", { type: "button", class: "link scenario-name", onclick: () => this.app.update({ at: each.at }, { undoable: false }), "aria-label": `Edit ${each.name}` }, each.name);
    const same = each.at ? changed(each.job, first.job) || "the same as the first" : "what others are compared with";
    return el("th", { scope: "col" }, chip(colourOfSeries(each.at)), pick, el("small", { class: "hint" }, same));
  }

  row(name, columns, of, beneath = () => "") {
    return el("tr", {}, el("th", { scope: "row" }, word(name)), columns.map((each) => (each.shown
      ? el("td", {}, of(each) ?? "–", beneath(each) ? el("small", { class: "hint" }, beneath(each)) : null) : el("td", {}, "–"))));
  }

  steps(columns) {
    return el("tr", { class: "steps" }, el("th", { scope: "row" }, word("step")), columns.map((each) => {
      if (!each.shown) return el("td", { class: "refused" }, el("strong", { class: "worse" }, each.job.model ? inBrief(each.error?.message ?? "no answer") : "Choose a model"));
      const { step, low, high } = each.shown;
      return el("td", {}, el("strong", {}, step.text), low ? el("small", { class: "hint" }, `${low.text} to ${high.text}`) : null);
    }));
  }

  /** Differences to the first scenario: their interval is narrower than those of both, as what both are off by cancels. */
  differences(columns) {
    return el("tr", {}, el("th", { scope: "row" }, "against the first"), columns.map(({ at, difference }) => {
      if (!difference) return el("td", {}, at ? "–" : "");
      const direction = !difference.told ? "" : difference.ratio < 1 ? "better" : "worse";
      return el("td", {}, el("span", { class: direction }, difference.text), el("small", { class: "hint" }, difference.between));
    }));
  }

  save() {
    const columns = (this.columns ?? []).filter((each) => each.shown);
    download("scenarios.csv", csv(COLUMNS, columns), "text/csv");
  }
}

const LETTER = 7.5; // pixels of a letter of a chart, about
const clipped = (text, most) => (text.length > most ? `${text.slice(0, Math.max(1, Math.floor(most) - 1))}…` : text);

export class Parts {
  constructor() {
    this.chart = new Figure({
      name: "scenarios", height: 120,
      describe: (columns) => `Where the time goes: ${columns.map((each) => `${each.name} ${each.shown.breakdown.map((part) => `${part.label} ${part.share_text}`).join(", ")}`).join("; ")}`,
      draw: (width, columns) => this.draw(width, columns),
    });
    this.legend = el("p", { class: "legend" });
    this.root = card("Where the time goes", { wide: true, id: "scenario-parts", tools: this.chart.tools }, this.chart.root, this.legend);
  }

  wait(on) { this.chart.root.classList.toggle("waiting", on); }

  show(columns) {
    this.root.hidden = !columns.length;
    if (!columns.length) return;
    this.chart.show(columns);
    const parts = new Map(columns.flatMap((each) => each.shown.breakdown.filter((part) => part.seconds > 0).map((part) => [part.name, part.label])));
    put(this.legend, [...parts].map(([name, label]) => el("span", {}, chip(colourOfPart(name)), word(label))), el("span", {}, "│ 90 % interval of the step"));
  }

  draw(width, columns) {
    const parts = columns.flatMap((each) => each.shown.breakdown.map((part) => ({ ...part, scenario: each.name })));
    const ends = columns.map((each) => ({ scenario: each.name, step: each.shown.step, low: each.shown.low?.value, high: each.shown.high?.value }));
    const sure = ends.filter((each) => each.low !== undefined);
    const left = Math.min(120, width / 4);
    return {
      height: 46 + columns.length * 44, marginLeft: left, marginRight: 20, marginBottom: 30,
      x: { label: "s", labelArrow: "none", grid: true, ticks: Math.max(3, width / 110) }, y: { label: null, domain: columns.map((each) => each.name), padding: 0.3, tickSize: 0, tickFormat: (name) => clipped(name, left / LETTER) },
      marks: [
        Plot.barX(parts, Plot.stackX({ x: "seconds", y: "scenario", order: null, fill: (each) => colourOfPart(each.name), insetLeft: 0.5, insetRight: 0.5, title: (each) => `${each.label} ${each.text}` })),
        Plot.ruleY(sure, { y: "scenario", x1: "low", x2: "high", stroke: colour("text"), strokeWidth: 1.5, dy: 0 }),
        Plot.tickX(sure, { y: "scenario", x: "low", stroke: colour("text"), insetTop: 8, insetBottom: 8 }),
        Plot.tickX(sure, { y: "scenario", x: "high", stroke: colour("text"), insetTop: 8, insetBottom: 8 }),
      ],
    };
  }
}
