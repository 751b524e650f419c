// Charts by Observable Plot: our theme, a figure that redraws itself, and pictures of it as SVG and PNG.

import { download, el, menu, put } from "./ui.js";

const Plot = window.Plot;
const MADE_BY_STYLE = ["fill", "stroke", "font-family", "font-size", "font-weight", "font-variant", "opacity", "text-anchor", "stroke-width", "stroke-dasharray", "fill-opacity", "stroke-opacity"];
const SHARPNESS = 2;
const LEAST_WIDTH = 180; // less is a place that is not laid out yet

/** Colours of the parts of a step: names of variables of the style sheet, as the explorer has them. */
export const PARTS = {
  compute: "compute", exposed_tp: "tp", exposed_cp: "cp", exposed_ep: "ep", exposed_pp: "pp", exposed_dp: "dp",
  bubble: "bubble", other: "other",
};
/** Colours of the parts of a stage's memory. */
export const MEMORY = {
  parameters: "compute", gradients: "backward", optimizer: "pp", activations: "cp", other: "other", workspace: "others", buffers: "others",
};
/** Colours of scenarios, in their order: none of a part's. */
export const SERIES = ["series-a", "series-b", "series-c", "series-d"];

export const colour = (name) => `var(--${name})`;
export const colourOfPart = (name) => colour(PARTS[name] ?? PARTS[`exposed_${name.replace(/^exposed /, "")}`] ?? "others");
export const colourOfMemory = (name) => colour(MEMORY[name] ?? "others");
export const colourOfSeries = (at) => colour(SERIES[at % SERIES.length]);

/**
 * Draw a chart with the page's theme: what `Plot.plot` takes. Returns an SVG, or a figure where it has a legend.
 * Plot's own sheet is taken out, so that no inline style stands in the page: style.css has its rules.
 */
export function plot(options) {
  const drawn = Plot.plot({ className: "plot", marginTop: 12, ...options });
  for (const sheet of drawn.querySelectorAll("style")) sheet.remove();
  for (const mark of drawn.querySelectorAll("g[aria-label]")) mark.setAttribute("role", "group"); // only what has a role can have a name
  return drawn;
}

/** A figure: `draw(width, data)` returns what `plot` takes; it is drawn again when the data, width or theme change. */
export class Figure {
  constructor({ name, describe, draw, height = 200, tools = [] }) {
    Object.assign(this, { name, describe, draw, data: null, width: 0 });
    this.root = el("figure", { class: "figure", style: { "min-height": `${height}px` } });
    this.menu = menu("Picture", () => this.exports(), { class: "small quiet" });
    this.tools = [...tools, this.menu];
    this.watcher = new ResizeObserver(([entry]) => this.resized(Math.floor(entry.contentRect.width)));
    this.watcher.observe(this.root);
  }

  exports() {
    return [
      { text: "SVG", run: () => download(`${this.name}.svg`, this.asSvg(), "image/svg+xml") },
      { text: "PNG", run: async () => download(`${this.name}.png`, await this.asPng()) },
    ];
  }

  show(data) { this.data = data; this.redraw(); }

  resized(width) {
    if (width === this.width) return;
    this.width = width;
    this.redraw();
  }

  redraw() {
    const width = this.width || Math.floor(this.root.clientWidth);
    if (this.data === null || width < LEAST_WIDTH) return;
    const drawn = plot({ width, ariaLabel: this.describe(this.data), ...this.draw(width, this.data) });
    drawn.setAttribute("role", "img");
    put(this.root, drawn);
  }

  get picture() { return this.root.querySelector("svg"); }

  asSvg() { return svgText(this.picture); }

  asPng() { return pngOf(this.picture); }

  close() { this.watcher.disconnect(); this.root.remove(); }
}

/** Return the text of an SVG with every colour and letter written into it, so that it looks the same anywhere. */
export function svgText(drawn) {
  const twin = drawn.cloneNode(true);
  const originals = [drawn, ...drawn.querySelectorAll("*")];
  [twin, ...twin.querySelectorAll("*")].forEach((each, at) => {
    const style = getComputedStyle(originals[at]);
    for (const property of MADE_BY_STYLE) {
      const value = style.getPropertyValue(property);
      if (value && value !== "normal") each.setAttribute(property, value);
    }
    each.removeAttribute("class");
    each.removeAttribute("style");
  });
  const { width, height } = drawn.getBoundingClientRect();
  const back = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  const page = getComputedStyle(document.documentElement).getPropertyValue("--page").trim();
  for (const [key, value] of Object.entries({ width: "100%", height: "100%", fill: page })) back.setAttribute(key, value);
  twin.prepend(back);
  twin.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  twin.setAttribute("width", Math.round(width));
  twin.setAttribute("height", Math.round(height));
  return new XMLSerializer().serializeToString(twin);
}

/** Return a picture of an SVG as a PNG of twice its size. */
export async function pngOf(drawn) {
  const { width, height } = drawn.getBoundingClientRect();
  const address = URL.createObjectURL(new Blob([svgText(drawn)], { type: "image/svg+xml" }));
  try {
    const image = new Image();
    image.src = address;
    await image.decode();
    const canvas = el("canvas", { width: Math.round(width * SHARPNESS), height: Math.round(height * SHARPNESS) });
    const pen = canvas.getContext("2d");
    pen.scale(SHARPNESS, SHARPNESS);
    pen.drawImage(image, 0, 0, width, height);
    return await new Promise((done) => canvas.toBlob(done, "image/png"));
  } finally {
    URL.revokeObjectURL(address);
  }
}

/** Return values of 1, 2 and 5 times powers of ten between two numbers, for the ticks of a logarithmic axis. */
export function logTicks(least, most) {
  const ticks = [];
  for (let power = Math.floor(Math.log10(least)); power <= Math.log10(most); power++) for (const lead of [1, 2, 5]) ticks.push(lead * 10 ** power);
  const within = ticks.filter((tick) => tick >= least * 0.999 && tick <= most * 1.001);
  return within.length > 8 ? within.filter((tick) => /^1/.test(tick.toExponential())) : within;
}

/** Write records as CSV: `columns` are pairs of a heading and a function. */
export function csv(columns, records) {
  const cell = (value) => { const text = String(value ?? ""); return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text; };
  return [columns.map(([heading]) => cell(heading)), ...records.map((each) => columns.map(([, of]) => cell(of(each))))]
    .map((row) => row.join(",")).join("\n") + "\n";
}
