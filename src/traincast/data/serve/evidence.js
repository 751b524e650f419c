// What is told of a run: what its files are, its step, who is slow, the critical path, what would help, what a log says.

import { facts, forecastLines } from "./layout.js";
import { button, card, el, put } from "./ui.js";

/** A table of few rows: columns are `[title, cell(row), words]`. */
export function small(caption, columns, rows) {
  const kind = (words) => (words ? "words" : null);
  return el("div", { class: "table-of", tabindex: "0", role: "region", "aria-label": caption }, el("table", { "aria-label": caption },
    el("thead", {}, el("tr", {}, columns.map(([title, , words]) => el("th", { scope: "col", class: kind(words) }, title)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, columns.map(([, cell, words]) => el("td", { class: kind(words) }, cell(row) ?? "")))))));
}

/** What the files are, as `inspect` says it. */
export function whatItIs(answer) {
  const of = (each) => el("details", { open: answer.inspect.length < 3 }, el("summary", {}, el("strong", {}, each.file), ` ${each.format ?? ""}`),
    facts(each.facts ?? []), each.problems?.length ? el("ul", { class: "notes" }, each.problems.map((text) => el("li", { class: "note" }, text))) : null);
  return card("What it is", { wide: true }, answer.inspect.map(of));
}

/** The step, and the measured beside the simulated one. */
export function theStep(answer) {
  const { shown, measured } = answer;
  if (!shown) return null;
  const off = measured ? shown.step.value / measured.value - 1 : 0;
  const beside = measured ? el("p", {}, `Measured ${measured.text}: the simulation is ${(100 * Math.abs(off)).toFixed(1)} % ${off < 0 ? "below" : "above"}.`) : null;
  return card("The step", {}, el("p", { class: "plan-headline" }, shown.step.text), beside, forecastLines(answer, { parts: !answer.timeline }));
}

/** The ranks that are slower than their peers; `show(rank)` brings one into view. */
export function stragglers(answer, show) {
  const rows = answer.stragglers ?? [];
  if (!answer.shown) return null;
  const nothing = el("p", { class: "hint" }, answer.ranks === 1 ? "One rank alone tells of no straggler: drop the files of the others, too." : "No rank is slower than its peers.");
  return card("Stragglers", {}, rows.length ? small("Stragglers", [
    ["rank", (row) => button(`rank ${row.rank}`, () => show(row.rank), { class: "link" }), true], ["stage", (row) => String(row.stage ?? "")],
    ["slower", (row) => row.slowdown.text], ["step-time impact", (row) => row.impact.text], ["why", (row) => row.cause ?? "", true],
  ], rows) : nothing, (answer.causes ?? []).length ? el("ul", { class: "notes" }, answer.causes.map((text) => el("li", {}, text))) : null);
}

/** What the step waits for from its first to its last operation. */
export function criticalPath(answer, show) {
  const rows = answer.critical_path ?? [];
  if (!rows.length) return null;
  return card("Critical path", { tools: answer.timeline ? [button("On the timeline", show, { class: "small" })] : [] },
    small("Critical path", [["what", (row) => row.name, true], ["time", (row) => row.seconds.text], ["share of the step", (row) => row.share_text]], rows));
}

/** What-ifs: suggestions to try by a click, and a line for one's own; `ask(expression)` returns the answer. */
export class WhatIfs {
  constructor(ask) {
    this.ask = ask;
    this.tried = [];
    this.input = el("input", { type: "text", placeholder: "compute 1.2x faster on rank 7", "aria-label": "What if", autocomplete: "off", class: "grow" });
    this.list = el("div");
    this.answers = el("div", { role: "status" });
    const form = el("form", { class: "row", onsubmit: (event) => { event.preventDefault(); if (this.input.value.trim()) this.attempt(this.input.value.trim()); } },
      this.input, el("button", { type: "submit" }, "Try"));
    this.root = card("What if", { note: "Each is simulated anew, with everything that waits for it." }, this.list, form, this.answers);
  }

  show(answer) {
    this.tried = [];
    this.root.hidden = !answer.shown;
    put(this.answers);
    if (answer.example_what_if) this.input.placeholder = answer.example_what_if;
    const rows = answer.what_if ?? [];
    put(this.list, rows.length ? small("What would help", [
      ["change", (row) => row.text, true], ["saves", (row) => row.saving?.text ?? ""], ["", (row) => button("Try", () => this.attempt(row.change), { class: "small" })],
    ], rows) : null);
  }

  async attempt(expression) {
    this.root.classList.add("waiting");
    try {
      const { text, step, saving } = await this.ask(expression);
      this.tried = [{ text: text ?? expression, step, saving }, ...this.tried.filter((each) => each.text !== (text ?? expression))];
      put(this.answers, small("Tried", [["what if", (row) => row.text, true], ["step", (row) => row.step.text], ["saves", (row) => row.saving.text]], this.tried));
    } catch (error) {
      put(this.answers, el("p", { class: "note" }, [error.message, error.hint].filter(Boolean).join(" ")));
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
