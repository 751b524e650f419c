// Put the page together.

const KEYS = [
  ["Left, Right", "operation before, after, in its lane"], ["Up, Down", "lane above, below, at the same time"],
  ["W, S or +, \u2212", "zoom in, out"], ["A, D", "move left, right"], ["0", "whole step"], ["F", "selected operation"],
  ["C", "critical path"], ["/", "search"], ["Enter, Shift+Enter in the search", "match after, before"], ["Escape", "clear"],
  ["Ctrl and wheel", "zoom"], ["drag, Shift and wheel", "move"], ["double click", "zoom in"], ["?", "these keys"],
];

/** The timeline as Trace Event Format, for Perfetto and chrome://tracing. */
function traceEvents(runs) {
  const events = [];
  for (const run of runs) {
    for (const lane of run.lanes) {
      const [pid, tid] = [lane.owner.rank + run.order * 1e6, lane.at + 1];
      events.push({ ph: "M", name: "process_name", pid, args: { name: `rank ${lane.owner.rank}${runs.length > 1 ? ` of ${run.name}` : ""}` } });
      events.push({ ph: "M", name: "thread_name", pid, tid, args: { name: lane.name } });
      for (const op of lane.ops) {
        const [name, cat] = [run.text("name_T", op), run.kindOf(op)];
        if (run.wait[op]) events.push({ ph: "X", pid, tid, name: `wait: ${name}`, cat: "wait", ts: run.readyS(op) * 1e6, dur: run.waitS(op) * 1e6 });
        if (run.run[op]) events.push({ ph: "X", pid, tid, name, cat, ts: run.startS(op) * 1e6, dur: run.runS(op) * 1e6, args: { microbatch: run.microbatch[op] } });
      }
    }
  }
  return JSON.stringify({ traceEvents: events });
}

function save(runs) {
  const link = element("a", { href: URL.createObjectURL(new Blob([traceEvents(runs)], { type: "application/json" })), download: "trace.json" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** Hand the trace to Perfetto's page as it asks for it: it answers PONG to PING once it listens. */
function openInPerfetto(runs) {
  const origin = "https://ui.perfetto.dev";
  const tab = window.open(origin);
  if (!tab) return;
  const ping = setInterval(() => tab.postMessage("PING", origin), 200);
  const answer = (event) => {
    if (event.origin !== origin || event.data !== "PONG") return;
    clearInterval(ping);
    window.removeEventListener("message", answer);
    const buffer = new TextEncoder().encode(traceEvents(runs)).buffer;
    tab.postMessage({ perfetto: { buffer, title: document.title, fileName: "trace.json" } }, origin, [buffer]);
  };
  window.addEventListener("message", answer);
}

class Page {
  constructor(runs) {
    this.runs = runs;
    this.colours = new Colours();
    this.theme(matchMedia("(prefers-color-scheme: dark)").matches);
    byId("headline").replaceChildren(...runs.map((run) => headline(run, this.labelOf(run))));
    byId("notices").replaceChildren(...runs.flatMap((run) => notices(run)));
    byId("keys").append(element("dl", {}, ...KEYS.map(([key, what]) => element("div", {}, element("kbd", {}, key), ` ${what}`))));
  }

  /** A or B where there are two. */
  labelOf(run) { return this.runs.length > 1 ? "AB"[run.order] : ""; }

  /** Show what needs the operations. */
  start() {
    this.timeline = new Timeline(this.runs, this.colours);
    this.timeline.onSelect = (selected) => {
      byId("details").hidden = !selected;
      byId("details").replaceChildren(...details(selected, this.go));
    };
    this.summary();
    this.legend();
    this.tabs();
    this.listen();
    const [run] = this.runs;
    if (this.runs.length === 1) this.timeline.mark(run.header.advice.find((each) => each.culprit)?.ranks ?? []);
  }

  summary() {
    const parts = (run) => [breakdown(run, this.colours, this.labelOf(run)), this.runs.length > 1 ? null : helps(run, this.explain)];
    byId("summary").replaceChildren(...this.runs.flatMap(parts).filter(Boolean));
  }

  /** Select an operation from anywhere on the page, and search for a name where one is given. */
  go = (run, op, name) => {
    if (name) this.search(name);
    this.timeline.select(run, op);
    byId("timeline").scrollIntoView({ block: "nearest" });
  };

  /** Show the operations that a sentence is about: the others fade; again, or Escape, shows all. */
  explain = (run, about, button) => {
    const shown = this.timeline.focus?.about === about;
    this.clear();
    if (shown) return;
    button.setAttribute("aria-pressed", "true");
    this.timeline.show(run, about);
    byId("timeline").scrollIntoView({ block: "nearest" });
  };

  /** Bring a rank into view, over the whole step. */
  showRank = (run, rank) => {
    this.clear();
    this.timeline.fit();
    this.timeline.mark([rank]);
    byId("timeline").scrollIntoView({ block: "nearest" });
  };

  theme(dark) {
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    byId("theme").setAttribute("aria-pressed", String(dark));
    this.colours.refresh();
    if (this.timeline) {
      this.timeline.recolour();
      this.summary();
      this.legend();
      this.show(this.tab);
    }
  }

  legend() {
    const names = this.colours.by === "microbatch" ? [] : [...new Set(this.runs.flatMap((run) => {
      const kinds = new Set();
      for (let op = 0; op < run.count; op++) if (run.run[op]) kinds.add(this.colours.by === "group" ? run.text("kind_of_group_T", op) || "step" : run.kindOf(op));
      return [...kinds];
    }))];
    const shown = this.colours.by === "group" ? (name) => (name === "step" ? "no group" : name) : spaced;
    byId("legend").replaceChildren(
      ...names.map((name) => element("span", {}, element("span", { class: "chip", colour: this.colours.kind(name) }), shown(name))),
      element("span", {}, element("span", { class: "chip", colour: this.colours.named.wait }), "waiting"));
  }

  tabs() {
    const names = [...(this.runs.length > 1 ? ["Differences"] : []), ...Object.keys(PANELS)];
    byId("tabs").replaceChildren(...names.map((name) => element("button", {
      type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "panel", "aria-selected": "false", tabindex: "-1", onclick: () => this.show(name),
    }, name)));
    byId("tabs").addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!by) return;
      const name = names[(names.indexOf(this.tab) + by + names.length) % names.length];
      this.show(name);
      byId(`tab-${name}`).focus();
    });
    this.show(names[0]);
  }

  show(name) {
    this.tab = name;
    for (const tab of byId("tabs").children) {
      const chosen = tab.id === `tab-${name}`;
      tab.setAttribute("aria-selected", String(chosen));
      tab.tabIndex = chosen ? 0 : -1;
    }
    byId("panel").setAttribute("aria-label", name);
    const content = name === "Differences" ? [differences(this.runs[0], this.runs[1], this.go)] : this.runs.flatMap((run) => [
      this.runs.length > 1 ? element("h2", {}, run.name) : null, PANELS[name](run, this.go, this.colours, this.showRank)]).filter(Boolean);
    byId("panel").replaceChildren(...content);
  }

  search(text) {
    byId("search").value = text;
    const matches = this.timeline.search(text);
    byId("matches").textContent = matches ? `${count(matches.found.length)} found` : "";
  }

  path() {
    const shown = !this.timeline.showPath;
    this.timeline.showPath = shown;
    byId("path").setAttribute("aria-pressed", String(shown));
    this.timeline.draw();
  }

  help() {
    byId("keys").hidden = !byId("keys").hidden;
    byId("help").setAttribute("aria-expanded", String(!byId("keys").hidden));
  }

  clear() {
    for (const pressed of byId("summary").querySelectorAll("[aria-pressed=true]")) pressed.setAttribute("aria-pressed", "false");
    this.timeline.focus = null;
    this.search("");
    this.timeline.select(null, null);
  }

  listen() {
    const { timeline } = this;
    const click = { theme: () => this.theme(document.documentElement.dataset.theme !== "dark"), download: () => save(this.runs),
      perfetto: () => openInPerfetto(this.runs), help: () => this.help(), path: () => this.path(), fit: () => timeline.fit(),
      "zoom-in": () => timeline.zoom(0.6), "zoom-out": () => timeline.zoom(1 / 0.6), next: () => timeline.nextMatch(1), previous: () => timeline.nextMatch(-1) };
    for (const [name, act] of Object.entries(click)) byId(name).addEventListener("click", act);
    byId("colour").addEventListener("change", (event) => { this.colours.by = event.target.value; timeline.recolour(); this.legend(); });
    byId("search").addEventListener("input", (event) => this.search(event.target.value));
    byId("search").addEventListener("keydown", (event) => {
      if (event.key === "Enter") timeline.nextMatch(event.shiftKey ? -1 : 1);
      if (event.key === "Escape") { this.clear(); byId("canvas").focus(); }
    });
    const keys = { ArrowLeft: () => timeline.step(-1, 0), ArrowRight: () => timeline.step(1, 0), ArrowUp: () => timeline.step(0, -1), ArrowDown: () => timeline.step(0, 1),
      w: () => timeline.zoom(0.6), s: () => timeline.zoom(1 / 0.6), "+": () => timeline.zoom(0.6), "-": () => timeline.zoom(1 / 0.6),
      a: () => timeline.pan(-0.15), d: () => timeline.pan(0.15), 0: () => timeline.fit(), c: () => this.path(), Escape: () => this.clear(),
      f: () => { if (timeline.selected) { const { run, op } = timeline.selected; const long = run.endS(op) - run.readyS(op); timeline.view(run.readyS(op) - long, run.endS(op) + long); } } };
    byId("canvas").addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const act = keys[event.key] || keys[event.key.toLowerCase()];
      if (!act) return;
      event.preventDefault();
      act();
    });
    document.addEventListener("keydown", (event) => {
      if (["INPUT", "SELECT"].includes(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "/") { event.preventDefault(); byId("search").focus(); }
      if (event.key === "?") this.help();
    });
  }
}

async function main() {
  const runs = await loadRuns();
  const page = new Page(runs);
  await Promise.all(runs.map((run, at) => run.load(byId(`columns-${at}`).textContent)));
  page.start();
  window.traincast = { page, readyAt: performance.now() };
  document.documentElement.dataset.ready = "yes";
}

main().catch((error) => {
  byId("notices").append(element("p", { class: "warnings", role: "alert" }, `This browser cannot show the timeline: ${error.message}`));
  throw error;
});
