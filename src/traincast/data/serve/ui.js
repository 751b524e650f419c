// What every view is made of: elements, whose text is never markup, words with their meaning, menus, dialogs, messages.

const TIP_MS = 180;
const SVG = "http://www.w3.org/2000/svg";
const PATHS = {
  undo: "M9 7 4 12l5 5M4 12h10a6 6 0 0 1 6 6v1", redo: "m15 7 5 5-5 5M20 12H10a6 6 0 0 0-6 6v1",
  share: "M10 14a4 4 0 0 0 6 .5l3-3a4 4 0 0 0-6-6l-1 1M14 10a4 4 0 0 0-6-.5l-3 3a4 4 0 0 0 6 6l1-1",
  file: "M12 4v11m-5-5 5 5 5-5M5 20h14", theme: "M12 4a8 8 0 1 0 0 16V4Z M12 4a8 8 0 0 1 0 16",
  help: "M9 9a3 3 0 1 1 4 2.8c-.8.4-1 1-1 2M12 17.5v.1", close: "m6 6 12 12M18 6 6 18", paste: "M9 5H6v15h12V5h-3M9 3h6v4H9z",
  more: "m6 9 6 6 6-6", add: "M12 5v14M5 12h14", copy: "M9 9h10v11H9zM5 15V4h10", search: "M11 5a6 6 0 1 0 0 12 6 6 0 0 0 0-12m4.5 10.5L20 20",
};
const WORDS = new Map();

/** Make an element: attributes by name, `on...` are listeners, `class`; children are elements or texts, lists of them, or nothing. */
export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** Make an element of a picture. */
export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "style") for (const [property, set] of Object.entries(value)) made.style.setProperty(property, set);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** Put children into an element in place of what it has; where nothing differs it is left alone. */
export function put(root, ...children) {
  root.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return root;
}

/** Write a text into an element only where it differs, so that screen readers hear changes alone. */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A picture of 20 by 20 that says nothing to screen readers: its button does. */
export function icon(name) {
  return svg("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true", focusable: "false" }, svg("path", { d: PATHS[name] }));
}

/** A button with a text, or with an icon and a name that shows on hover. */
export function button(text, onclick, { symbol = null, ...attributes } = {}) {
  if (!symbol) return el("button", { type: "button", onclick, ...attributes }, text);
  return el("button", { type: "button", onclick, class: "round", "aria-label": text, "data-tip": text, ...attributes }, icon(symbol));
}

const spelled = (text) => text.toLowerCase().replaceAll("_", " ");

/** Learn the words of the glossary: a record of word and meaning. */
export function learnWords(glossary) {
  for (const [words, meaning] of Object.entries(glossary ?? {})) WORDS.set(spelled(words), meaning);
}

/** A word with its explanation on hover, focus or tap; plain text where the glossary does not have it. */
export function word(text, of = text) {
  const meaning = WORDS.get(spelled(of));
  return meaning ? el("button", { type: "button", class: "word", "data-tip": meaning }, text) : el("span", {}, text);
}

/** A part of a view: a title, tools on its right, and its content. */
export function card(title, { tools = [], id = null, wide = false, note = null } = {}, ...children) {
  const named = id ?? `card-${title.toLowerCase().replace(/[^a-z]+/g, "-")}`;
  const head = el("div", { class: "card-head" }, el("h2", { id: `${named}-title` }, title), el("div", { class: "card-tools" }, tools));
  return el("section", { class: wide ? "card wide" : "card", id: named, "aria-labelledby": `${named}-title` },
    head, note ? el("p", { class: "hint" }, note) : null, children);
}

/** What is seen where there is nothing yet: what to do. */
export function empty(title, what, ...actions) {
  return el("div", { class: "empty" }, el("p", { class: "empty-title" }, title), el("p", {}, what), el("p", { class: "row" }, actions));
}

const LONG_LIST = /known: (?:[^,;]+, ){12}[^;]*/; // the field itself offers them

/** A message without names by the dozen. */
export const inBrief = (message) => message.replace(LONG_LIST, "type there to search those that are known");

/** What is wrong, without what to do about it, which is said on a line of its own. */
export const whatIsWrong = ({ message, hint }) => (hint && message.endsWith(`; ${hint}`) ? message.slice(0, -hint.length - 2) : message);

/** An error as people can use it: what, then each thing to know about it on a line, then what to do. */
export function failure(said, ...actions) {
  const error = { ...said, message: inBrief(said.message), hint: inBrief(said.hint ?? "") };
  const [first, ...rest] = whatIsWrong(error).split("; ");
  const [, title, why] = first.match(/^(.+?) \((.+)\)$/) ?? [null, first, null];
  const lines = [why, ...rest, error.where && !error.message.includes(error.where) ? error.where : null, error.hint].filter(Boolean);
  return el("div", { class: "failure", role: "alert" }, el("div", { class: "failure-said" }, el("p", { class: "empty-title" }, sentence(title, "")),
    lines.map((line) => el("p", {}, sentence(line)))), el("p", { class: "row" }, actions));
}

const sentence = (text, end = ".") => `${text[0].toUpperCase()}${text.slice(1)}${end && !/[.!?]$/.test(text) ? end : ""}`;

/** A coloured square before a name of a part. */
export const chip = (colour) => el("span", { class: "chip", "aria-hidden": "true", style: { background: colour } });

/** Say something at the foot of the page for a few seconds, also to screen readers. */
export function toast(text, { action = null, wrong = false } = {}) {
  const root = document.getElementById("toasts");
  const close = () => made.remove();
  const made = el("div", { class: wrong ? "toast wrong" : "toast", role: wrong ? "alert" : "status" }, el("span", {}, text),
    action ? button(action.text, () => { close(); action.run(); }, { class: "link" }) : null,
    button("Close", close, { symbol: "close" }));
  while (root.childElementCount > 2) root.firstChild.remove();
  root.append(made);
  setTimeout(close, wrong ? 12000 : 6000);
}

let menus = 0;

/** A button that opens a list of actions: `items()` gives `{text, run, hint}` or null for a line. */
export function menu(text, items, { symbol = null, ...attributes } = {}) {
  const id = `menu-${++menus}`;
  const list = el("div", { id, class: "menu", role: "menu", popover: "auto", "aria-label": text });
  const opener = button(text, null, { symbol, "aria-haspopup": "menu", "aria-expanded": "false", popovertarget: id, ...attributes });
  if (!symbol) opener.append(icon("more"));
  const entry = (item) => item === null ? el("hr", { role: "separator" })
    : el("button", { type: "button", role: "menuitem", tabindex: "-1", onclick: () => { list.hidePopover(); opener.focus(); item.run(); } },
      item.text, item.hint ? el("small", {}, item.hint) : null);
  list.addEventListener("toggle", (event) => {
    const open = event.newState === "open";
    opener.setAttribute("aria-expanded", String(open));
    if (open) list.querySelector("[role=menuitem]")?.focus();
  });
  list.addEventListener("beforetoggle", (event) => {
    if (event.newState !== "open") return;
    put(list, items().map(entry));
    requestAnimationFrame(() => place(list, opener));
  });
  list.addEventListener("keydown", (event) => rove(event, [...list.querySelectorAll("[role=menuitem]")]));
  return el("span", { class: "menu-of" }, opener, list);
}

/** Move the focus with the arrow keys, Home and End among elements. */
export function rove(event, among) {
  const at = among.indexOf(document.activeElement);
  const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
  const to = event.key === "Home" ? 0 : event.key === "End" ? among.length - 1 : step ? (at + step + among.length) % among.length : null;
  if (to === null || !among.length) return null;
  event.preventDefault();
  among[to].focus();
  return among[to];
}

/** Place something that floats below what it belongs to, within the window. */
export function place(floating, anchor) {
  const near = anchor.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = floating;
  const left = Math.max(8, Math.min(near.left, innerWidth - width - 8));
  const below = near.bottom + 6;
  const top = below + height > innerHeight - 8 && near.top > height + 8 ? near.top - height - 6 : below;
  Object.assign(floating.style, { left: `${left}px`, top: `${Math.max(8, top)}px` });
}

/** Open a dialog with a title; `content` gets a function that closes it. */
export function dialog(title, content) {
  const made = el("dialog", { class: "dialog", "aria-label": title });
  const close = () => made.close();
  made.append(el("div", { class: "card-head" }, el("h2", {}, title), button("Close", close, { symbol: "close", "data-tip": null })), ...[content(close)].flat());
  made.addEventListener("close", () => made.remove());
  made.addEventListener("click", (event) => { if (event.target === made) close(); });
  document.body.append(made);
  made.showModal();
  return made;
}

/** Hand a file to the person. */
export function download(name, content, type = "text/plain;charset=utf-8") {
  const address = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  const link = el("a", { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

/** Copy a text; where the browser does not let us, show it to be copied by hand. */
export async function copy(text, said) {
  try {
    await navigator.clipboard.writeText(text);
    toast(said);
  } catch {
    dialog("Copy this", () => el("textarea", { class: "paste", readonly: true, rows: "6", "aria-label": "Text to copy", onfocus: (event) => event.target.select() }, text));
  }
}

/** Say something to screen readers alone. */
export const speak = (text) => write(document.getElementById("spoken"), text);

/** Show explanations (`data-tip`) on hover, focus and tap; Escape takes them away. */
export function watchTips() {
  const tip = el("div", { id: "tip", role: "tooltip", popover: "manual" });
  document.body.append(tip);
  let of = null;
  let soon = null;
  const hide = () => { clearTimeout(soon); of?.removeAttribute("aria-describedby"); of = null; if (tip.matches(":popover-open")) tip.hidePopover(); };
  const show = (target, after = TIP_MS) => {
    if (target === of) return;
    hide();
    of = target;
    soon = setTimeout(reveal, after, target);
  };
  const reveal = (target) => {
    if (!target.isConnected) return;
    tip.textContent = target.dataset.tip;
    if (target.getAttribute("aria-label") !== target.dataset.tip) target.setAttribute("aria-describedby", "tip");
    tip.showPopover();
    place(tip, target);
  };
  const tipped = (event) => event.target.closest?.("[data-tip]");
  document.addEventListener("pointerover", (event) => (tipped(event) ? show(tipped(event)) : hide()));
  document.addEventListener("focusin", (event) => { if (tipped(event)?.matches(":focus-visible")) show(tipped(event)); else hide(); });
  document.addEventListener("focusout", hide);
  document.addEventListener("scroll", hide, { capture: true, passive: true });
  document.addEventListener("click", (event) => { const target = tipped(event); if (target?.matches(".word")) show(target, 0); else hide(); });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
}
