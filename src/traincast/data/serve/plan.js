// The view Plan: a search that can be watched and stopped, its layouts as points and as a table, one of them in full.

import { Cases } from "./cases.js";
import { Constraints, limitsOf, planWords, withoutCases } from "./constraints.js";
import { LayoutCard } from "./layout.js";
import { notes } from "./evidence.js";
import { Layouts, openJob } from "./layouts.js";
import { MOST_COLOURS, Scatter } from "./scatter.js";
import { Table } from "./table.js";
import { Search } from "./search.js";
import { button, card, el, empty, failure, put, speak, write } from "./ui.js";

const AXES = { x: "peak_bytes", y: "step_s", colour: "tp" };
const QUIET_MS = 500; // how long nothing must change before layouts are searched again

class PlanView {
  constructor(root, app) {
    this.app = app;
    this.waiting = null;
    this.layouts = new Layouts();
    this.search = new Search(app.server, {
      start: () => this.started(), points: (found) => this.found(found), progress: (told) => this.progress(told),
      done: (answer) => this.done(answer), failed: (error) => this.failed(error), cancelled: () => this.cancelled(),
    });
    this.constraints = new Constraints(app);
    this.scatter = new Scatter(this.layouts, (row) => this.choose(row));
    this.table = new Table({ caption: "Layouts", open: (row) => this.choose(row), kept: (rows) => this.points(rows), marked: (row) => (row.tied ? "tied" : row.simulated ? "simulated" : null) });
    this.layout = new LayoutCard(app, this.layouts);
    this.cases = new Cases((each) => this.chooseCase(each));
    this.build(root);
  }

  build(root) {
    this.headline = el("p", { class: "plan-headline", role: "status" });
    this.facts = el("ul", { class: "hint" });
    this.notes = el("div", { class: "notes-of" });
    this.meter = el("progress", { max: "1", "aria-label": "How far the search is" });
    this.what = el("span", { class: "hint" });
    this.go = button("Search again", () => this.begin(), { class: "main" });
    this.stop = button("Stop", () => this.search.cancel());
    this.work = el("div", { class: "row", hidden: true }, this.meter, this.what);
    this.wrong = el("div", { hidden: true });
    this.selects = Object.fromEntries([["y", "Up"], ["x", "Across"], ["colour", "Colour by"]].map(([name, title]) => {
      const select = el("select", { onchange: () => app.update({ plan: { ...app.state.plan, [name]: select.value } }, { undoable: false }) });
      return [name, { select, label: el("label", {}, `${title} `, select) }];
    }));
    const { app } = this;
    const chart = card("Layouts", { id: "plan-chart", tools: this.scatter.figure.tools },
      el("div", { class: "row chart-tools" }, Object.values(this.selects).map((each) => each.label)), this.scatter.legend, this.scatter.figure.root);
    this.limited = el("span", { class: "hint" });
    put(root, el("div", { class: "cards" },
      el("section", { class: "card wide plan-head", "aria-label": "Search" }, el("div", { class: "row" }, this.headline, el("span", { class: "row plan-tools" }, this.go, this.stop)),
        el("div", { class: "plan-facts" }, this.work, this.facts), this.wrong),
      el("section", { class: "card wide" }, el("details", { open: matchMedia("(min-width: 861px)").matches }, el("summary", {}, el("h2", { class: "in-line" }, "Held to"), " ", this.limited), this.constraints.root)),
      this.cases.root, chart, this.layout.root, this.layout.timelineRoot, card("All of them", { id: "plan-table", wide: true }, this.table.root), this.notes));
    chart.classList.add("chart-card");
  }

  get axes() {
    const { plan } = this.app.state;
    const axes = this.layouts.axes();
    const pick = (name) => (axes.includes(plan[name]) ? plan[name] : AXES[name]);
    const colours = this.layouts.colours(MOST_COLOURS);
    const wanted = plan.colour ?? (this.layouts.several && colours.includes("cluster") ? "cluster" : AXES.colour);
    return { x: pick("x"), y: pick("y"), colour: plan.colour === "" ? "" : colours.includes(wanted) ? wanted : colours[0] ?? "" };
  }

  /** What would be searched now. */
  get question() {
    const { state, job, fields } = this.app;
    const open = state.plan.hold ? job : openJob(job, fields);
    return { job: withoutCases(open, state.plan), plan: planWords(state.plan) };
  }

  show(state) {
    this.visible = true;
    this.constraints.show(state.plan);
    write(this.limited, limitsOf(state.plan) ? `${limitsOf(state.plan)} set` : "nothing: every layout is searched");
    const key = JSON.stringify(this.question);
    if (key !== this.key) {
      const first = this.key === undefined;
      this.key = key;
      clearTimeout(this.waiting);
      this.waiting = setTimeout(() => this.begin(), first ? 0 : QUIET_MS);
    } else if (this.layouts.rows.length) this.draw();
  }

  hide() {
    this.visible = false;
    if (this.waiting !== null) this.key = undefined; // what was not begun is begun when it is seen again
    clearTimeout(this.waiting);
  }

  begin() {
    this.waiting = null;
    const { question } = this;
    this.key = JSON.stringify(question);
    this.asked = question;
    if (question.job.model || question.plan.models) this.search.begin(question);
    else this.lacksModel();
  }

  started() {
    this.layouts.clear();
    this.layout.show(null);
    this.wrong.hidden = true;
    write(this.headline, "Searching…");
    put(this.facts);
    put(this.notes);
    this.cases.show();
    this.busy(true);
    this.draw();
  }

  busy(is) {
    this.stop.hidden = !is;
    this.go.hidden = is;
    this.work.hidden = !is;
    this.meter.removeAttribute("value");
    write(this.what, "");
  }

  progress({ share, what }) {
    if (typeof share === "number") this.meter.value = share;
    write(this.what, what ?? "");
  }

  found(points) {
    this.layouts.add(points);
    write(this.headline, `${this.layouts.rows.length.toLocaleString("en")} layouts so far`);
    this.drawn ??= requestAnimationFrame(() => { this.drawn = null; this.draw(); });
  }

  done(answer) {
    this.layouts.finish(answer);
    this.busy(false);
    write(this.headline, answer.headline ?? this.best());
    put(this.facts, (answer.facts ?? []).map((text) => el("li", {}, text)));
    put(this.notes, notes(answer) ?? "");
    this.cases.show(answer);
    speak(this.headline.textContent);
    this.draw();
    const best = this.layouts.rows.find((row) => row.chosen) ?? this.layouts.rows[0];
    if (best) this.choose(best);
  }

  best() {
    const [row] = this.layouts.rows;
    return row ? `${this.layouts.line(row)}: ${this.layouts.text(row, "step_s")} a step` : "No layout";
  }

  failed(error) {
    this.busy(false);
    write(this.headline, "No plan");
    this.wrong.hidden = false;
    put(this.wrong, failure(error, limitsOf(this.app.state.plan) ? button("Clear what it is held to", () => this.constraints.clear.click()) : null));
  }

  lacksModel() {
    this.search.end();
    this.started();
    this.busy(false);
    write(this.headline, "No model yet");
    this.wrong.hidden = false;
    put(this.wrong, empty("Choose a model", "Its layouts are then searched.", button("Choose a model", () => this.app.focusField("model"), { class: "main" })));
  }

  cancelled() {
    this.busy(false);
    write(this.headline, `Stopped${this.layouts.rows.length ? `: ${this.layouts.rows.length.toLocaleString("en")} layouts were estimated` : ""}`);
  }

  /** Draw what is known: the table filters, and hands the chart what is left. */
  draw() {
    if (!this.visible) return;
    this.offer();
    this.table.show(this.layouts.columns(), this.layouts.rows);
  }

  points(rows) { this.scatter.show(rows, this.axes, this.layout.row); }

  /** Offer the columns that an axis or the colour may show. */
  offer() {
    const { layouts, axes } = this;
    const offered = { x: layouts.axes(), y: layouts.axes(), colour: ["", ...layouts.colours(MOST_COLOURS)] };
    for (const [name, { select }] of Object.entries(this.selects)) {
      const key = offered[name].join();
      if (select.dataset.of !== key) put(select, offered[name].map((each) => el("option", { value: each }, each ? layouts.title(each) : "nothing")));
      select.dataset.of = key;
      select.value = axes[name];
    }
  }

  /** Choose the layout to run of a case. */
  chooseCase({ layout, model, cluster, gpus }) {
    const row = this.layouts.rows.find((each) => each.text === layout && each.model === model && each.cluster === cluster && each.gpus === gpus);
    if (row) this.choose(row);
  }

  choose(row) {
    this.layout.show(row, this.asked.job, this.asked.plan);
    this.table.mark(row);
    this.points(this.table.shown);
  }
}

export default {
  name: "plan",
  title: "Plan",
  mount(root, app) {
    const view = new PlanView(root, app);
    return { show: (state) => view.show(state), hide: () => view.hide() };
  },
};
