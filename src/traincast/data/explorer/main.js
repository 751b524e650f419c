// Put the page together.

const KEYS = [
  ["Left, Right", "operation before, after, in its lane"], ["Up, Down", "lane above, below, at the same time"],
  ["W, S or +, \u2212", "zoom in, out"], ["A, D", "move left, right"], ["0", "whole step"], ["F", "selected operation"],
  ["C", "critical path"], ["/", "search"], ["Enter, Shift+Enter in the search", "match after, before"], ["Escape", "clear"],
  ["Ctrl and wheel", "zoom"], ["drag, Shift and wheel", "move"], ["double click", "zoom in"], ["?", "these keys"],
];

class Page {
  constructor(runs) {
    this.runs = runs;
    this.colours = new Colours();
    this.theme(matchMedia("(prefers-color-scheme: dark)").matches);
    byId("headline").replaceChildren(...runs.map((run) => headline(run, labelOf(runs, run))));
    byId("notices").replaceChildren(...runs.flatMap((run) => notices(run)));
    byId("keys").append(element("dl", {}, ...KEYS.map(([key, what]) => element("div", {}, element("kbd", {}, key), ` ${what}`))));
  }

  /** Show what needs the operations. */
  start() {
    const places = Object.fromEntries(["summary", "timeline", "tables"].map((name) => [name, byId(name)]));
    this.explorer = new Explorer(places, this.runs, this.colours);
    this.listen();
  }

  get timeline() { return this.explorer.timeline; }

  theme(dark) {
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    byId("theme").setAttribute("aria-pressed", String(dark));
    this.colours.refresh();
    this.explorer?.recolour();
  }

  help() {
    byId("keys").hidden = !byId("keys").hidden;
    byId("help").setAttribute("aria-expanded", String(!byId("keys").hidden));
  }

  listen() {
    const click = { theme: () => this.theme(document.documentElement.dataset.theme !== "dark"), download: () => saveTrace(this.runs),
      perfetto: () => openInPerfetto(this.runs), help: () => this.help() };
    for (const [name, act] of Object.entries(click)) byId(name).addEventListener("click", act);
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
