"use strict";
(() => {
  const tip = document.getElementById("tip");
  const off = new Set();

  // Legend: click hides an algorithm in all charts, pointing at it dims the others.
  for (const button of document.querySelectorAll("[data-toggle]")) {
    const key = button.dataset.toggle;
    const own = document.querySelectorAll(`.series[data-k="${key}"]`);
    const light = (on) => {
      document.body.classList.toggle("dim", on && !off.has(key));
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

  // Tooltip: the nearest column of the chart, by pointer or by arrow keys.
  const svgNode = (name, attributes) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  };
  const span = (text) => Object.assign(document.createElement("span"), { textContent: text });
  for (const chart of document.querySelectorAll(".chart")) {
    const points = JSON.parse(chart.dataset.points);
    const cursor = chart.querySelector(".cursor");
    chart.querySelector("title").remove(); // its text is the aria-label; a native tooltip would cover ours
    let column = -1;
    const hide = () => { column = -1; cursor.replaceChildren(); tip.hidden = true; };
    const showColumn = (i) => {
      column = i;
      const [x, label] = points.x[i];
      const { top, floor } = cursor.dataset;
      const head = document.createElement("b");
      head.textContent = label;
      const rows = points.s.filter((s) => s.y[i] && !off.has(String(s.k)));
      rows.sort((a, b) => a.y[i][0] - b.y[i][0]);
      cursor.replaceChildren(svgNode("path", { d: `M${x} ${top}V${floor}` }));
      tip.replaceChildren(head, ...rows.map((s) => {
        cursor.append(svgNode("circle", { cx: x, cy: s.y[i][0], r: 4, class: s.c }));
        const row = document.createElement("div");
        if (s.k >= 0) {
          const swatch = svgNode("svg", { viewBox: "0 0 28 10", class: `swatch ${s.c}` });
          swatch.append(svgNode("path", { d: "M1 5H27", class: "line" }));
          row.append(swatch);
        }
        row.append(span(s.n), span(s.y[i][1]));
        return row;
      }));
      tip.hidden = false;
      const box = chart.getBoundingClientRect();
      const at = box.left + x * box.width / chart.viewBox.baseVal.width;
      const left = at + 14 + tip.offsetWidth < innerWidth ? at + 14 : Math.max(4, at - 14 - tip.offsetWidth);
      const y = Math.min(Math.max(4, box.top + 10), innerHeight - tip.offsetHeight - 4);
      tip.style.transform = `translate(${left}px, ${y}px)`;
    };
    chart.addEventListener("pointermove", (event) => {
      const box = chart.getBoundingClientRect();
      const x = (event.clientX - box.left) * chart.viewBox.baseVal.width / box.width;
      let nearest = 0;
      points.x.forEach(([px], i) => { if (Math.abs(px - x) < Math.abs(points.x[nearest][0] - x)) nearest = i; });
      if (nearest !== column) showColumn(nearest);
    });
    chart.addEventListener("pointerleave", hide);
    chart.addEventListener("blur", hide);
    chart.addEventListener("keydown", (event) => {
      const last = points.x.length - 1;
      const next = { ArrowRight: Math.min(last, column + 1), ArrowLeft: column < 0 ? last : Math.max(0, column - 1), Home: 0, End: last }[event.key];
      if (event.key === "Escape") hide();
      if (next === undefined) return;
      event.preventDefault();
      showColumn(next);
    });
  }
  addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
})();
