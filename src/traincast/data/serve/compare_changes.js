// Copies of a scenario with one thing changed: another cluster, twice the GPUs, FP8, faster NICs, longer sequences.

import { offers } from "./fields.js";
import { MOST_SCENARIOS } from "./state.js";
import { button, el, menu, toast, write } from "./ui.js";

/** Return a count as typed times a factor, in the same unit; null where it is not a plain count. */
export function times(text, factor) {
  const [, digits, unit] = String(text ?? "").match(/^\s*([\d.,]+)\s*([kKmM]?)\s*$/) ?? [];
  if (!digits) return null;
  const value = Number(digits.replaceAll(",", "")) * factor;
  if (Number.isInteger(value)) return `${value}${unit}`;
  const plain = value * { "": 1, k: 1024, m: 1048576 }[unit.toLowerCase()];
  return Number.isInteger(plain) ? String(plain) : null;
}

const otherNames = ["H100", "H200", "B200", "B300", "GB200", "GB300", "MI300X", "TPU v5p"].map((name) => name.toLowerCase().replace(" ", "-"));

export class Changes {
  constructor(app) {
    this.app = app;
    this.title = el("span", {});
    this.row = el("p", { class: "row" }, this.makeButtons());
    this.root = el("section", { class: "card wide changes", "aria-label": "Duplicate and change" }, this.title, this.row);
  }

  makeButtons() {
    return [
      menu("Another cluster", () => this.clusters(), { class: "small" }),
      button("Twice the GPUs", () => this.scaled("gpus", 2), { class: "small" }),
      button("FP8", () => this.add({ precision: "fp8" }, "FP8"), { class: "small" }),
      button("NICs twice as fast", () => this.fasterNics(), { class: "small" }),
      button("Twice the sequence", () => this.scaled("seq_length", 2), { class: "small" }),
      button("The same, to change by hand", () => this.add({}, null), { class: "small quiet" }),
    ];
  }

  show(scenarios, at) {
    write(this.title, `Duplicate ${scenarios[at].name} and change:`);
    const full = scenarios.length >= MOST_SCENARIOS;
    for (const each of this.row.querySelectorAll("button:not([role])")) each.disabled = full;
    if (full) write(this.title, `Four scenarios are the most. Remove one to add another.`);
  }

  clusters() {
    const now = this.app.job.cluster;
    const known = offers("cluster", this.app.about).filter((each) => each.value !== now);
    const first = known.filter((each) => otherNames.includes(each.value));
    const rest = known.filter((each) => !otherNames.includes(each.value) && each.hint !== "GPU of a datasheet");
    const item = (each) => ({ text: each.value, hint: each.hint, run: () => this.add({ cluster: each.value }, each.value) });
    return [...first.map(item), null, ...rest.map(item)];
  }

  scaled(field, factor) {
    const value = times(this.app.job[field], factor);
    if (value === null) return toast(`Give ${field.replaceAll("_", " ")} first.`, { action: { text: "Go there", run: () => this.app.focusField(field) } });
    this.add({ [field]: value }, field === "gpus" ? `${value} GPUs` : `${value} tokens`);
  }

  /** The cluster with NICs of twice their rate, as the text of a file that builds on it. */
  fasterNics() {
    const known = this.app.about.clusters.find((each) => each.name === (this.app.job.cluster ?? "h100"));
    const [, rate] = known?.description.match(/([\d,]+) Gb\/s/) ?? [];
    if (!rate) return toast("The rate of this cluster's NICs is not known: choose a preset cluster first.");
    const doubled = 2 * Number(rate.replaceAll(",", ""));
    return this.add({ cluster: `base = "${known.name}"\n\n[gpu]\nnic_bytes_per_s = "${doubled / 8}GB/s"\n` }, `NICs of ${doubled} Gb/s`);
  }

  add(fields, name) { this.app.addScenario({ ...this.app.job, ...fields }, name); }
}
