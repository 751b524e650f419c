// The paste box: flags, a recipe, a TOML or a config.json fill the form; what was not understood is said.

import { labelOf } from "./fields.js";
import { button, dialog, el, failure, put, toast } from "./ui.js";

const MOST_BYTES = 1 << 20;
const TYPED = "input, textarea, select, [contenteditable]";

/** Read what is pasted or dropped anywhere on the page, where the view does not take files itself. */
export function watchPastes(app) {
  const takes = (event) => app.state.view !== "explain" && !event.target.closest?.(TYPED) && !document.querySelector("dialog[open]");
  document.addEventListener("paste", (event) => {
    const text = event.clipboardData.getData("text/plain");
    if (takes(event) && text.trim()) openPaste(app, { text });
  });
  document.addEventListener("dragover", (event) => { if (app.state.view !== "explain") event.preventDefault(); });
  document.addEventListener("drop", async (event) => {
    if (app.state.view === "explain") return;
    event.preventDefault();
    const [file] = event.dataTransfer.files;
    if (!file) return;
    if (file.size > MOST_BYTES) return toast(`${file.name} is not a description of a job: it is too large. Runs are read by Explain.`, { wrong: true });
    openPaste(app, { text: await file.text(), name: file.name });
  });
}

/** Open the box; what it reads becomes the job at hand. A text that is given is read at once. */
export function openPaste(app, { text: given = "", name: named = null } = {}) {
  dialog("Paste a job", (close) => {
    const text = el("textarea", { class: "paste", rows: "11", autofocus: true, spellcheck: "false", "aria-label": "Flags, recipe, TOML or config.json",
      placeholder: "--num-layers 80 --hidden-size 8192 --tensor-model-parallel-size 8 ..." }, given);
    const answer = el("div", { "aria-live": "polite" });
    const read = button("Fill the form", () => readInto(app, text.value, null, answer, close), { class: "main" });
    const file = el("input", { type: "file", hidden: true, onchange: async () => {
      const [chosen] = file.files;
      if (!chosen) return;
      text.value = await chosen.text();
      await readInto(app, text.value, chosen.name, answer, close);
    } });
    if (given) readInto(app, given, named, answer, close);
    text.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) read.click(); });
    return [
      el("p", { class: "hint" }, "Megatron-LM flags or a whole launch script, a torchtitan TOML, a NeMo, Bridge or DeepSpeed recipe, a Hugging Face config.json, a job file, or a traincast command line."),
      text, el("div", { class: "row end" }, file, button("Open a file…", () => file.click()), read), answer,
    ];
  });
}

async function readInto(app, text, name, answer, close) {
  if (!text.trim()) return put(answer, el("p", { class: "hint" }, "Paste something first."));
  try {
    const found = await app.server.ask("/api/read", name ? { text, name } : { text }, { slot: "read" });
    if (!found) return;
    // A config.json says a model alone: what the form has beyond it stays.
    const whole = Object.keys(found.job).length > 2;
    app.replaceJob(whole ? found.job : { ...app.job, ...found.job });
    const missed = found.not_understood ?? [];
    const next = found.missing ? ` Next: ${labelOf(found.missing)}.` : "";
    const undo = { text: "Undo", run: () => app.store.undo() };
    const leave = () => { close(); if (found.missing) app.focusField(found.missing); };
    if (!missed.length) { leave(); return toast(`${found.what}: the form is filled.${next}`, { action: undo }); }
    put(answer, el("p", { class: "note" }, `${found.what}: the form is filled.${next} ${missed.length} not understood, and left out:`),
      el("ul", { class: "missed" }, missed.map((each) => el("li", {}, el("code", {}, each.text), " ", el("span", { class: "hint" }, each.why)))),
      el("div", { class: "row end" }, button("Done", leave, { class: "main" })));
  } catch (error) {
    put(answer, failure(error));
  }
}
