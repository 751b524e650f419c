// A step to explore, or two: the timeline with its tools, all about a selected operation, what would help, tables.

/** Name a run among those that are shown: A or B where there are two. */
const labelOf = (runs, run) => (runs.length > 1 ? "AB"[run.order] : "");

class Explorer {
  /** Fill the sections `summary`, `timeline` and `tables` of a page; `prefix` begins the ids of what is in them. */
  constructor(places, runs, colours, prefix = "") {
    Object.assign(this, { places, runs, colours, prefix, parts: {} });
    places.timeline.replaceChildren(this.tools(), this.stage(), this.parts.tip);
    this.timeline = new Timeline(runs, colours, this.parts);
    this.timeline.onSelect = (selected) => {
      this.parts.details.hidden = !selected;
      this.parts.details.replaceChildren(...details(selected, this.go));
    };
    this.summary();
    this.legend();
    this.tabs();
    this.listen();
    if (runs.length === 1) this.timeline.mark(runs[0].header.advice.find((each) => each.culprit)?.ranks ?? []);
  }

  /** Make an element that the explorer finds again by its name. */
  part(name, kind, attributes, ...children) {
    this.parts[name] = element(kind, { id: this.prefix + name, ...attributes }, ...children);
    return this.parts[name];
  }

  tools() {
    const button = (name, text, act, more = {}) => this.part(name, "button", { type: "button", onclick: act, ...more }, text);
    const colours = ["kind", "group", "microbatch"].map((value) => element("option", { value }, value));
    return element("div", { class: "tools", role: "toolbar", "aria-label": "Timeline tools" },
      element("label", {}, "Search ", this.part("search", "input", { type: "search", placeholder: "name, such as attention", autocomplete: "off" })),
      button("previous", "\u2191", () => this.timeline.nextMatch(-1), { "aria-label": "Previous match" }),
      button("next", "\u2193", () => this.timeline.nextMatch(1), { "aria-label": "Next match" }),
      this.part("matches", "output", { for: `${this.prefix}search`, class: "matches" }),
      element("label", {}, "Colour by ", this.part("colour", "select", {}, ...colours)),
      button("path", "Critical path", () => this.path(), { "aria-pressed": "false" }),
      button("zoom-in", "+", () => this.timeline.zoom(0.6), { "aria-label": "Zoom in" }),
      button("zoom-out", "\u2212", () => this.timeline.zoom(1 / 0.6), { "aria-label": "Zoom out" }),
      button("fit", "Whole step", () => this.timeline.fit()),
      this.part("legend", "span", { class: "legend" }),
      element("span", { class: "hint" }, "Click an operation, or press an arrow key, for all about it"));
  }

  stage() {
    this.part("tip", "div", { class: "tip", role: "tooltip", hidden: "" });
    const canvas = this.part("canvas", "canvas", {
      class: "canvas",
      tabindex: "0", role: "application", "aria-describedby": `${this.prefix}details`,
      "aria-label": "Operations of the ranks over time; arrow keys go from one to the next",
    });
    return element("div", { class: "stage" },
      this.part("lanes", "div", { class: "lanes" }, this.part("spacer", "div", { class: "spacer" }, canvas)),
      this.part("details", "aside", { class: "details", hidden: "", "aria-live": "polite", "aria-label": "Selected operation" }));
  }

  summary() {
    const label = (run) => labelOf(this.runs, run);
    const parts = (run) => [breakdown(run, this.colours, label(run)), this.runs.length > 1 ? null : helps(run, this.explain)];
    this.places.summary.replaceChildren(...this.runs.flatMap(parts).filter(Boolean));
  }

  /** Select an operation from anywhere on the page, and search for a name where one is given. */
  go = (run, op, name) => {
    if (name) this.search(name);
    this.timeline.select(run, op);
    this.places.timeline.scrollIntoView({ block: "nearest" });
  };

  /** Show the operations that a sentence is about: the others fade; again, or Escape, shows all. */
  explain = (run, about, button) => {
    const shown = this.timeline.focus?.about === about;
    this.clear();
    if (shown) return;
    button.setAttribute("aria-pressed", "true");
    this.timeline.show(run, about);
    this.places.timeline.scrollIntoView({ block: "nearest" });
  };

  /** Bring a rank into view, over the whole step. */
  showRank = (run, rank) => {
    this.clear();
    this.timeline.fit();
    this.timeline.mark([rank]);
    this.places.timeline.scrollIntoView({ block: "nearest" });
  };

  /** Draw again, in the colours of another theme. */
  recolour() {
    this.timeline.recolour();
    this.summary();
    this.legend();
    this.show(this.tab);
  }

  legend() {
    const names = this.colours.by === "microbatch" ? [] : [...new Set(this.runs.flatMap((run) => {
      const kinds = new Set();
      for (let op = 0; op < run.count; op++) if (run.run[op]) kinds.add(this.colours.by === "group" ? run.text("kind_of_group_T", op) || "step" : run.kindOf(op));
      return [...kinds];
    }))];
    const shown = this.colours.by === "group" ? (name) => (name === "step" ? "no group" : name) : spaced;
    this.parts.legend.replaceChildren(
      ...names.map((name) => element("span", {}, element("span", { class: "chip", colour: this.colours.kind(name) }), shown(name))),
      element("span", {}, element("span", { class: "chip", colour: this.colours.named.wait }), "waiting"));
  }

  tabs() {
    const names = [...(this.runs.length > 1 ? ["Differences"] : []), ...Object.keys(PANELS)];
    const panel = `${this.prefix}panel`;
    const tabs = names.map((name) => element("button", {
      type: "button", role: "tab", id: `${this.prefix}tab-${name}`, "aria-controls": panel, "aria-selected": "false", tabindex: "-1", onclick: () => this.show(name),
    }, name));
    this.places.tables.replaceChildren(
      this.part("tabs", "div", { class: "tabs", role: "tablist", "aria-label": "Tables" }, ...tabs),
      this.part("panel", "div", { class: "panel", role: "tabpanel", tabindex: "0" }));
    this.parts.tabs.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!by) return;
      const at = (names.indexOf(this.tab) + by + names.length) % names.length;
      this.show(names[at]);
      tabs[at].focus();
    });
    this.show(names[0]);
  }

  show(name) {
    this.tab = name;
    for (const tab of this.parts.tabs.children) {
      const chosen = tab.textContent === name;
      tab.setAttribute("aria-selected", String(chosen));
      tab.tabIndex = chosen ? 0 : -1;
    }
    this.parts.panel.setAttribute("aria-label", name);
    const content = name === "Differences" ? [differences(this.runs[0], this.runs[1], this.go)] : this.runs.flatMap((run) => [
      this.runs.length > 1 ? element("h2", {}, run.name) : null, PANELS[name](run, this.go, this.colours, this.showRank)]).filter(Boolean);
    this.parts.panel.replaceChildren(...content);
  }

  search(text) {
    this.parts.search.value = text;
    const matches = this.timeline.search(text);
    this.parts.matches.textContent = matches ? `${count(matches.found.length)} found` : "";
  }

  path() {
    const shown = !this.timeline.showPath;
    this.timeline.showPath = shown;
    this.parts.path.setAttribute("aria-pressed", String(shown));
    this.timeline.draw();
  }

  clear() {
    for (const pressed of this.places.summary.querySelectorAll("[aria-pressed=true]")) pressed.setAttribute("aria-pressed", "false");
    this.timeline.focus = null;
    this.search("");
    this.timeline.select(null, null);
  }

  /** Show the selected operation with as much before and after it. */
  near() {
    if (!this.timeline.selected) return;
    const { run, op } = this.timeline.selected;
    const long = run.endS(op) - run.readyS(op);
    this.timeline.view(run.readyS(op) - long, run.endS(op) + long);
  }

  listen() {
    const { timeline, parts } = this;
    parts.colour.addEventListener("change", () => { this.colours.by = parts.colour.value; timeline.recolour(); this.legend(); });
    parts.search.addEventListener("input", () => this.search(parts.search.value));
    parts.search.addEventListener("keydown", (event) => {
      if (event.key === "Enter") timeline.nextMatch(event.shiftKey ? -1 : 1);
      if (event.key === "Escape") { this.clear(); parts.canvas.focus(); }
    });
    const keys = { ArrowLeft: () => timeline.step(-1, 0), ArrowRight: () => timeline.step(1, 0), ArrowUp: () => timeline.step(0, -1), ArrowDown: () => timeline.step(0, 1),
      w: () => timeline.zoom(0.6), s: () => timeline.zoom(1 / 0.6), "+": () => timeline.zoom(0.6), "-": () => timeline.zoom(1 / 0.6),
      a: () => timeline.pan(-0.15), d: () => timeline.pan(0.15), 0: () => timeline.fit(), c: () => this.path(), f: () => this.near(), Escape: () => this.clear() };
    parts.canvas.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const act = keys[event.key] || keys[event.key.toLowerCase()];
      if (!act) return;
      event.preventDefault();
      act();
    });
  }

  /** Let go of the page. */
  close() { this.timeline.close(); }
}
