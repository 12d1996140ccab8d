"use strict";
(() => {
  const root = document.documentElement;

  // Light and dark: the system's choice until the button is used; then remembered, where that is allowed.
  const store = (value) => {
    try { return value ? localStorage.setItem("fedrows-theme", value) : localStorage.getItem("fedrows-theme"); }
    catch { return null; }
  };
  const saved = store();
  if (saved === "light" || saved === "dark") root.dataset.theme = saved;
  const theme = document.getElementById("theme");
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const now = root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    store(root.dataset.theme);
  });
})();
