// What the terminal report says, as the page shows it: headings, sentences, tables.

import { card, el } from "./ui.js";

/** A table of few rows: columns are `[title, cell(row), words]`; `words` is true, or "long" where a line of it may be broken. */
export function small(caption, columns, rows) {
  const kind = (words) => (words ? `words${words === true ? "" : ` ${words}`}` : null);
  return el("div", { class: "table-of", tabindex: "0", role: "region", "aria-label": caption }, el("table", { "aria-label": caption },
    el("thead", {}, el("tr", {}, columns.map(([title, , words]) => el(title ? "th" : "td", { scope: title ? "col" : null, class: kind(words) }, title)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, columns.map(([, cell, words]) => el("td", { class: kind(words) }, cell(row) ?? "")))))));
}

/** Pairs of a name and a text as a list. */
export function facts(pairs) {
  return el("dl", { class: "facts-of" }, pairs.filter(([, text]) => text).map(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]));
}

/** The table of a line; one without headings is a list of facts. */
function tableOf({ headings, rows, words }, caption) {
  if (headings.every((each) => !each) && headings.length === 2) return facts(rows);
  return small(caption, headings.map((title, at) => [title, (row) => row[at], words[at]]), rows);
}

function lineOf({ text, mark, style, table }, caption) {
  if (table) return tableOf(table, caption);
  return el("p", { class: [style.includes("dim") ? "hint" : "", mark === "!" ? "note" : ""].join(" ").trim() || null }, mark.trim() && mark !== "!" ? `${mark} ${text}` : text);
}

/** The content of a section. */
export const linesOf = (section) => section.lines.map((line) => lineOf(line, section.title || "Summary"));

/** Sections by how their titles begin: `of("Critical path")`, null where there is none. */
export const sectionOf = (sections, begins) => (sections ?? []).find((each) => each.title.startsWith(begins)) ?? null;

/** A section as a card of its own. */
export const sectionCard = (section, options = {}) => card(section.title.replace(/[:(].*$/, "").trim(), options, linesOf(section));

/** Sections in one card, each opened by a click. */
export function folded(title, sections) {
  if (!sections.length) return null;
  return card(title, { wide: true }, sections.map((each) => el("details", { class: "fold" }, el("summary", {}, each.title), linesOf(each))));
}
