// A field with suggestions: type to search, arrow keys and Enter to choose; free text stays allowed.

import { el, place, put } from "./ui.js";

const MOST_SHOWN = 60;
let made = 0;

/** Make a combobox as the ARIA pattern says it; `chosen(value)` is called when a value is settled. */
export class Combobox {
  constructor(options, chosen, attributes = {}) {
    this.options = options;
    this.chosen = chosen;
    this.at = -1;
    const id = `options-${++made}`;
    this.list = el("ul", { id, role: "listbox", class: "menu options", popover: "manual", "aria-label": attributes["aria-label"] ?? "Choices" });
    this.input = el("input", {
      type: "text", role: "combobox", autocomplete: "off", spellcheck: "false", "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": id,
      ...attributes, oninput: () => { this.open(); }, onfocus: () => this.input.select(), onclick: () => this.open(true), onkeydown: (event) => this.key(event),
      onblur: () => { this.close(); this.settle(this.input.value); },
    });
    this.root = el("div", { class: "combobox" }, this.input, this.list);
    this.list.addEventListener("pointerdown", (event) => {
      event.preventDefault(); // the focus stays in the field
      const option = event.target.closest("[role=option]");
      if (option) this.take(option.dataset.value);
    });
  }

  get isOpen() { return this.list.matches(":popover-open"); }

  found(all) {
    const words = all ? [] : this.input.value.toLowerCase().split(/[\s_-]+/).filter(Boolean);
    const rank = ({ value }) => (value.toLowerCase().startsWith(this.input.value.toLowerCase()) ? 0 : 1);
    const fits = this.options.filter(({ value, hint }) => words.every((word) => `${value} ${hint}`.toLowerCase().includes(word)));
    return words.length ? fits.sort((a, b) => rank(a) - rank(b)) : fits;
  }

  open(all = false) {
    const found = this.found(all);
    this.at = -1;
    const entries = found.slice(0, MOST_SHOWN).map(({ value, hint }, at) => el("li", {
      role: "option", id: `${this.list.id}-${at}`, "data-value": value, "aria-selected": String(value === this.input.value),
    }, el("span", {}, value), hint ? el("small", {}, hint) : null));
    const more = found.length - MOST_SHOWN;
    put(this.list, entries, more > 0 ? el("li", { class: "hint", role: "presentation" }, `and ${more} more: type to search`) : null,
      found.length ? null : el("li", { class: "hint", role: "presentation" }, "Nothing of this name is known."));
    if (!this.isOpen) this.list.showPopover();
    this.list.style.width = `${Math.max(this.input.offsetWidth, 260)}px`;
    place(this.list, this.input);
    this.input.setAttribute("aria-expanded", "true");
    this.input.removeAttribute("aria-activedescendant");
    const selected = this.list.querySelector("[aria-selected=true]");
    if (all && selected) selected.scrollIntoView({ block: "nearest" });
  }

  close() {
    if (this.isOpen) this.list.hidePopover();
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
  }

  key(event) {
    const options = [...this.list.querySelectorAll("[role=option]")];
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (!this.isOpen) return this.open(true);
      this.mark(options, (this.at + (event.key === "ArrowDown" ? 1 : -1) + options.length) % options.length);
    } else if (event.key === "Enter") {
      const isSaid = this.isKnown || this.input.value.includes("="); // what says NAME=VALUE searches for nothing
      const only = this.isOpen && this.at < 0 && options.length && !isSaid ? options[0] : options[this.at];
      this.take(this.isOpen && only ? only.dataset.value : this.input.value);
    } else if (event.key === "Escape" && this.isOpen) {
      event.stopPropagation();
      this.close();
    }
  }

  get isKnown() { return this.options.some(({ value }) => value === this.input.value.trim()); }

  mark(options, at) {
    if (!options.length) return;
    options[this.at]?.classList.remove("at");
    this.at = at;
    options[at].classList.add("at");
    options[at].scrollIntoView({ block: "nearest" });
    this.input.setAttribute("aria-activedescendant", options[at].id);
  }

  take(value) {
    this.input.value = value;
    this.close();
    this.settle(value);
  }

  settle(value) { this.chosen(value.trim()); }
}
