"use strict";
// Before anything is drawn: the theme that was chosen on this machine, else that of the system.
{
  let chosen = null;
  try { chosen = localStorage.getItem("traincast-theme"); } catch { /* no storage: the theme of the system */ }
  const dark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}
