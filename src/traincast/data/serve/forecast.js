// The view Forecast: one number first, then where the time and the memory go, what would help, what was assumed.

import { Advice, Assumptions } from "./advice.js";
import { Breakdown, Headline, Memory, WholeRun, Words } from "./forecast_parts.js";
import { TimelineCard } from "./timeline_card.js";
import { labelOf } from "./fields.js";
import { button, card, copy, el, empty, failure, put, speak, toast, whatIsWrong } from "./ui.js";

const QUIET_MS = 20; // how long a change may be followed by another one
const AFTER_MS = 500; // what takes longer waits until nothing changes
const MOST_KEPT = 24;
const CALM_MS = 350;

class Forecast {
  constructor(root, app) {
    this.app = app;
    this.kept = new Map();
    this.problem = el("div", { class: "problem", hidden: true });
    this.headline = new Headline(app);
    this.breakdown = new Breakdown();
    this.memory = new Memory();
    this.timeline = new TimelineCard(app);
    this.advice = new Advice(app);
    this.assumptions = new Assumptions(app);
    this.words = new Words();
    this.run = new WholeRun(app);
    this.command = el("code", { class: "command" });
    const stack = (...parts) => el("div", { class: "stack" }, parts);
    this.numbers = el("div", { class: "cards", hidden: true },
      stack(this.breakdown.root, this.advice.root, this.run.root, this.words.root), stack(this.memory.root, this.assumptions.root, this.commandCard()), this.timeline.root);
    this.headline.root.hidden = true;
    // What is wrong lies over the headline, so that nothing moves.
    put(root, el("div", { class: "first" }, this.headline.root, this.problem), this.numbers);
  }

  commandCard() {
    const tools = [button("Copy", () => copy(this.command.textContent.trim(), "The command line is copied."), { class: "small quiet" })];
    return card("The same on the command line", { tools, id: "command" }, el("p", {}, this.command));
  }

  show() {
    const { job } = this.app;
    const key = JSON.stringify(job);
    if (key === this.key) return this.goOn(job, key);
    this.key = key;
    clearTimeout(this.soon);
    clearTimeout(this.later);
    if (this.kept.has(key)) return this.answer(job, key, this.kept.get(key));
    this.wait(true);
    this.soon = setTimeout(() => this.ask(job, key), QUIET_MS);
  }

  wait(on) { for (const shown of [this.headline.root, this.numbers]) shown.classList.toggle("waiting", on); }

  hide() { clearTimeout(this.later); }

  async ask(job, key) {
    if (!job.model) return this.refuse({ message: "Choose a model", hint: "Everything else has usual values.", where: "model", kind: "empty" });
    try {
      const answer = await this.app.server.ask("/api/forecast", { job }, { slot: "forecast" });
      if (answer === null || key !== this.key) return;
      this.keep(key, answer);
      this.answer(job, key, answer);
    } catch (error) {
      if (key === this.key) this.refuse(error);
    }
  }

  keep(key, answer) {
    this.kept.set(key, answer);
    if (this.kept.size > MOST_KEPT) this.kept.delete(this.kept.keys().next().value);
  }

  answer(job, key, answer) {
    clearTimeout(this.wrongSoon);
    this.problem.hidden = true;
    for (const shown of [this.headline.root, this.numbers]) shown.hidden = false;
    this.wait(false);
    for (const part of [this.headline, this.breakdown, this.memory, this.run, this.words]) part.show(answer);
    this.assumptions.show(answer);
    put(this.command, answer.command.split(" ").map((each) => [el("span", { class: "whole" }, each), " "]));
    this.app.emit("forecast", answer);
    speak(`Step ${answer.shown.step.text}`);
    this.answered = key;
    this.goOn(job, key);
  }

  /** Ask what takes longer once nothing changes, where it is not told yet. */
  goOn(job, key) {
    clearTimeout(this.later);
    if (this.answered === key && this.told !== key) this.later = setTimeout(() => this.ahead(job, key), AFTER_MS);
  }

  /** Ask what takes longer, one after another, so that the server stays free for a change. */
  async ahead(job, key) {
    for (const part of [this.timeline, this.advice, this.assumptions]) {
      if (key !== this.key || this.app.state.view !== "forecast") return;
      await part.ask(job);
    }
    this.told = key;
  }

  /** Say what is wrong, once it lasts; the last numbers stay, dimmed. */
  refuse(error) {
    clearTimeout(this.wrongSoon);
    this.app.emit("wrong", error);
    const tell = () => {
      this.problem.hidden = false;
      const shown = /^allow_oom/.test(error.hint ?? "") ? { ...error, message: whatIsWrong(error), hint: "" } : error; // a button says it
      const choose = button("Choose a model", () => this.app.focusField("model"), { class: "main" });
      put(this.problem, error.kind === "empty" ? empty(error.message, error.hint, choose) : failure(shown, this.waysOut(error)));
    };
    this.wrongSoon = setTimeout(tell, this.numbers.hidden ? 0 : CALM_MS);
  }

  /** Buttons that lead out of an error. */
  waysOut(error) {
    const again = () => { this.key = null; this.show(); };
    if (error.status === undefined || error.status >= 500) return [button("Try again", again, { class: "main" })];
    const { app } = this;
    return [
      freeing(error, app.fields).map(({ name, value, size }) => button(`${labelOf(name)} ${value} frees ${size}`, () => app.change({ [name]: value }))),
      app.fields.has(error.where) ? button(`Go to ${error.where.replaceAll("_", " ")}`, () => app.focusField(error.where)) : null,
      error.kind === "infeasible" ? button("Find layouts that fit", () => app.go("plan"), { class: "main" }) : null,
      error.kind === "infeasible" && error.unit === "bytes" ? button("Forecast it all the same", () => { app.change({ allow_oom: "on" }); toast("It is forecast as if memory were enough."); }) : null,
      app.store.past.length ? button("Undo", () => app.store.undo()) : null,
    ];
  }
}

const FREES = /(?:^|[,;] )(\w+) ([\w.-]+) frees ([\d.,]+ \w+)/g;

/** Return the changes of a job that does not fit which its message names, each a field with its value. */
function freeing({ message }, fields) {
  return [...message.matchAll(FREES)].map(([, name, value, size]) => ({ name, value, size })).filter(({ name }) => fields.has(name));
}

export default {
  name: "forecast",
  title: "Forecast",
  mount(root, app) {
    const view = new Forecast(root, app);
    return { show: () => view.show(), hide: () => view.hide() };
  },
};
