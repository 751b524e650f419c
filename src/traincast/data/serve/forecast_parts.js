// Parts of the view Forecast that show numbers of one answer.

import { Figure, colour, colourOfMemory, colourOfPart, csv } from "./charts.js";
import { UNITS } from "./layouts.js";
import { button, card, chip, download, el, put, word, write } from "./ui.js";

const Plot = window.Plot;
const MEMORY_PARTS = ["parameters", "gradients", "optimizer", "activations", "other"];
const GIB = 2 ** 30;

/** The step, how sure it is, and the few numbers that people compare. */
export class Headline {
  constructor(app) {
    this.app = app;
    this.step = el("p", { class: "step" });
    this.range = el("p", { class: "range" });
    this.span = el("span", { class: "span" });
    this.dot = el("span", { class: "dot" });
    this.figures = el("dl", { class: "figures" });
    this.values = new Map();
    this.warnings = el("ul", { class: "warnings", "aria-label": "Warnings" });
    this.root = el("section", { class: "card wide headline", id: "headline", "aria-label": "Forecast of the step" },
      el("div", { class: "step-of" }, el("h2", {}, "One step takes"), this.step, el("div", { class: "track", "aria-hidden": "true" }, this.span, this.dot), this.range),
      this.figures, this.warnings);
  }

  figure(name, title, value, beneath, state = "") {
    let made = this.values.get(name);
    if (!made) {
      made = { value: el("span", { class: "value" }), beneath: el("span", { class: "hint" }) };
      made.root = el("div", {}, el("dt", {}, word(title)), el("dd", {}, made.value, made.beneath));
      this.values.set(name, made);
      this.figures.append(made.root);
    }
    write(made.value, value ?? "–");
    write(made.beneath, beneath ?? "");
    made.value.className = `value ${state}`;
  }

  show({ shown, result, warnings }) {
    write(this.step, shown.step.text);
    const { low, high, step } = shown;
    write(this.range, low ? `between ${low.text} and ${high.text} with 90 %` : "how sure this is cannot be said");
    const most = (high ?? step).value * 1.06;
    const at = (seconds) => `${(100 * seconds) / most}%`;
    Object.assign(this.span.style, { left: at((low ?? step).value), right: `${100 - (100 * (high ?? step).value) / most}%` });
    this.dot.style.left = at(step.value);
    const perGpu = result.tokens_per_s_per_gpu;
    this.figure("tokens", "tokens/s", shown.tokens_per_s?.text, perGpu ? `${Math.round(perGpu).toLocaleString("en")} a GPU` : "");
    this.figure("mfu", "MFU", shown.mfu?.text, shown.tflops ? `${shown.tflops.text} TFLOP/s a GPU` : "");
    this.showMemory(shown.memory);
    const { world_size: ranks, dp } = result.parallel;
    this.figure("gpus", "GPUs", ranks.toLocaleString("en"), `dp ${dp}, ${result.parallel.microbatches} microbatches`);
    put(this.warnings, (warnings ?? []).map((each) => el("li", { class: "note" }, each.text)));
    this.warnings.hidden = !warnings?.length;
  }

  showMemory(memory) {
    const fullest = memory.reduce((most, each) => (!most || each.peak.value > most.peak.value ? each : most), null);
    if (!fullest) return this.figure("memory", "memory", null, "not known");
    const over = fullest.limit && fullest.peak.value > fullest.limit.value;
    const chance = fullest.chance_of_oom ? `, ${fullest.chance_of_oom.text} to run out` : "";
    this.figure("memory", "memory", fullest.peak.text, fullest.limit ? `of ${fullest.limit.text}${chance}` : "of the fullest GPU", over ? "worse" : "");
  }
}

/** Where the time goes: one bar, and the same as a table. */
export class Breakdown {
  constructor() {
    this.chart = new Figure({
      name: "breakdown", height: 44,
      describe: ({ parts, step }) => `Step of ${step}: ${parts.map((each) => `${each.label} ${each.share_text}`).join(", ")}`,
      draw: (width, { parts }) => ({
        height: 44, marginLeft: 0, marginRight: 0, marginTop: 4, marginBottom: 4, x: { axis: null, domain: [0, d3.sum(parts, (each) => each.seconds)] },
        marks: [Plot.barX(parts, Plot.stackX({ x: "seconds", order: null, fill: (each) => colourOfPart(each.name), insetLeft: 0.5, insetRight: 0.5, rx: 3 }))],
      }),
    });
    this.body = el("tbody");
    this.unit = el("th", { scope: "col" }, "time");
    this.root = card("Where the time goes", { id: "breakdown", tools: this.chart.tools }, this.chart.root,
      el("table", { class: "parts" }, el("caption", { class: "unseen" }, "Parts of the step"),
        el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "part"), this.unit, el("th", { scope: "col" }, "share"))), this.body));
  }

  show({ shown }) {
    const parts = shown.breakdown.filter((each) => each.seconds > 0);
    this.chart.show({ parts, step: shown.step.text });
    write(this.unit, unitOf(parts));
    put(this.body, shown.breakdown.map((each) => el("tr", { class: each.seconds > 0 ? "" : "none" },
      el("th", { scope: "row" }, chip(colourOfPart(each.name)), word(each.label)), el("td", {}, each.text), el("td", {}, each.share_text))));
  }
}

/** Return the unit that times of one column are written in. */
function unitOf(parts) {
  const [first] = parts;
  const size = first ? first.seconds / Number(first.text.replaceAll(",", "")) : 1;
  return size > 0.1 ? "s" : size > 1e-4 ? "ms" : "us";
}

/** Memory of every stage against what is usable. */
export class Memory {
  constructor() {
    this.chart = new Figure({
      name: "memory", height: 104,
      describe: ({ stages, limit }) => `Memory by stage: ${stages.map((each) => `${each.label} ${each.peak.text}`).join(", ")}${limit ? `; usable ${limit.text}` : ""}`,
      draw: (width, data) => this.draw(width, data),
    });
    this.legend = el("p", { class: "legend" }, MEMORY_PARTS.map((name) => el("span", {}, chip(colourOfMemory(name)), name)));
    this.body = el("tbody");
    const heads = ["stage", ...MEMORY_PARTS, "peak", "usable", "runs out"].map((each) => el("th", { scope: "col" }, each));
    const table = el("table", {}, el("caption", { class: "unseen" }, "Memory by stage"), el("thead", {}, el("tr", {}, heads)), this.body);
    const numbers = el("details", {}, el("summary", {}, "Numbers"), el("div", { class: "table-of", tabindex: "0", role: "region", "aria-label": "Memory by stage" }, table));
    const save = button("CSV", () => this.save(), { class: "small quiet" });
    this.root = card("Memory by stage", { id: "memory", tools: [save, ...this.chart.tools] }, this.chart.root, this.legend, numbers);
  }

  save() {
    const parts = MEMORY_PARTS.map((name) => [`${name}_bytes`, (each) => each.parts[name]]);
    const columns = [["stage", (each) => each.label], ...parts, ["peak_bytes", (each) => each.peak.value], ["usable_bytes", (each) => each.limit?.value]];
    download("memory.csv", csv(columns, this.stages), "text/csv");
  }

  draw(width, { stages, limit }) {
    const parts = stages.flatMap((each) => MEMORY_PARTS.map((part) => ({ stage: each.label, part, gib: each.parts[part] / GIB })));
    const most = Math.max(limit ? limit.value / GIB : 0, ...stages.map((each) => each.peak.value / GIB)) * 1.04;
    return {
      height: 52 + stages.length * (stages.length > 8 ? 18 : 26), marginLeft: 78, marginRight: 64, marginTop: 20, marginBottom: 28,
      x: { domain: [0, most], label: "GiB", ticks: Math.max(3, width / 110), grid: true, labelArrow: "none" }, y: { label: null, domain: stages.map((each) => each.label), padding: 0.25, tickSize: 0 },
      marks: [
        Plot.barX(parts, Plot.stackX({ x: "gib", y: "stage", order: MEMORY_PARTS, fill: (each) => colourOfMemory(each.part), insetLeft: 0.25, insetRight: 0.25 })),
        Plot.text(stages, { x: (each) => each.peak.value / GIB, y: "label", text: (each) => each.peak.text, textAnchor: "start", dx: 5, fill: colour("text") }),
        limit ? Plot.ruleX([limit.value / GIB], { stroke: colour("path"), strokeWidth: 1.5 }) : null,
        limit ? Plot.text([limit], { x: limit.value / GIB, frameAnchor: "top", text: () => `usable ${limit.text}`, textAnchor: "end", dx: -5, dy: -14, fill: colour("path") }) : null,
      ],
    };
  }

  show({ shown }) {
    this.stages = grouped(shown.memory);
    this.root.hidden = !this.stages.length;
    if (!this.stages.length) return;
    this.chart.show({ stages: this.stages, limit: this.stages[0].limit });
    put(this.body, this.stages.map((each) => el("tr", {}, el("th", { scope: "row" }, each.label), MEMORY_PARTS.map((name) => el("td", {}, UNITS.bytes(each.parts[name]))),
      el("td", {}, each.peak.text), el("td", {}, each.limit?.text ?? ""), el("td", {}, each.chance_of_oom?.text ?? ""))));
  }
}

/** Return stages with those that hold the same next to each other as one. */
function grouped(memory) {
  const groups = [];
  for (const each of memory) {
    const last = groups.at(-1);
    const same = last && last.peak.value === each.peak.value && MEMORY_PARTS.every((name) => last.parts[name] === each.parts[name]);
    if (same) last.to = each.stage;
    else groups.push({ ...each, from: each.stage, to: each.stage });
  }
  return groups.map((each) => ({ ...each, label: each.from === each.to ? `stage ${each.from}` : `${each.from} to ${each.to}` }));
}

/** All that the terminal's report says above its tables. */
export class Words {
  constructor() {
    this.list = el("dl", { class: "facts" });
    this.root = card("In words", { id: "words" }, this.list);
  }

  show({ shown }) {
    put(this.list, (shown.facts ?? []).map(([what, said]) => [el("dt", {}, word(what)), el("dd", {}, said)]));
  }
}

const runLine = ([what, much, counted]) => [
  el("dt", {}, word(what)), el("dd", {}, el("strong", {}, much), counted ? el("span", { class: "hint" }, ` ${counted}`) : null),
];

/** What a whole run takes, where its tokens are said; else a way to say them. */
export class WholeRun {
  constructor(app) {
    this.app = app;
    this.body = el("div");
    this.root = card("The whole run", { id: "run" }, this.body);
  }

  show({ shown }) {
    const lines = shown.run ?? [];
    if (lines.length) return put(this.body, el("dl", { class: "facts" }, lines.map(runLine)));
    if (!this.body.childElementCount || this.body.querySelector("dl")) {
      const say = button("Say the tokens of the run", () => this.app.focusField("tokens"), { class: "small" });
      put(this.body, el("p", { class: "row" }, el("span", { class: "hint" }, "Days, GPU-hours, cost and energy, with failures if you like."), say));
    }
  }
}
