// What is told of a run: what its files are, its step, who is slow, what made it as long as it is, what would help.

import { forecastLines } from "./layout.js";
import { folded, linesOf, sectionCard, sectionOf, small } from "./sections.js";
import { button, card, el, put } from "./ui.js";

const SAID_ELSEWHERE = ["", "Where the time goes", "What would help most", "Stragglers", "Critical path", "Assumptions", "Warnings"];

/** What the files are, as `inspect` says it. */
export function whatItIs(answer) {
  const more = answer.more_files ? el("p", { class: "hint" }, `and ${answer.more_files} more files`) : null;
  const told = (each) => [each.evidence.join("; "), each.taken_by].filter(Boolean).join("; ");
  return card("What it is", { wide: true }, small("Files", [["file", (each) => each.path, true], ["is", (each) => each.text || each.format, "long"], ["how one can tell", told, "long"]], answer.files), more);
}

/** The step, and the measured one next to it. */
export function theStep(answer) {
  const first = sectionOf(answer.sections, "");
  const told = first ? linesOf({ ...first, lines: first.lines.slice(1) }) : null;
  return card("The step", { id: "explained-step" }, el("p", { class: "plan-headline" }, answer.shown.step.text), told, answer.has_timeline ? null : forecastLines(answer));
}

/** The ranks that are slower than their peers; `show(rank)` brings one into view. */
export function stragglers(answer, show) {
  const rows = answer.stragglers ?? [];
  const alone = answer.kind === "run" && answer.files.length + answer.more_files < 2;
  const nothing = el("p", { class: "hint" }, alone ? "One file tells of no straggler, as every rank is taken to be like it: drop the files of the other ranks, too." : "No rank is slower than its peers.");
  const against = sectionOf(answer.sections, "Against the same step");
  const impact = sectionOf(answer.sections, "Stragglers")?.lines.find((line) => line.table)?.table.rows ?? [];
  return card("Stragglers", { id: "stragglers" }, rows.length ? small("Stragglers", [
    ["rank", (row) => button(`rank ${row.rank}`, () => show(row.rank), { class: "link" }), true], ["stage", (row) => String(row.stage ?? "")],
    ["slowdown", (row) => `${row.slowdown.toFixed(2)}x`], ["step-time impact", (row) => impact[rows.indexOf(row)]?.at(-1)],
  ], rows) : nothing, against ? el("details", { class: "fold" }, el("summary", {}, "Why"), linesOf(against)) : null);
}

/** What made the step as long as it is; `show()` draws it on the timeline. */
export function criticalPath(answer, show) {
  const section = sectionOf(answer.sections, "Critical path");
  if (!section) return null;
  return sectionCard(section, { id: "critical-path", tools: answer.has_timeline ? [button("On the timeline", show, { class: "small" })] : [] });
}

/** Everything else that the terminal report says. */
export const more = (answer) => folded("More", (answer.sections ?? []).filter(({ title }) => !SAID_ELSEWHERE.some((each) => (each ? title.startsWith(each) : !title))));

/** What-ifs: suggestions to try by a click, and a line for one's own; `ask(expression)` returns the answer. */
export class WhatIfs {
  constructor(ask) {
    this.ask = ask;
    this.tried = [];
    this.input = el("input", { type: "text", placeholder: "such as compute*0.9 or rank7.own=peers", "aria-label": "What if", autocomplete: "off", spellcheck: "false", class: "grow" });
    this.list = el("div");
    this.answers = el("div", { role: "status" });
    const form = el("form", { class: "row", onsubmit: (event) => { event.preventDefault(); if (this.input.value.trim()) this.attempt(this.input.value.trim()); } },
      this.input, el("button", { type: "submit" }, "Try"));
    this.root = card("What if", { id: "what-if", note: "Each is simulated anew, with everything that waits for it." }, this.list, form, this.answers);
  }

  show(answer) {
    this.tried = [];
    put(this.answers);
    const rows = answer.suggestions ?? [];
    put(this.list, rows.length ? small("What would help", [
      ["change", (row) => row.text, true], ["saves", (row) => row.saving.text], ["", (row) => button("Try", () => this.attempt(row.change), { class: "small", "aria-label": `Try: ${row.text}` })],
    ], rows) : null);
  }

  async attempt(expression) {
    this.root.classList.add("waiting");
    try {
      const { what_if: found } = await this.ask(expression);
      this.tried = [...found, ...this.tried.filter((each) => !found.some((one) => one.change === each.change))];
      put(this.answers, small("Tried", [["what if", (row) => row.text, true], ["step", (row) => row.step.text], ["saves", (row) => row.saving.text]], this.tried));
    } catch (error) {
      put(this.answers, el("p", { class: "note" }, error.message));
    } finally {
      this.root.classList.remove("waiting");
    }
  }
}

/** What was assumed and what looks wrong. */
export function notes(answer) {
  const list = (title, some, open) => (some?.length ? el("details", { open }, el("summary", {}, `${title} (${some.length})`),
    el("ul", { class: "notes" }, some.map((each) => el("li", {}, each.text, each.place ? el("span", { class: "hint" }, ` ${each.place}`) : null)))) : null);
  const found = [list("Warnings", answer.warnings, true), list("Assumptions", answer.assumptions, false)].filter(Boolean);
  return found.length ? card("What was assumed", { wide: true }, found) : null;
}
