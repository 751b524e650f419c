// The shell: what is there, which view shows, and what every view is handed.

import { allFields } from "./fields.js";
import { Form } from "./form.js";
import { watchPastes } from "./paste.js";
import { Server } from "./server.js";
import { EMPTY, FIRST_JOB, State, decode, encode, jobAsTyped, letter, MOST_SCENARIOS } from "./state.js";
import { toolbar, watchKeys } from "./toolbar.js";
import { el, empty, failure, learnWords, button, put, rove, toast, watchTips } from "./ui.js";

const VIEWS = [["forecast", "Forecast"], ["plan", "Plan"], ["compare", "Compare"], ["explain", "Explain"]];
const QUIET_BEFORE_URL_MS = 150;

/** What views share: the state and how to change it, the server, what it knows, and the events of the page. */
class App {
  constructor(state, about, server) {
    Object.assign(this, { store: state, about, server, listeners: new Map() });
    this.fields = allFields(about);
  }

  get state() { return this.store.value; }

  get scenario() { return this.store.scenario; }

  get job() { return this.store.scenario.job; }

  /** Change keys of the state; `undoable: false` for what is only looked at. */
  update(patch, options) { this.store.update(patch, options); }

  /** Change fields of the job at hand; null takes a field away. */
  change(fields, options = {}) {
    const job = jobAsTyped({ ...this.job, ...fields });
    const scenarios = this.state.scenarios.map((each, at) => (at === this.state.at ? { ...each, job } : each));
    this.update({ scenarios }, options);
  }

  /** Put a whole job in place of the one at hand. */
  replaceJob(job) {
    const scenarios = this.state.scenarios.map((each, at) => (at === this.state.at ? { ...each, job: jobAsTyped(job) } : each));
    this.update({ scenarios });
  }

  /** Add a scenario after the others and turn to it; says so where there is no room. */
  addScenario(job, name = null) {
    const { scenarios } = this.state;
    if (scenarios.length >= MOST_SCENARIOS) return toast(`${MOST_SCENARIOS} scenarios are the most: remove one first.`, { wrong: true });
    const names = new Set(scenarios.map((each) => each.name));
    const free = Array.from({ length: 8 }, (_, at) => letter(at)).find((each) => !names.has(each));
    this.update({ scenarios: [...scenarios, { name: name && !names.has(name) ? name : free, job: jobAsTyped(job) }], at: scenarios.length });
  }

  /** Change what a view keeps for itself (`look.NAME`); it is not undone. */
  look(name, patch) {
    this.update({ look: { ...this.state.look, [name]: { ...this.state.look[name], ...patch } } }, { undoable: false });
  }

  /** Show a view. */
  go(view) { this.update({ view }, { undoable: false }); }

  on(event, listener) {
    if (!this.listeners.has(event)) this.listeners.set(event, new Set());
    this.listeners.get(event).add(listener);
    return () => this.listeners.get(event).delete(listener);
  }

  /** Take the person to a field of the form. */
  focusField(name) { this.emit("field", name); }

  emit(event, ...data) { for (const listener of this.listeners.get(event) ?? []) listener(...data); }
}

/** The tabs and the views behind them; a view's module is loaded when it is first shown. */
class Views {
  constructor(app) {
    this.app = app;
    this.mounted = new Map();
    this.shown = null;
    this.tabs = new Map(VIEWS.map(([name, title]) => [name, el("button", {
      type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `view-${name}`, onclick: () => app.go(name),
    }, title)]));
    const bar = document.getElementById("views");
    put(bar, [...this.tabs.values()]);
    bar.addEventListener("keydown", (event) => rove(event, [...this.tabs.values()])?.click());
  }

  async show(state) {
    const name = this.tabs.has(state.view) ? state.view : "forecast";
    const changed = this.shown !== name;
    if (changed) this.turn(name);
    const view = await this.view(name);
    if (this.shown !== name) return;
    document.getElementById("page").classList.toggle("alone", view.form === false);
    view.show(this.app.state);
  }

  turn(name) {
    if (this.shown) this.mounted.get(this.shown)?.then((view) => view.hide?.());
    this.shown = name;
    for (const [each, tab] of this.tabs) {
      tab.setAttribute("aria-selected", String(each === name));
      tab.tabIndex = each === name ? 0 : -1;
      const root = document.getElementById(`view-${each}`);
      if (root) root.hidden = each !== name;
    }
    document.title = `${this.tabs.get(name).textContent} - traincast`;
  }

  view(name) {
    if (!this.mounted.has(name)) this.mounted.set(name, this.mount(name));
    return this.mounted.get(name);
  }

  async mount(name) {
    const root = el("section", { class: "view", id: `view-${name}`, role: "tabpanel", "aria-labelledby": `tab-${name}`, hidden: this.shown !== name });
    document.getElementById("answer").append(root);
    try {
      const module = await import(`./${name}.js`);
      const view = module.default ?? module;
      return { form: view.form, ...view.mount(root, this.app) };
    } catch (error) {
      put(root, failure({ message: `The view ${name} could not be loaded.`, hint: error.message }));
      return { show() {}, hide() {} };
    }
  }
}

/** Keep the state in the URL, and take the one that a link or the Back button brings. */
function keepInUrl(app) {
  let waiting = null;
  let written = null;
  app.store.listeners.add(() => {
    clearTimeout(waiting);
    waiting = setTimeout(async () => {
      written = `#${await encode(app.state)}`;
      history.replaceState(null, "", written);
    }, QUIET_BEFORE_URL_MS);
  });
  addEventListener("hashchange", async ({ newURL }) => {
    // Not `location`: what we write for the state before may have come there since.
    const { hash } = new URL(newURL);
    if (hash === written) return;
    const found = await decode(hash.slice(1));
    if (found) app.update(found);
    else toast("This link holds no state of the planner; nothing was changed.", { wrong: true });
  });
}

async function firstState(about) {
  if (location.hash.length > 1) {
    const found = await decode(location.hash.slice(1));
    if (found) return found;
    toast("This link holds no state of the planner: here is an example.", { wrong: true });
  }
  return { ...EMPTY, scenarios: [{ name: "A", job: jobAsTyped(about.start ?? FIRST_JOB) }] };
}

async function start() {
  const server = new Server();
  let about;
  try {
    about = await server.get("/api/about");
  } catch (error) {
    put(document.getElementById("answer"), failure(error, button("Try again", () => location.reload(), { class: "main" })));
    return;
  }
  learnWords(about.glossary);
  watchTips();
  const app = new App(new State(await firstState(about)), about, server);
  const views = new Views(app);
  const form = new Form(document.getElementById("side"), app);
  toolbar(document.getElementById("tools"), app);
  watchKeys(app);
  watchPastes(app);
  keepInUrl(app);
  app.store.listeners.add((state, before) => { form.show(state); views.show(state); app.emit("state", state, before); });
  form.show(app.state);
  await views.show(app.state);
  document.documentElement.dataset.ready = "yes";
  window.traincast = { app };
}

start().catch((error) => put(document.getElementById("answer"), empty("Something is wrong with this page.", error.message)));
