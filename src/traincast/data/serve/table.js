// A table of thousands of records: sorts, filters, is read by keys; rows that are out of sight are not in the page.

import { button, el, put, write } from "./ui.js";

const ROW = 30; // pixels of a row, as views.css has it
const MORE = 12; // rows kept above and below those that are seen
const MOVES = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };

/**
 * Return whether a record is as every word of a filter says: NAME=VALUE, NAME<NUMBER, NAME>NUMBER, or a text in it.
 * `columns` have `name`, `title`, `value(record)` and `text(record)`.
 */
export function matcher(columns, filter) {
  const words = filter.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const named = (name) => columns.find((each) => [each.name, each.title].some((key) => key.toLowerCase() === name));
  const tests = words.map((word) => {
    const [, name, sign, wanted] = word.match(/^([\w ]+?)([=<>])(.+)$/) ?? [];
    const column = name && named(name);
    if (!column) return (record) => columns.some((each) => each.text(record).toLowerCase().includes(word));
    if (sign === "=") return (record) => [String(column.value(record)), column.text(record)].some((text) => text.toLowerCase() === wanted);
    return (record) => { const value = column.value(record); return typeof value === "number" && (sign === "<" ? value < Number(wanted) : value > Number(wanted)); };
  });
  return (record) => tests.every((test) => test(record));
}

/** Return an order of records by a column; those that say nothing come last. */
function order(column, falling) {
  const turn = falling ? -1 : 1;
  return (a, b) => {
    const [one, other] = [column.value(a), column.value(b)];
    if (one === other) return 0;
    if (one === null || one === undefined) return 1;
    if (other === null || other === undefined) return -1;
    return one > other ? turn : -turn;
  };
}

export class Table {
  /** `open(record)` is called where a row is chosen; `kept(records)` where a filter changed what is left; `marked(record)` names the class of a row. */
  constructor({ caption, open, kept = () => {}, marked = () => null, keep = "such as tp=8 pp<4" }) {
    Object.assign(this, { caption, open, kept, marked, columns: [], records: [], shown: [], sorted: null, falling: false, current: 0, chosen: null });
    this.filter = el("input", { type: "search", placeholder: keep, autocomplete: "off", oninput: () => this.again() });
    this.found = el("output", { class: "hint" });
    this.head = el("tr", { "aria-rowindex": "1" });
    this.body = el("tbody");
    this.table = el("table", { class: "many", "aria-label": caption }, el("thead", {}, this.head), this.body);
    this.box = el("div", { class: "many-box", tabindex: "0", role: "region", "aria-label": `${caption}, to scroll` }, this.table);
    this.root = el("div", {}, el("div", { class: "row" }, el("label", {}, "Filter ", this.filter), this.found), this.box);
    this.box.addEventListener("scroll", () => this.draw(), { passive: true });
    this.body.addEventListener("keydown", (event) => this.move(event));
    this.watcher = new ResizeObserver(() => this.draw());
    this.watcher.observe(this.box);
  }

  /** Show records: `columns` are `{name, title, value, text, words, tip}`. */
  show(columns, records) {
    const same = columns.map((each) => each.name).join() === this.columns.map((each) => each.name).join();
    Object.assign(this, { columns, records });
    if (this.sorted && !columns.some((each) => each.name === this.sorted)) this.sorted = null;
    if (!same) this.titles();
    this.refine();
  }

  titles() {
    put(this.head, this.columns.map((column) => el("th", {
      scope: "col", class: column.words ? "words" : null, "data-tip": column.tip,
      "aria-sort": this.sorted === column.name ? (this.falling ? "descending" : "ascending") : null,
    }, button(column.title, () => this.sort(column.name), { class: "sorts" }))));
  }

  /** Sort by a column, the other way at the second time, and not at all at the third. */
  sort(name) {
    const third = this.sorted === name && this.falling;
    this.falling = this.sorted === name && !third;
    this.sorted = third ? null : name;
    const at = this.columns.findIndex((each) => each.name === name);
    this.titles();
    this.again();
    this.head.children[at].querySelector("button").focus();
  }

  /** Filter and sort again, and begin at the top: where one was, other rows are now. */
  again() {
    this.box.scrollTop = 0;
    this.current = 0;
    this.refine();
  }

  /** Filter and sort again. */
  refine() {
    const fits = matcher(this.columns, this.filter.value);
    this.shown = this.records.filter(fits);
    const column = this.columns.find((each) => each.name === this.sorted);
    if (column) this.shown.sort(order(column, this.falling));
    const all = this.records.length.toLocaleString("en");
    write(this.found, this.filter.value.trim() ? `${this.shown.length.toLocaleString("en")} of ${all}` : all);
    this.current = Math.min(this.current, Math.max(0, this.shown.length - 1));
    this.kept(this.shown);
    this.draw();
  }

  /** Put the rows that are seen into the page, between two that are as high as the others. */
  draw() {
    const focused = this.body.contains(document.activeElement);
    const first = Math.max(0, Math.floor(this.box.scrollTop / ROW) - MORE);
    const last = Math.min(this.shown.length, first + Math.ceil(this.box.clientHeight / ROW) + 2 * MORE);
    const space = (rows) => (rows > 0 ? el("tr", { class: "space", "aria-hidden": "true" }, el("td", { colspan: this.columns.length, style: { height: `${rows * ROW}px` } })) : null);
    const none = this.shown.length ? null : el("tr", {}, el("td", { colspan: this.columns.length, class: "words hint" }, this.records.length ? "Nothing is as the filter says: clear it to see all." : "Nothing yet."));
    this.table.setAttribute("aria-rowcount", this.shown.length + 1);
    put(this.body, none, space(first), this.shown.slice(first, last).map((record, at) => this.row(record, first + at)), space(this.shown.length - last));
    if (focused) this.opener(this.current)?.focus({ preventScroll: true });
  }

  row(record, at) {
    const cell = (column, n) => {
      const text = column.text(record);
      if (n) return el("td", { class: column.words ? "words" : null }, text);
      const choose = button(text, () => this.choose(record, at), { class: "link", tabindex: at === this.current ? "0" : "-1", "data-at": at });
      return el("th", { scope: "row", class: "words" }, choose);
    };
    return el("tr", { "aria-rowindex": at + 2, class: this.marked(record), "aria-current": record === this.chosen ? "true" : null,
      onclick: (event) => { if (!event.target.closest("button")) this.choose(record, at); } }, this.columns.map(cell));
  }

  opener(at) { return this.body.querySelector(`[data-at="${at}"]`); }

  choose(record, at) {
    this.chosen = record;
    this.current = at;
    this.draw();
    this.open(record);
  }

  /** Mark a record that was chosen elsewhere, and bring it into view. */
  mark(record) {
    this.chosen = record;
    const at = this.shown.indexOf(record);
    if (at >= 0) this.reveal(at);
    this.draw();
  }

  reveal(at) {
    this.current = at;
    const [top, room] = [at * ROW, this.box.clientHeight - 2 * ROW];
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    else if (top > this.box.scrollTop + room) this.box.scrollTop = top - room;
  }

  move(event) {
    const by = MOVES[event.key];
    if (by === undefined || !this.shown.length) return;
    event.preventDefault();
    this.reveal(Math.min(Math.max(this.current + by, 0), this.shown.length - 1));
    this.draw();
  }

  close() { this.watcher.disconnect(); }
}
