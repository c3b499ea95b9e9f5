// The button that changes between light and dark.

import { h } from "./dom.js";

export function themeButton() {
  const root = document.documentElement;
  const isDark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const node = h("button.plain.theme", { type: "button", "aria-label": "Change between light and dark" }, isDark() ? "☾" : "☀");
  node.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    localStorage.setItem("scrubjay-theme", root.dataset.theme);
    node.textContent = isDark() ? "☾" : "☀";
  });
  return node;
}
