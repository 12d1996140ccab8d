// What a device's page shows; it draws, and knows nothing of the network.

const SVG = "http://www.w3.org/2000/svg";
const SHOWN = 6; // recommendations
const WIDTH = 300;
const HEIGHT = 84;

const STATES = {
  idle: ["wait", "waiting for a round"],
  rows: ["train", "training"],
  trained: ["train", "sending"],
  sent: ["done", "sent"],
  registered: ["wait", "registered"],
  program: ["wait", "has its program"],
};

function bytes(count) {
  if (count < 1000) return `${count} B`;
  return count < 1e6 ? `${(count / 1000).toFixed(1)} kB` : `${(count / 1e6).toFixed(1)} MB`;
}

function drawn(tag, facts) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(facts)) node.setAttribute(name, value);
  return node;
}

function made(tag, className, text) {
  const node = document.createElement(tag);
  node.className = className;
  node.textContent = text;
  return node;
}

export class View {
  #given = null;
  #order = [];
  #manifest = null;

  constructor(page) {
    this.at = (id) => page.getElementById(id);
    this.form = this.at("enrol");
    if (new URLSearchParams(location.search).has("panel")) page.body.classList.add("panel");
  }

  /** Shows whose device it is, and its private list. */
  show(name, given) {
    this.#given = given;
    document.title = name;
    this.at("name").textContent = name;
    this.at("panels").hidden = false;
    const titles = given.titles ?? given.label.map((_, i) => `example ${i + 1}`);
    const liked = given.label.filter((x) => x > 0).length;
    this.at("count").textContent = `${titles.length} films, likes ${liked}`.replace("films", given.titles ? "films" : "examples");
    const order = titles.map((_, i) => i).sort((a, b) => given.label[b] - given.label[a]);
    this.at("list").replaceChildren(...order.map((i) => made("li", given.label[i] > 0 ? "yes" : "no", titles[i])));
    this.at("top").closest("section").hidden = !given.candidates?.titles?.length;
  }

  program(manifest) {
    this.#manifest = manifest;
  }

  news(detail) {
    const known = STATES[detail.kind];
    if (known) {
      const round = detail.round ? ` round ${detail.round}` : "";
      this.state(known[0], known[1] + round);
      this.trouble(detail.sentence, true);
    } else if (detail.kind === "trouble") this.trouble(detail.sentence);
  }

  state(state, text) {
    this.at("state").dataset.state = state;
    this.at("state").textContent = text;
  }

  /** Shows a message, or hides the last one; waits: whether it only says what the device waits for. */
  trouble(sentence, waits = false) {
    this.at("trouble").hidden = !sentence;
    this.at("trouble").classList.toggle("waits", waits);
    this.at("trouble").textContent = sentence ?? "";
  }

  /** Shows the rounds that were trained: their losses, and what the last one cost. */
  history(lines) {
    const last = lines.at(-1);
    if (!last) return;
    const shared = Object.entries(last.rows).filter(([table]) => !this.#manifest?.tables[table]?.local);
    const rows = shared.reduce((sum, [, count]) => sum + count, 0);
    this.at("rows").textContent = rows.toLocaleString("en");
    this.at("down").textContent = bytes(last.down);
    this.at("up").textContent = bytes(last.up);
    this.at("milliseconds").textContent = `${last.milliseconds.toFixed(0)} ms`;
    const all = shared.reduce((sum, [table]) => sum + (this.#manifest?.tables[table].rows ?? 0), 0);
    const total = lines.reduce((sum, line) => sum + line.down + line.up, 0);
    const part = all ? `${((100 * rows) / all).toFixed(1)} % of the model's ${all.toLocaleString("en")} rows. ` : "";
    this.at("share").textContent = `${part}${bytes(total)} in ${lines.length} ${lines.length === 1 ? "round" : "rounds"}.`;
    this.#curve(lines);
  }

  #curve(all) {
    const lines = all.filter(({ losses }) => losses.every(Number.isFinite));
    if (!lines.length) return;
    const losses = lines.map(({ losses }) => losses.reduce((sum, x) => sum + x, 0) / losses.length);
    const [low, high] = [Math.min(...losses), Math.max(...losses)];
    const room = high - low || 1;
    const x = (i) => (losses.length === 1 ? 0 : (i / (losses.length - 1)) * WIDTH);
    const y = (loss) => 6 + ((high - loss) / room) * (HEIGHT - 12);
    const points = losses.map((loss, i) => `${x(i).toFixed(1)},${y(loss).toFixed(1)}`);
    const line = `M${points.join("L")}`;
    this.at("loss").replaceChildren(
      ...[0, 0.5, 1].map((share) => drawn("line", { x1: 0, x2: WIDTH, y1: 6 + share * (HEIGHT - 12), y2: 6 + share * (HEIGHT - 12) })),
      drawn("path", { class: "area", d: `${line}L${x(losses.length - 1)},${HEIGHT}L0,${HEIGHT}Z` }),
      drawn("path", { d: line }),
    );
    this.at("loss-now").textContent = losses.at(-1).toFixed(3);
    this.at("first-round").textContent = `round ${lines[0].round}: ${losses[0].toFixed(3)}`;
    this.at("last-round").textContent = `round ${lines.at(-1).round}`;
  }

  /** Shows the candidates that are most likely to be liked, and how they have moved since before. */
  ranking(likely) {
    const candidates = this.#given?.candidates;
    if (!likely?.length || !candidates) return;
    const order = likely.map((_, i) => i).sort((a, b) => likely[b] - likely[a] || a - b);
    const before = new Map(this.#order.map((i, rank) => [i, rank]));
    const items = order.slice(0, SHOWN).map((i, rank) => {
      const was = before.get(i);
      const moved = was === undefined || was === rank ? "" : was > rank ? "up" : "down";
      const item = made("li", candidates.liked?.[i] ? "right" : "", "");
      const bar = drawn("svg", { viewBox: "0 0 100 6", preserveAspectRatio: "none", "aria-hidden": "true" });
      bar.append(drawn("rect", { class: "rail", width: 100, height: 6 }), drawn("rect", { class: "fill", width: 100 * likely[i], height: 6 }));
      const chance = made("span", "likely", "");
      chance.append(bar, `${Math.round(100 * likely[i])} %`);
      item.append(made("span", `step ${moved}`, { up: "▲", down: "▼" }[moved] ?? rank + 1), made("span", "title", candidates.titles[i]), made("span", "tick", candidates.liked?.[i] ? "✓" : ""), chance);
      item.title = candidates.titles[i];
      return item;
    });
    this.at("top").replaceChildren(...items);
    if (candidates.liked) {
      const right = order.slice(0, SHOWN).filter((i) => candidates.liked[i]).length;
      this.at("hits").textContent = `${right} of ${Math.min(SHOWN, order.length)} right ✓`;
    }
    this.#order = order;
  }
}
