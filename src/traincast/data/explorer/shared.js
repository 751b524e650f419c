"use strict";
// What every page has: elements, whose text is never markup, and quantities with their units.

/** Make an element: attributes by name, children as elements or texts; `on...` are listeners. */
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "colour") made.style.background = value;
    else if (key === "width") made.style.width = value;
    else made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Return an element of a picture. */
function svg(name, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** Write a time with the unit that fits it. */
function time(seconds) {
  const size = Math.abs(seconds);
  if (size === 0) return "0 s";
  const [unit, factor] = size >= 1 ? ["s", 1] : size >= 1e-3 ? ["ms", 1e3] : size >= 1e-6 ? ["us", 1e6] : ["ns", 1e9];
  return `${Number((seconds * factor).toPrecision(4))} ${unit}`;
}

/** Write a size in binary units, as the terminal does. */
function bytes(size) {
  for (const [unit, factor] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (size >= factor) return `${Number((size / factor).toPrecision(3))} ${unit}`;
  }
  return `${size} B`;
}

const count = (number) => Math.round(number).toLocaleString("en");
const share = (part, whole) => (whole ? `${(100 * part / whole).toFixed(1)} %` : "");
const spaced = (name) => name.replaceAll("_", " ");
const byId = (name) => document.getElementById(name);
