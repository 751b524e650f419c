// A page of many jobs: a chart of all of them, and a table that sorts and filters; layouts of a plan, points of a sweep.

const PALETTE = ["compute", "tp", "backward", "pp", "cp", "ep", "dp", "weight", "recompute", "copy", "shard", "gap"];
const [HIGH, LEFT, BELOW, ABOVE, APART] = [400, 78, 44, 28, 70];
const MOST_LINES = 1000;
const SPREAD_OF_LOG = 20;
const UNITS = { s: time, bytes, share: (part) => `${(100 * part).toFixed(1)} %`, number: (value) => Number(value.toPrecision(5)).toLocaleString("en"), words: spaced };

/** From values to places: in proportion, by powers where they spread far, one after the other where they are words. */
class Axis {
  constructor(values, unit, from, to) {
    const known = values.filter((value) => value !== null);
    [this.unit, this.from, this.to] = [unit, from, to];
    this.numbers = known.every((value) => typeof value === "number");
    if (!this.numbers) { this.names = [...new Set(known.map(String))].sort(); return; }
    const [least, most] = known.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
    this.log = least > 0 && most / least > SPREAD_OF_LOG;
    const [low, high] = [this.scaled(least), this.scaled(most)];
    const edge = 0.04 * (high - low || Math.abs(high) || 1);
    [this.low, this.high] = [low - edge, high + edge];
    const few = [...new Set(known)].sort((a, b) => a - b);
    this.marks = few.length <= 8 ? few : Array.from({ length: 6 }, (_, at) => this.unscaled(low + ((high - low) * at) / 5));
  }

  scaled(value) { return this.log ? Math.log(value) : value; }
  unscaled(value) { return this.log ? Math.exp(value) : value; }
  share(value) { return this.numbers ? (this.scaled(value) - this.low) / (this.high - this.low) : (this.names.indexOf(String(value)) + 0.5) / this.names.length; }
  at(value) { return this.from + (this.to - this.from) * this.share(value); }
  ticks() { return this.numbers ? this.marks : this.names; }
}

/** Return the values to write at an axis that has little room. */
function apart(axis) {
  let last = -Infinity;
  return axis.ticks().filter((value) => {
    if (axis.at(value) < last + APART) return false;
    last = axis.at(value);
    return true;
  });
}

class Points {
  constructor(given) {
    this.given = given;
    this.faint = new Set(given.faint);
    this.column = new Map(given.columns.map((column, at) => [column.name, { ...column, at }]));
    Object.assign(this, { x: given.x, y: given.y, colour: given.colour, sorted: null, falling: false });
    byId("headline").append(element("div", {}, element("h1", {}, given.title), ...given.facts.map((fact) => element("div", { class: "facts" }, fact))));
    byId("texts").append(...given.texts.map(({ name, text }) => element("details", {}, element("summary", {}, name), element("pre", {}, text))));
    this.select("x", (column) => given.rows.some((row) => row[column.at] !== null));
    this.select("y", (column) => column.unit !== "words");
    this.select("colour", (column) => this.values(column.name).length <= PALETTE.length);
    byId("filter").addEventListener("input", () => this.draw());
    byId("theme").addEventListener("click", () => this.theme(document.documentElement.dataset.theme !== "dark"));
    new ResizeObserver(() => this.wide === byId("chart").clientWidth || this.draw()).observe(byId("chart"));
    this.theme(matchMedia("(prefers-color-scheme: dark)").matches);
  }

  cell(row, name) { return row[this.column.get(name).at]; }
  values(name) { return [...new Set(this.given.rows.map((row) => this.cell(row, name)))].sort((a, b) => (a > b ? 1 : a < b ? -1 : 0)); }
  text(row, column) { const value = row[column.at]; return value === null ? "" : typeof value === "boolean" ? (value ? "yes" : "") : typeof value === "number" ? UNITS[column.unit](value) : value; }

  theme(dark) {
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    byId("theme").setAttribute("aria-pressed", String(dark));
    this.draw();
  }

  /** Offer the columns that an axis or the colour may show. */
  select(name, fits) {
    const offered = [...this.column.values()].filter((column) => column.at && fits(column));
    const none = name === "colour" ? [element("option", { value: "" }, "nothing")] : [];
    byId(name).append(...none, ...offered.map((column) => element("option", { value: column.name }, column.title)));
    byId(name).value = this[name];
    byId(name).addEventListener("change", (event) => { this[name] = event.target.value; this.draw(); });
  }

  /** Return whether a row is as every word of the filter says: NAME=VALUE, NAME<NUMBER, NAME>NUMBER, or a text in it. */
  fits(row, words) {
    return words.every((word) => {
      const [, name, sign, wanted] = word.match(/^([\w.]+)([=<>])(.+)$/) ?? [];
      const column = name && [...this.column.values()].find((each) => [each.name, each.title].some((key) => key.toLowerCase() === name));
      if (!column) return this.given.columns.some((each, at) => this.text(row, { ...each, at }).toLowerCase().includes(word));
      const value = row[column.at];
      if (sign === "=") return [String(value), this.text(row, column)].some((text) => text.toLowerCase() === wanted);
      return typeof value === "number" && (sign === "<" ? value < Number(wanted) : value > Number(wanted));
    });
  }

  draw() {
    const words = byId("filter").value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    this.shown = this.given.rows.filter((row) => this.fits(row, words));
    byId("matches").textContent = words.length ? `${count(this.shown.length)} of ${count(this.given.rows.length)}` : "";
    this.hues = new Map((this.colour ? this.values(this.colour) : []).map((value, at) => [value, `var(--${PALETTE[at % PALETTE.length]})`]));
    byId("legend").replaceChildren(...[...this.hues].map(([value, hue]) => element("span", {}, element("span", { class: "chip", colour: hue }), this.named(value))));
    byId("chart").replaceChildren(this.chart());
    byId("panel").replaceChildren(this.table());
  }

  named(value) { const column = this.column.get(this.colour); return this.text({ [column.at]: value }, column) || (value === false ? "no" : "not specified"); }
  hue(row) { return this.colour ? this.hues.get(this.cell(row, this.colour)) : "var(--compute)"; }

  chart() {
    const rows = this.shown.filter((row) => this.cell(row, this.x) !== null && this.cell(row, this.y) !== null);
    if (!rows.length) return element("p", {}, "Nothing to draw.");
    this.wide = byId("chart").clientWidth;
    const [x, y] = [this.column.get(this.x), this.column.get(this.y)];
    const across = new Axis(rows.map((row) => row[x.at]), x.unit, LEFT, this.wide - 12);
    const up = new Axis(rows.map((row) => row[y.at]), y.unit, HIGH - BELOW, ABOVE);
    const place = (row) => [across.at(row[x.at]), up.at(row[y.at])];
    const tick = (column, value) => (typeof value === "number" ? UNITS[column.unit](value) : spaced(value));
    const grid = [
      ...apart(across).map((value) => svg("text", { x: across.at(value), y: HIGH - BELOW + 18, "text-anchor": "middle" }, tick(x, value))),
      ...up.ticks().flatMap((value) => [svg("line", { x1: LEFT, x2: this.wide, y1: up.at(value), y2: up.at(value), class: "grid" }), svg("text", { x: LEFT - 8, y: up.at(value) + 4, "text-anchor": "end" }, tick(y, value))]),
      svg("text", { x: (LEFT + this.wide) / 2, y: HIGH - 6, "text-anchor": "middle" }, x.title),
      svg("text", { x: 4, y: 12 }, y.title)];
    const lines = this.lines(rows).map((line) => svg("polyline", { points: line.map((row) => place(row).join(",")).join(" "), class: "line", stroke: this.given.series.length ? this.hue(line[0]) : "var(--accent)" }));
    const drawn = [...rows].sort((a, b) => this.rank(a) - this.rank(b));
    const marks = drawn.map((row) => {
      const [cx, cy] = place(row);
      const mark = svg("circle", { cx, cy, r: [4, 6, 9][this.rank(row)], fill: this.hue(row), class: ["point", "point sure", "point best"][this.rank(row)] });
      mark.addEventListener("pointerenter", () => this.tell(row, mark));
      mark.addEventListener("pointerleave", () => { byId("tip").hidden = true; });
      mark.addEventListener("click", () => this.go(row));
      return mark;
    });
    return svg("svg", { viewBox: `0 0 ${this.wide} ${HIGH}`, role: "img", "aria-label": `${y.title} over ${x.title}, ${rows.length} points` }, ...grid, ...lines, ...marks);
  }

  /** How much a row stands out: 2 of the best, 0 of those that are less sure, 1 of the others. */
  rank(row) { return this.given.best.includes(row[0]) ? 2 : this.faint.has(row[0]) ? 0 : 1; }

  /** Return the rows that lines join: some on the axes of the beginning, or those that differ only across. */
  lines(rows) {
    const across = (row) => (typeof this.cell(row, this.x) === "number" ? this.cell(row, this.x) : String(this.cell(row, this.x)));
    const sorted = (line) => line.sort((a, b) => (across(a) > across(b) ? 1 : -1));
    if (this.x === this.given.x && this.y === this.given.y && this.given.joined.length) return [sorted(rows.filter((row) => this.given.joined.includes(row[0])))];
    if (!this.given.series.includes(this.x)) return [];
    const alike = new Map();
    for (const row of rows) {
      const key = JSON.stringify(this.given.series.filter((name) => name !== this.x).map((name) => this.cell(row, name)));
      if (!alike.has(key)) alike.set(key, []);
      alike.get(key).push(row);
    }
    return [...alike.values()].map(sorted);
  }

  /** Show all of a row next to its point, within the window. */
  tell(row, mark) {
    const tip = byId("tip");
    const facts = [...this.column.values()].filter((column) => this.given.told.includes(column.name) && row[column.at] !== null);
    tip.replaceChildren(...facts.map((column) => element("div", {}, `${column.title}: ${this.text(row, column) || "no"}`)));
    tip.hidden = false;
    const [point, own] = [mark.getBoundingClientRect(), tip.getBoundingClientRect()];
    const right = point.right + 8 + own.width <= window.innerWidth;
    tip.style.left = `${Math.max(4, right ? point.right + 8 : point.left - own.width - 8)}px`;
    const fits = right || point.left - own.width - 8 >= 4;
    tip.style.top = `${fits ? Math.max(4, Math.min(point.top, window.innerHeight - own.height - 4)) : point.bottom + 8}px`;
  }

  /** Show the line of a row in the table. */
  go(row) {
    for (const line of byId("panel").querySelectorAll("[aria-current]")) line.removeAttribute("aria-current");
    const line = byId("panel").querySelector(`[data-row="${row[0]}"]`);
    line?.setAttribute("aria-current", "true");
    line?.scrollIntoView({ block: "center" });
  }

  sort(name) {
    this.falling = this.sorted === name && !this.falling;
    this.sorted = name;
    byId("panel").replaceChildren(this.table());
    byId("panel").querySelector("[aria-sort] button").focus();
  }

  table() {
    const columns = [...this.column.values()].slice(1);
    const kind = (column) => (column.unit === "words" ? { class: "words" } : {});
    const turn = this.falling ? -1 : 1;
    const compare = (a, b) => {
      const [one, other] = [this.cell(a, this.sorted), this.cell(b, this.sorted)];
      return one === other ? 0 : one === null ? 1 : other === null ? -1 : one > other ? turn : -turn;
    };
    const rows = this.sorted ? [...this.shown].sort(compare) : this.shown;
    const head = columns.map((column) => element("th", { scope: "col", ...kind(column), ...(this.sorted === column.name ? { "aria-sort": this.falling ? "descending" : "ascending" } : {}) },
      element("button", { type: "button", onclick: () => this.sort(column.name) }, column.title)));
    const body = rows.slice(0, MOST_LINES).map((row) => element("tr", { "data-row": row[0], ...(this.given.best.includes(row[0]) ? { class: "best" } : {}) },
      ...columns.map((column) => element("td", { ...kind(column), ...(column.name === "message" ? { class: "words long" } : {}) }, this.text(row, column)))));
    const left = rows.length - MOST_LINES;
    return element("div", {}, element("table", { "aria-label": "All" }, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body)),
      left > 0 ? element("p", {}, `and ${count(left)} more; filter to see them`) : null);
  }
}

window.points = new Points(JSON.parse(byId("points").textContent));
document.documentElement.dataset.ready = "yes";
