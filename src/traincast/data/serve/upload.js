// Files and folders that are dropped or picked, with their paths as labels; limits are the server's to set, and told early.

import { button, el, toast } from "./ui.js";

const MOST_FILES = 4096;

/** Return the files of what was dropped, those of folders with their paths. */
async function dropped({ items, files }) {
  const entries = [...items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.length) return labelled(files);
  const found = [];
  for (const entry of entries) await walk(entry, found);
  return found;
}

/** Collect the files below an entry of a file system. */
async function walk(entry, found) {
  if (found.length >= MOST_FILES) return;
  if (entry.isFile) {
    const file = await new Promise((done, failed) => entry.file(done, failed));
    found.push({ file, label: entry.fullPath.replace(/^\//, "") });
    return;
  }
  const reader = entry.createReader();
  for (;;) {
    const some = await new Promise((done, failed) => reader.readEntries(done, failed));
    if (!some.length) return;
    for (const each of some) await walk(each, found);
  }
}

const labelled = (files) => [...files].map((file) => ({ file, label: file.webkitRelativePath || file.name }));

/** A place to drop files on, with buttons for those who do not drag; `take(files)` gets `{file, label}` of each. */
export class DropPlace {
  constructor(take) {
    this.take = (files) => this.handOn(files, take);
    const pick = (folder) => {
      const input = el("input", { type: "file", multiple: true, webkitdirectory: folder });
      input.addEventListener("change", () => this.take(labelled(input.files)));
      input.click();
    };
    this.root = el("div", { class: "drop", role: "group", "aria-label": "Files to explain" },
      el("p", { class: "empty-title" }, "Drop a run here"),
      el("p", { class: "hint" }, "a trace, a workload, a training log or a result.json; several rank files or their folder are one run. Nothing leaves this machine."),
      el("p", { class: "row" }, button("Choose files…", () => pick(false), { class: "main" }), button("Choose a folder…", () => pick(true))));
    this.listen();
  }

  /** Files may be dropped anywhere on a view. */
  over(view) {
    const has = (event) => event.dataTransfer?.types.includes("Files");
    view.addEventListener("dragover", (event) => { if (has(event)) { event.preventDefault(); this.root.classList.add("near"); } });
    view.addEventListener("dragleave", (event) => { if (!view.contains(event.relatedTarget)) this.root.classList.remove("near"); });
    view.addEventListener("drop", async (event) => {
      if (!has(event)) return;
      event.preventDefault();
      this.root.classList.remove("near");
      this.take(await dropped(event.dataTransfer));
    });
  }

  /** What is pasted as a file is taken, too. */
  listen() {
    this.root.tabIndex = -1;
    this.root.addEventListener("paste", (event) => { if (event.clipboardData.files.length) this.take(labelled(event.clipboardData.files)); });
  }

  handOn(files, take) {
    const some = files.filter(({ label }) => !label.split("/").some((part) => part.startsWith(".")));
    if (!some.length) return toast("There was no file in it: drop traces, a workload, a log or a result.json.", { wrong: true });
    if (some.length > MOST_FILES) return toast(`${some.length} files are too many: drop at most ${MOST_FILES}.`, { wrong: true });
    take(some);
  }
}

/** POST files with their labels, and tell how far the upload is; returns `{answer, abort}`. */
export function send(server, path, files, tell, words = {}) {
  const form = new FormData();
  for (const [name, value] of Object.entries(words)) form.append(name, value);
  for (const { file, label } of files) form.append("files", file, label);
  const request = new XMLHttpRequest();
  const answer = new Promise((done, failed) => {
    request.upload.addEventListener("progress", (event) => { if (event.lengthComputable) tell(event.loaded / event.total); });
    request.addEventListener("load", () => {
      const said = request.response ?? {};
      if (request.status >= 200 && request.status < 300) done(said);
      else failed({ message: `The server answered ${request.status}.`, ...said.error });
    });
    request.addEventListener("error", () => failed({ message: "The server does not answer. Start it again with: traincast serve" }));
    request.addEventListener("abort", () => failed({ message: "The upload was stopped." }));
  });
  request.open("POST", path);
  request.responseType = "json";
  for (const [name, value] of Object.entries(server.headers())) request.setRequestHeader(name, value);
  request.send(form);
  return { answer, abort: () => request.abort() };
}
