"use strict";
// Charts that are drawn again and again: lines by round, or by heat.
const make = (name, attributes = {}, ...inside) => {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...inside);
  return node;
};
const draw = (name, attributes = {}, ...inside) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...inside);
  return node;
};
const swatch = (style) => draw("svg", { viewBox: "0 0 28 10", class: `swatch ${style}`, "aria-hidden": "true" }, draw("path", { d: "M1 5H27", class: "line" }));

const show = (v) => {
  if (v === null || v === undefined) return "–";
  const size = Math.abs(v);
  if (size !== 0 && (size >= 1e7 || size < 1e-3)) return v.toExponential(2);
  return Number.isInteger(v) ? v.toLocaleString("en") : size >= 1e4 ? Math.round(v).toLocaleString("en") : v.toPrecision(4);
};

// At most so many points: the ends, and of every stretch the lowest and the highest.
const thin = ([x, y], most) => {
  const count = x.length;
  if (count <= most) return [x, y];
  const stretches = Math.max(1, (most - 2) >> 1), kept = [0];
  for (let s = 0; s < stretches; s++) {
    const low = 1 + Math.floor(s * (count - 2) / stretches), high = 1 + Math.floor((s + 1) * (count - 2) / stretches);
    let least = low, greatest = low;
    for (let i = low; i < high; i++) { if (y[i] < y[least]) least = i; if (y[i] > y[greatest]) greatest = i; }
    kept.push(Math.min(least, greatest));
    if (least !== greatest) kept.push(Math.max(least, greatest));
  }
  kept.push(count - 1);
  return [kept.map((i) => x[i]), kept.map((i) => y[i])];
};

const ticks = (low, high, about, whole) => {
  const step = (() => {
    const rough = (high - low) / about || 1, power = 10 ** Math.floor(Math.log10(rough));
    const nice = [1, 2, 5, 10].find((n) => n * power >= rough) * power;
    return whole ? Math.max(1, Math.round(nice)) : nice;
  })();
  const found = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-9; v += step) found.push(Math.abs(v) < step * 1e-9 ? 0 : v);
  return { found, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
};
const logTicks = (low, high) => {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const n of [1, 2, 5]) { const v = n * 10 ** power; if (v >= low * .999 && v <= high * 1.001) found.push(v); }
  }
  return found;
};

const WIDTH = 480, HEIGHT = 270, LEFT = 50, RIGHT = 12, TOP = 12, BOTTOM = 36;
const tip = document.getElementById("tip");

class Chart {
  constructor(title, note) {
    this.now = make("span", { class: "now" });
    this.svg = draw("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title, tabindex: "0" });
    const caption = make("figcaption", {}, this.now, make("h3", {}, title), make("p", {}, note));
    this.figure = make("figure", { class: "panel" }, caption, this.svg);
    this.series = [];
    this.svg.addEventListener("pointermove", (event) => this.look(event));
    this.svg.addEventListener("pointerdown", (event) => this.look(event));
    this.svg.addEventListener("pointerleave", () => this.hide());
    this.svg.addEventListener("blur", () => this.hide());
    this.svg.addEventListener("keydown", (event) => {
      const xs = this.series.length ? this.series[0].x : [];
      const turn = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") this.hide();
      if (!turn || !xs.length) return;
      event.preventDefault();
      this.step = Math.min(xs.length - 1, Math.max(0, (this.step ?? xs.length) + turn));
      this.tell(xs[this.step]);
    });
  }

  // series: [{ name, style, x, y }]; labels: names of whole numbers on the x axis.
  draw(series, { log = false, labels = null, xTitle = "round", until = 0 } = {}) {
    this.series = series.filter((s) => s.x.length);
    this.labels = labels;
    if (!this.series.length) { this.svg.replaceChildren(); return; }
    let [x0, x1, y0, y1] = [labels ? -0.5 : 0, labels ? labels.length - 0.5 : until, Infinity, -Infinity];
    let positive = Infinity;
    for (const s of this.series) {
      if (!labels) x1 = Math.max(x1, s.x[s.x.length - 1]);
      for (const v of s.y) { if (v < y0) y0 = v; if (v > y1) y1 = v; if (v > 0 && v < positive) positive = v; }
    }
    log = log && positive < Infinity;
    if (log) {
      y0 = Math.max(y0, positive);
      if (y1 <= y0) { y0 /= 1.1; y1 *= 1.1; }
    } else {
      const pad = (y1 - y0) * .06 || Math.abs(y1) * .05 || .5;
      y0 -= pad; y1 += pad;
    }
    if (x1 <= x0) x1 = x0 + 1;
    const scale = log ? Math.log : (v) => v;
    const [s0, s1] = [scale(y0), scale(y1)];
    this.px = (v) => LEFT + (v - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT);
    this.py = (v) => HEIGHT - BOTTOM - (scale(Math.max(v, log ? y0 : v)) - s0) / (s1 - s0) * (HEIGHT - TOP - BOTTOM);
    this.value = (pixel) => x0 + (pixel - LEFT) / (WIDTH - LEFT - RIGHT) * (x1 - x0);
    const parts = [], spread = ticks(y0, y1, 5, false);
    const marks = log ? logTicks(y0, y1) : spread.found;
    for (const v of marks.length > 1 ? marks : [y0, y1]) {
      const at = this.py(v).toFixed(1);
      parts.push(draw("path", { class: "grid", d: `M${LEFT} ${at}H${WIDTH - RIGHT}` }));
      parts.push(draw("text", { class: "tick y", x: LEFT - 7, y: at }, log ? show(v) : v.toFixed(Math.min(spread.digits, 6))));
    }
    parts.push(draw("path", { class: "axis", d: `M${LEFT} ${HEIGHT - BOTTOM}H${WIDTH - RIGHT}` }));
    const along = labels ? labels.map((_, i) => i) : ticks(x0, x1, 6, true).found;
    for (const v of along) {
      parts.push(draw("text", { class: "tick x", x: this.px(v).toFixed(1), y: HEIGHT - BOTTOM + 16 }, labels ? labels[v] : v.toLocaleString("en")));
    }
    parts.push(draw("text", { class: "axis-title end", x: WIDTH - RIGHT, y: HEIGHT - 3 }, xTitle));
    const many = this.series.length > 12;
    for (const s of this.series) {
      let d = "";
      for (let i = 0; i < s.x.length; i++) d += `${i ? "L" : "M"}${this.px(s.x[i]).toFixed(1)} ${this.py(s.y[i]).toFixed(1)}`;
      const group = draw("g", { class: `series ${s.style}${many ? " many" : ""}` }, draw("path", { class: "line", d }));
      if (labels || s.x.length === 1) for (let i = 0; i < s.x.length; i++) group.append(draw("circle", { class: "dot", cx: this.px(s.x[i]).toFixed(1), cy: this.py(s.y[i]).toFixed(1), r: 3.2 }));
      parts.push(group);
    }
    this.cursor = draw("g", { class: "cursor" });
    this.svg.replaceChildren(...parts, this.cursor);
  }

  look(event) {
    if (!this.series.length) return;
    const frame = this.svg.getBoundingClientRect(), scale = WIDTH / frame.width;
    this.tell(this.value((event.clientX - frame.left) * scale), (event.clientY - frame.top) * scale);
  }

  tell(x, y = null) {
    const shown = this.series.map((s) => {
      let low = 0, high = s.x.length - 1;
      while (high - low > 1) { const middle = (low + high) >> 1; if (s.x[middle] < x) low = middle; else high = middle; }
      const i = Math.abs(s.x[low] - x) <= Math.abs(s.x[high] - x) ? low : high;
      return { s, x: s.x[i], y: s.y[i], gap: y === null ? 0 : Math.abs(this.py(s.y[i]) - y) };
    }).sort((a, b) => a.gap - b.gap).slice(0, 10).sort((a, b) => b.y - a.y);
    const at = shown.reduce((best, p) => Math.abs(p.x - x) < Math.abs(best.x - x) ? p : best, shown[0]).x;
    const head = make("b", {}, this.labels ? `heat ${this.labels[at]}` : `round ${at.toLocaleString("en")}`);
    tip.replaceChildren(head, ...shown.map((p) => make("div", {}, swatch(p.s.style), make("span", {}, p.s.name), make("span", {}, show(p.y)))));
    this.cursor.replaceChildren(
      draw("path", { d: `M${this.px(at)} ${TOP}V${HEIGHT - BOTTOM}` }),
      ...shown.map((p) => draw("circle", { class: p.s.style, cx: this.px(p.x), cy: this.py(p.y), r: 3.5 })));
    tip.hidden = false;
    const frame = this.svg.getBoundingClientRect(), px = frame.left + this.px(at) * frame.width / WIDTH;
    const left = px + 14 + tip.offsetWidth < innerWidth ? px + 14 : Math.max(4, px - 14 - tip.offsetWidth);
    const below = frame.bottom + 6 + tip.offsetHeight < innerHeight ? frame.bottom + 6 : Math.max(4, frame.top - tip.offsetHeight - 2);
    tip.style.transform = innerWidth < 700 ? `translate(8px, ${below}px)` : `translate(${left}px, ${Math.max(4, frame.top + 10)}px)`;
  }

  hide() { tip.hidden = true; this.step = undefined; if (this.cursor) this.cursor.replaceChildren(); }
}
