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

  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const figures = read("figures-data");
  const runs = read("runs-data");
  const tip = document.getElementById("tip");
  const make = (name, attributes = {}, ...inside) => {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...inside);
    return node;
  };
  const draw = (name, attributes, ...inside) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...inside);
    return node;
  };
  const show = (v) => {
    if (v === null || v === undefined) return "–";
    const size = Math.abs(v);
    if (size !== 0 && (size >= 1e7 || size < 1e-3)) return v.toExponential(3);
    return Number.isInteger(v) ? v.toLocaleString("en") : size >= 1e4 ? Math.round(v).toLocaleString("en") : v.toPrecision(4);
  };

  // Copying: the clipboard where the browser lends it, else the old way.
  const copy = async (text, button) => {
    try { await navigator.clipboard.writeText(text); }
    catch {
      const area = make("textarea", { readonly: "" }, text);
      button.after(area);
      area.select();
      document.execCommand("copy");
      area.remove();
      button.focus();
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  };
  const copies = (button) => {
    button.hidden = false;
    button.addEventListener("click", () => copy(button.parentElement.querySelector("code").textContent, button));
    return button;
  };
  document.querySelectorAll("[data-copy]").forEach(copies);

  // The runs behind a number or a curve.
  const dialog = document.getElementById("behind");
  const runNode = ([id, command, settings], alone) => {
    const seed = settings.find(([key]) => key === "seed");
    const node = make("details", alone ? { open: "" } : {}, make("summary", {}, `Run ${id}`, seed ? make("code", {}, ` seed ${seed[1]}`) : ""));
    const link = make("a", { href: `#run-${encodeURIComponent(id)}` }, "Link to this run");
    if (command) {
      const box = make("div", { class: "command" }, make("pre", { tabindex: "0" }, make("code", {}, command)), make("button", { type: "button" }, "Copy"));
      copies(box.lastChild);
      node.append(box);
    }
    if (settings.length) {
      node.append(make("dl", { class: "pairs" }, ...settings.map(([key, value]) => make("div", value.length > 36 ? { class: "long" } : {}, make("dt", {}, key), make("dd", {}, value)))));
    } else if (!command) node.append(make("p", { class: "note" }, "This run’s own file is not at hand."));
    node.append(make("p", { class: "note" }, link));
    return node;
  };
  const openRuns = (places, title) => {
    if (!places.length) return;
    document.getElementById("behind-title").textContent = title;
    const nodes = places.map((place) => runNode(runs[place], places.length === 1));
    nodes[0].open = true;
    document.getElementById("behind-runs").replaceChildren(...nodes);
    tip.hidden = true;
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
  };
  const titleOf = (node) => {
    const curve = node.closest(".entry")?.querySelector("[data-toggle]");
    if (curve) return `${curve.textContent.trim()}: ${node.closest("figure").querySelector("h3").textContent}`;
    if (node.closest("table.runs")) return "Run";
    const row = node.closest("tr");
    const name = row.querySelector("th").firstElementChild?.textContent ?? row.querySelector("th").textContent;
    const column = node.closest("table").querySelectorAll("thead th")[node.closest("td, th").cellIndex].textContent;
    return `${name.trim()}, ${column}: ${node.textContent.trim()}`;
  };
  document.addEventListener("click", (event) => {
    const node = event.target.closest("[data-runs]");
    if (node) openRuns(node.dataset.runs.split(" ").map(Number), titleOf(node));
    if (event.target === dialog) dialog.close(); // outside of it, on the backdrop
  });
  document.getElementById("close").addEventListener("click", () => dialog.close());
  const fromAddress = () => {
    const wanted = decodeURIComponent(location.hash);
    if (!wanted.startsWith("#run-")) return;
    const place = runs.findIndex(([id]) => id === wanted.slice(5));
    if (place >= 0) openRuns([place], "Run");
  };
  addEventListener("hashchange", fromAddress);

  // Figures: the legend, the values at the pointer, the download.
  const csvField = (v) => {
    const text = v === null || v === undefined ? "" : String(v);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const csvOf = (figure) => {
    const rows = [["panel", "curve", "kind", "x", "y", "low", "high", "runs"]];
    for (const panel of figure.panels) {
      for (const [k, kind, x, y, low, high, made] of panel.curves) {
        const ids = made.map((place) => runs[place][0]).join(" ");
        y.forEach((value, i) => rows.push([panel.title, figure.names[k], kind, figure.xs[x][i], value, low[i], high[i], ids]));
      }
    }
    return rows.map((row) => row.map(csvField).join(",")).join("\n") + "\n";
  };
  // A legend is that of the nearest element around it that has data-legend: a figure, or a whole report.
  const hidden = new Map([...document.querySelectorAll("[data-legend]")].map((scope) => [scope, new Set()]));
  for (const [scope, off] of hidden) {
    const inside = (selector) => [...scope.querySelectorAll(selector)].filter((node) => node.closest("[data-legend]") === scope);
    for (const button of inside("[data-toggle]")) {
      const key = Number(button.dataset.toggle);
      const own = inside(`.series[data-k="${key}"]`);
      const light = (on) => {
        scope.classList.toggle("dim", on && !off.has(key));
        own.forEach((g) => g.classList.toggle("lit", on));
      };
      button.addEventListener("click", () => {
        if (!off.delete(key)) off.add(key);
        button.setAttribute("aria-pressed", String(!off.has(key)));
        own.forEach((g) => g.classList.toggle("off", off.has(key)));
        light(false);
      });
      button.addEventListener("pointerenter", (e) => e.pointerType === "mouse" && light(true));
      button.addEventListener("pointerleave", () => light(false));
    }
  }
  for (const node of document.querySelectorAll("[data-figure]")) {
    const figure = figures[node.dataset.figure];
    for (const download of node.querySelectorAll("[data-csv]")) {
      download.hidden = false;
      download.addEventListener("click", () => {
        const address = URL.createObjectURL(new Blob([csvOf(figure)], { type: "text/csv" }));
        const link = make("a", { href: address, download: `${node.dataset.figure}.csv` });
        link.click();
        setTimeout(() => URL.revokeObjectURL(address), 10000);
      });
    }
    const off = hidden.get(node.closest("[data-legend]"));
    node.querySelectorAll("[data-panel]").forEach((box) => {
      if (box.querySelector(".chart")) chartOf(box, figure, figure.panels[Number(box.dataset.panel)], off);
    });
  }

  function chartOf(box, figure, panel, off) {
    const chart = box.querySelector(".chart");
    const cursor = chart.querySelector(".cursor");
    const [alongX, alongY] = JSON.parse(chart.dataset.axes).map(([a, b, log]) => (v) => (v === null || (log && v <= 0) ? NaN : a + b * (log ? Math.log10(v) : v)));
    let curves = null; // pixels are worked out when the chart is first looked at
    let steps = []; // where the arrow keys stop: every x, or every point where x goes back and forth
    let byX = true;
    let at = -1;
    let chosen = null;
    const prepare = () => {
      curves = panel.curves.map(([k, kind, x, y, low, high, made]) => ({
        k, kind, made, name: figure.names[k], look: figure.looks[k],
        points: y.map((value, i) => ({ x: figure.xs[x][i], y: value, low: low[i], high: high[i], px: alongX(figure.xs[x][i]), py: alongY(value) }))
          .filter((p) => Number.isFinite(p.px) && Number.isFinite(p.py)),
      }));
      const own = curves.filter((c) => c.kind !== "guide");
      byX = own.every((c) => c.points.every((p, i) => i === 0 || p.x > c.points[i - 1].x));
      const source = own.some((c) => c.points.length) ? own : curves;
      steps = byX
        ? [...new Map(source.flatMap((c) => c.points.map((p) => [p.x, { x: p.x, px: p.px }]))).values()].sort((a, b) => a.px - b.px)
        : source.flatMap((c) => c.points.map((p) => ({ ...p, curve: c })));
    };
    const hide = () => { at = -1; chosen = null; cursor.replaceChildren(); tip.hidden = true; };
    // What a curve is at this x: its nearest point, inside its own range.
    const valueAt = (c, px) => {
      const first = c.points[0], last = c.points.at(-1);
      if (c.kind === "guide" && first === last) return first ? { ...first, px } : null; // a level
      if (!first || px < first.px - 2 || px > last.px + 2) return null;
      if (c.kind === "guide" && last.px > first.px) {
        const i = Math.max(1, c.points.findIndex((p) => p.px >= px));
        const [a, b] = [c.points[i - 1], c.points[i]];
        if (a.y === b.y) return { ...a, px };
      }
      let low = 0, high = c.points.length - 1;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (c.points[middle].px < px) low = middle + 1; else high = middle;
      }
      return low > 0 && px - c.points[low - 1].px < c.points[low].px - px ? c.points[low - 1] : c.points[low];
    };
    const showStep = (i, pointer) => {
      at = i;
      const step = steps[i];
      const shown = byX
        ? curves.filter((c) => !off.has(c.k)).map((c) => ({ c, p: valueAt(c, step.px) })).filter(({ p }) => p)
        : [{ c: step.curve, p: step }];
      shown.sort((a, b) => a.p.py - b.p.py);
      const { top, floor } = cursor.dataset;
      cursor.replaceChildren(draw("path", { d: `M${step.px} ${top}V${floor}` }));
      let near = chosen === null ? null : shown.find(({ c }) => c === chosen);
      if (pointer) {
        const gaps = shown.map(({ p }) => Math.hypot(p.px - pointer.x, p.py - pointer.y));
        const least = gaps.indexOf(Math.min(...gaps));
        near = gaps[least] < 30 ? shown[least] : null;
        chosen = near ? near.c : null;
      }
      const head = make("b", {}, `${panel.x}: ${panel.labels[step.x] ?? show(step.x)}`);
      tip.replaceChildren(head, ...shown.map(({ c, p }) => {
        cursor.append(draw("circle", { cx: p.px, cy: p.py, r: near && near.c === c ? 5 : 3.5, class: c.look }));
        const elsewhere = byX && Math.abs(p.px - step.px) > 2 ? ` at ${show(p.x)}` : "";
        const spread = p.low !== undefined && p.high > p.low ? ` (${show(p.low)} – ${show(p.high)})` : "";
        return make("div", near && near.c === c ? { class: "near" } : {},
          draw("svg", { viewBox: "0 0 28 10", class: `swatch ${c.look}` }, c.kind === "dots" || c.kind === "joined" ? draw("circle", { class: "dot", cx: 14, cy: 5, r: 4 }) : draw("path", { d: "M1 5H27", class: "line" })),
          make("span", {}, c.name), make("span", {}, show(p.y), make("small", {}, spread + elsewhere)));
      }));
      tip.hidden = false;
      const frame = chart.getBoundingClientRect();
      const x = frame.left + step.px * frame.width / chart.viewBox.baseVal.width;
      const left = x + 14 + tip.offsetWidth < innerWidth ? x + 14 : Math.max(4, x - 14 - tip.offsetWidth);
      const beside = Math.min(Math.max(4, frame.top + 10), innerHeight - tip.offsetHeight - 4);
      const below = frame.bottom + 6 + tip.offsetHeight < innerHeight ? frame.bottom + 6 : Math.max(4, frame.top - tip.offsetHeight - 2);
      tip.style.transform = innerWidth < 700 ? `translate(8px, ${below}px)` : `translate(${left}px, ${beside}px)`; // a phone has no room beside
    };
    const look = (event) => {
      if (!curves) prepare();
      const frame = chart.getBoundingClientRect();
      const scale = chart.viewBox.baseVal.width / frame.width;
      const pointer = { x: (event.clientX - frame.left) * scale, y: (event.clientY - frame.top) * scale };
      let nearest = -1, least = Infinity;
      steps.forEach((s, i) => {
        if (s.curve && off.has(s.curve.k)) return;
        const gap = byX ? Math.abs(s.px - pointer.x) : Math.hypot(s.px - pointer.x, s.py - pointer.y);
        if (gap < least) { least = gap; nearest = i; }
      });
      if (nearest >= 0) showStep(nearest, pointer); else hide();
    };
    chart.addEventListener("pointermove", look);
    chart.addEventListener("pointerdown", look);
    chart.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && hide());
    chart.addEventListener("blur", hide);
    chart.addEventListener("focus", () => {
      if (!chart.matches(":focus-visible")) return; // by the keyboard, not by a click
      if (!curves) prepare();
      if (steps.length) showStep(steps.length - 1);
    });
    chart.addEventListener("click", (event) => {
      // A finger reads values; the legend's buttons open the runs for it.
      if (event.pointerType !== "touch" && chosen) openRuns(chosen.made, `${chosen.name}: ${panel.title || figure.title}`);
    });
    chart.addEventListener("keydown", (event) => {
      if (!curves) prepare();
      const last = steps.length - 1;
      const next = { ArrowRight: Math.min(last, at + 1), ArrowLeft: at < 0 ? last : Math.max(0, at - 1), Home: 0, End: last }[event.key];
      if (event.key === "Escape") hide();
      const shown = curves.filter((c) => !off.has(c.k) && c.points.length);
      if (event.key === "Enter" && chosen) openRuns(chosen.made, `${chosen.name}: ${panel.title || figure.title}`);
      if ((event.key === "ArrowUp" || event.key === "ArrowDown") && shown.length && byX) {
        const turn = event.key === "ArrowDown" ? 1 : -1;
        chosen = shown[(shown.indexOf(chosen) + turn + shown.length) % shown.length];
        event.preventDefault();
        showStep(at < 0 ? 0 : at);
      }
      if (next === undefined || last < 0) return;
      event.preventDefault();
      if (!byX) chosen = steps[next].curve;
      showStep(next);
    });
  }
  document.addEventListener("pointerdown", (event) => { if (!event.target.closest(".chart")) tip.hidden = true; });
  addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

  // The navigation marks the section that is being read.
  const links = new Map([...document.querySelectorAll("nav a")].map((a) => [a.hash.slice(1), a]));
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      links.forEach((a) => a.removeAttribute("aria-current"));
      const link = links.get(entry.target.id);
      link.setAttribute("aria-current", "true");
      const list = link.closest("ol");
      if (list.scrollWidth > list.clientWidth) list.scrollLeft = link.offsetLeft - 40;
    }
  }, { rootMargin: "-15% 0px -75% 0px" });
  links.forEach((_, id) => watch.observe(document.getElementById(id)));
  fromAddress();
})();
