// The tools of the page: undo, share, files, theme, and the keys that do the same.

import { openPaste } from "./paste.js";
import { sound } from "./state.js";
import { button, copy, dialog, download, el, menu, put, toast } from "./ui.js";

const THEMES = [["auto", "As the system"], ["light", "Light"], ["dark", "Dark"]];
const THEME_KEY = "traincast-theme";
const EXPORTS = [
  { as: "job.toml", title: "Job file", hint: "job.toml, for traincast predict job.toml" },
  { as: "command", title: "Command line", hint: "traincast predict ..." },
  { as: "python", title: "Python", hint: "the same forecast in a script" },
  { as: "result.json", title: "Result", hint: "traincast.result/1 as JSON" },
  { as: "csv", title: "Parts and memory", hint: "CSV" },
  { as: "svg", title: "Picture of the step", hint: "SVG, every stage" },
  { as: "megatron", title: "Megatron-LM flags" },
  { as: "bridge", title: "Megatron Bridge recipe" },
  { as: "torchtitan", title: "torchtitan TOML" },
];
const KEYS = [
  ["1 2 3 4", "Forecast, Plan, Compare, Explain"], ["/", "find a setting"], ["p or Ctrl V", "paste flags, a recipe or a config.json"],
  ["u or Ctrl Z", "undo"], ["r or Ctrl Shift Z", "redo"], ["l", "copy a link to this page as it is"], ["d", "duplicate the scenario"],
  ["t", "next theme"], ["s", "save the scenarios"], ["o", "open saved scenarios"], ["?", "this list"], ["Esc", "close what is open"],
];

/** Fill the toolbar. */
export function toolbar(root, app) {
  const undo = button("Undo", () => app.store.undo(), { symbol: "undo", "aria-keyshortcuts": "Control+Z" });
  const redo = button("Redo", () => app.store.redo(), { symbol: "redo", "aria-keyshortcuts": "Control+Shift+Z" });
  const able = () => { undo.disabled = !app.store.past.length; redo.disabled = !app.store.future.length; };
  app.store.listeners.add(able);
  able();
  put(root, undo, redo,
    button("Paste flags, a recipe or a config.json", () => openPaste(app), { symbol: "paste" }),
    button("Copy a link", () => share(app), { symbol: "share" }),
    menu("Save and export", () => files(app), { symbol: "file" }),
    menu("Theme", () => THEMES.map(([name, text]) => ({ text: `${themeOf() === name ? "✓ " : ""}${text}`, run: () => setTheme(app, name) })), { symbol: "theme" }),
    button("Keys", showKeys, { symbol: "help" }));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (themeOf() === "auto") setTheme(app, "auto"); });
}

function files(app) {
  return [
    { text: "Save scenarios", hint: "all of them and the view, as a file", run: () => save(app) },
    { text: "Open scenarios…", run: () => open(app) },
    null,
    ...(app.about.exports ?? EXPORTS).map((each) => ({ text: each.title, hint: each.hint, run: () => exportJob(app, each.as) })),
  ];
}

/** Write the job at hand in a form that another program reads, and hand over the file. */
export async function exportJob(app, as) {
  try {
    const answer = await app.server.ask("/api/export", { job: app.job, as });
    const name = answer.name ?? `traincast.${as}`;
    if (as === "command") return await copy(answer.text, "The command line is copied.");
    download(name, answer.text);
    toast(`${name} is saved.`);
  } catch (error) {
    toast([error.message, error.hint].filter(Boolean).join(" "), { wrong: true });
  }
}

/** Copy the address of the page with its whole state. */
export async function share(app) {
  const { encode } = await import("./state.js");
  const address = new URL(location.href);
  address.search = "";
  address.hash = await encode(app.state);
  await copy(address.href, "The link is copied: it holds the whole state of this page.");
}

function save(app) {
  download("scenarios.traincast.json", `${JSON.stringify({ schema: "traincast.scenarios/1", ...app.state }, null, 1)}\n`, "application/json");
}

function open(app) {
  const input = el("input", { type: "file", accept: ".json,application/json" });
  input.addEventListener("change", async () => {
    const [file] = input.files;
    if (file) openScenarios(app, file.name, await file.text());
  });
  input.click();
}

/** Take over the scenarios of a saved file, or say why not. */
export function openScenarios(app, name, text) {
  let found = null;
  try { found = sound(JSON.parse(text)); } catch { /* said below */ }
  if (!found) return toast(`${name} holds no scenarios: open a file that "Save scenarios" wrote.`, { wrong: true });
  app.update(found);
  toast(`${found.scenarios.length} scenarios of ${name} are open.`, { action: { text: "Undo", run: () => app.store.undo() } });
}

function themeOf() {
  try { return localStorage.getItem(THEME_KEY) ?? "auto"; } catch { return "auto"; }
}

function setTheme(app, name) {
  try {
    if (name === "auto") localStorage.removeItem(THEME_KEY);
    else localStorage.setItem(THEME_KEY, name);
  } catch { /* no storage: the theme holds until the page goes */ }
  const dark = name === "auto" ? matchMedia("(prefers-color-scheme: dark)").matches : name === "dark";
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  app.emit("theme");
}

function nextTheme(app) {
  const at = THEMES.findIndex(([name]) => name === themeOf());
  const [name, text] = THEMES[(at + 1) % THEMES.length];
  setTheme(app, name);
  toast(`Theme: ${text.toLowerCase()}.`);
}

function showKeys() {
  dialog("Keys", () => el("dl", { class: "keys" }, KEYS.map(([keys, what]) => [
    el("dt", {}, keys.split(" ").map((key) => (key === "or" ? " or " : el("kbd", {}, key)))), el("dd", {}, what),
  ])));
}

const typing = (target) => target.matches?.("input, textarea, select, [contenteditable]");

/** Let every tool be reached by a key; while someone types into a field, keys are text. */
export function watchKeys(app) {
  const views = ["forecast", "plan", "compare", "explain"];
  const actions = {
    "/": () => document.getElementById("find-setting")?.focus(), p: () => openPaste(app), u: () => app.store.undo(), r: () => app.store.redo(),
    l: () => share(app), d: () => app.addScenario(app.job), t: () => nextTheme(app), s: () => save(app), o: () => open(app), "?": showKeys,
  };
  document.addEventListener("keydown", (event) => {
    if (document.querySelector("dialog[open]")) return;
    const command = event.ctrlKey || event.metaKey;
    if (command && event.key.toLowerCase() === "z" && !typing(event.target)) {
      event.preventDefault();
      return event.shiftKey ? app.store.redo() : app.store.undo();
    }
    if (command || event.altKey || typing(event.target) || event.target.closest?.("[role=application]")) return;
    const view = views[Number(event.key) - 1];
    const action = view ? () => app.go(view) : Object.hasOwn(actions, event.key) ? actions[event.key] : null;
    if (!action) return;
    event.preventDefault();
    action();
  });
}
