(() => {
  const root = document.documentElement, $ = (id) => document.getElementById(id);

  // Light and dark: the system's choice until the button is used.
  const store = (value) => {
    try { return value ? localStorage.setItem("fedrows-theme", value) : localStorage.getItem("fedrows-theme"); }
    catch { return null; }
  };
  if (["light", "dark"].includes(store())) root.dataset.theme = store();
  $("theme").addEventListener("click", () => {
    const now = root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    store(root.dataset.theme);
  });

  const state = { runs: new Map(), groups: {}, metrics: {}, folders: [], most: 600, offset: 0, heard: 0, ended: "" };
  const off = new Set(), charts = new Map(), heatCharts = new Map();
  let chosen = null, log = false;

  // Words
  const seconds = (s) => {
    if (s === null || s === undefined || !isFinite(s)) return "–";
    s = Math.max(0, s);
    if (s < 60) return `${Math.round(s)} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
    if (s < 172800) return `${Math.floor(s / 3600)} h ${Math.round(s % 3600 / 60)} min`;
    return `${Math.round(s / 86400)} days`;
  };
  const bytes = (b) => {
    if (b === null || b === undefined) return "–";
    for (const unit of ["B", "kB", "MB", "GB"]) { if (b < 1000) return `${b < 10 && unit !== "B" ? b.toFixed(1) : Math.round(b)} ${unit}`; b /= 1000; }
    return `${b.toFixed(1)} TB`;
  };
  const speed = (r) => r === undefined || r === null ? "–" : r >= 100 ? Math.round(r).toLocaleString("en") : r.toPrecision(3);
  const now = () => Date.now() / 1000 + state.offset;
  const ago = (t) => t ? `${seconds(now() - t)} ago` : "–";
  const epsilon = (spent) => Object.entries(spent || {}).map(([kind, v]) => `${kind} ${v === null ? "∞" : Number(v.toPrecision(3))}`).join(", ");
  const runsNow = () => [...state.runs.values()];
  const shownRuns = () => runsNow().filter((r) => chosen === null ? !off.has(r.group) : r.id === chosen);
  const bar = (share, style) => draw("svg", { class: `bar ${style || ""}`, viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
    draw("rect", { class: "rail", width: 100, height: 8 }), draw("rect", { class: "fill", width: Math.max(0, Math.min(100, 100 * share)).toFixed(1), height: 8 }));
  const styleOf = (run) => state.groups[run.group] || "s11";

  // What comes in
  const take = (content) => {
    if (content.now) state.offset = content.now - Date.now() / 1000;
    for (const key of ["groups", "metrics", "folders", "most"]) if (content[key] !== undefined) state[key] = content[key];
    for (const id of content.gone || []) { state.runs.delete(id); if (chosen === id) chosen = null; }
    for (const one of content.runs || []) {
      if (one.curves) state.runs.set(one.id, { id: one.id, label: one.label, group: one.group, facts: {}, curves: one.curves });
      const run = state.runs.get(one.id);
      if (!run) continue;
      for (const [key, value] of Object.entries(one.facts || {})) { if (value === null) delete run.facts[key]; else run.facts[key] = value; }
      for (const [name, [x, y]] of Object.entries(one.add || {})) {
        const [xs, ys] = run.curves[name] || (run.curves[name] = [[], []]);
        xs.push(...x); ys.push(...y);
        if (xs.length > 2 * state.most) run.curves[name] = thin([xs, ys], state.most);
      }
    }
  };

  // The page
  const facts = (pairs) => $("facts").replaceChildren(...pairs.filter(([, v]) => v && v !== "–").map(([k, v]) => make("div", {}, make("dt", {}, k), make("dd", {}, v))));
  const showHead = () => {
    const runs = runsNow(), one = runs.length === 1 ? runs[0] : state.runs.get(chosen);
    const tasks = [...new Set(state.folders.map((f) => f.task).filter(Boolean))].join(", ");
    const of = state.folders.reduce((sum, f) => sum + (f.of || 0), 0);
    let share = 0, title = "Waiting for a run";
    if (one) {
      const f = one.facts;
      share = f.rounds ? f.round / f.rounds : 0;
      title = one.label + (tasks ? ` on ${tasks}` : "");
      facts([
        ["Round", `${(f.round || 0).toLocaleString("en")} of ${(f.rounds || 0).toLocaleString("en")}`], ["State", f.state],
        ["Rounds/s", speed(f.rate)], ["Time left", seconds(f.left)], ["ε spent", epsilon(f.epsilon)],
        ["Down, a client and round", f.bytes && bytes(f.bytes[0])], ["Up, a client and round", f.bytes && bytes(f.bytes[1])],
        [f.deployed ? "Moved in all" : "Moved since it was started", f.moved && `${bytes(f.moved[0])} ↓ ${bytes(f.moved[1])} ↑`],
        ["Nodes", f.nodes && String(f.nodes.length)], ["Last sign of life", f.state === "done" ? "" : ago(f.seen)],
      ]);
    } else if (runs.length) {
      const total = Math.max(of, runs.length), done = runs.filter((r) => r.facts.state === "done").length;
      const going = runs.filter((r) => r.facts.state === "running");
      const elsewhere = state.folders.flatMap((f) => Object.entries(f.running || {}));
      const rounds = runs.reduce((sum, r) => sum + (r.facts.rounds ? r.facts.round / r.facts.rounds : 0), 0);
      share = rounds / total;
      title = `${total} runs` + (tasks ? ` on ${tasks}` : "");
      facts([
        ["Runs done", `${done} of ${total}`], ["Running", going.length || elsewhere.length ? String(going.length || elsewhere.length) : ""],
        ["Rounds/s, together", going.length ? speed(going.reduce((sum, r) => sum + (r.facts.rate || 0), 0)) : ""],
        ["Time left of those that run", going.length ? seconds(Math.max(...going.map((r) => r.facts.left || 0))) : ""],
        ["Being made", elsewhere.slice(0, 4).map(([label, round]) => `${label}, round ${round}`).join("; ")],
      ]);
    } else {
      const elsewhere = state.folders.flatMap((f) => Object.entries(f.running || {}));
      facts([["Runs", of ? `0 of ${of}` : ""], ["Being made", elsewhere.slice(0, 4).map(([label, round]) => `${label}, round ${round}`).join("; ")]]);
    }
    $("title").textContent = title;
    document.title = (share ? `${Math.floor(share * 100)} % · ` : "") + title;
    $("bar").hidden = !share;
    $("bar").replaceChildren(bar(share, one ? styleOf(one) : ""));
  };

  const showNotices = () => {
    const found = [];
    if (state.ended) found.push(make("div", {}, state.ended));
    for (const f of state.folders) if (f.said) found.push(make("div", f.kind ? {} : { class: "bad" }, f.kind === "waiting" ? `${f.path}: ${f.said}` : f.said));
    const troubled = runsNow().filter((r) => ["dead", "failed", "waiting"].includes(r.facts.state) || (r.facts.state === "done" && r.facts.said));
    for (const run of troubled.slice(0, 6)) {
      const f = run.facts, bad = f.state === "dead" || f.state === "failed";
      const words = [`${state.runs.size > 1 ? `${run.label}: ` : ""}${f.said || ""}`];
      if (f.state === "dead") words.push(` Its last sign of life was ${ago(f.seen)}.`);
      if (f.again && bad) words.push(" Go on with: ", make("code", {}, f.again));
      found.push(make("div", bad ? { class: "bad" } : {}, ...words));
    }
    if (troubled.length > 6) found.push(make("div", {}, `And ${troubled.length - 6} more like these.`));
    if (runsNow().some((r) => r.facts.hidden)) found.push(make("div", {}, "A run under privacy full shows its rounds and the ε of its model; no ε covers its exact metrics, so they are not shown."));
    $("notices").replaceChildren(...found);
  };

  const showLegend = () => {
    const names = Object.keys(state.groups);
    const key = JSON.stringify([names, [...off], chosen]);
    if ($("legend").dataset.key === key) return;
    $("legend").dataset.key = key;
    $("legend").replaceChildren(...(names.length < 2 ? [] : names.map((name) => {
      const button = make("button", { type: "button", "aria-pressed": String(chosen === null && !off.has(name)) }, swatch(state.groups[name]), name);
      button.addEventListener("click", () => { chosen = null; if (!off.delete(name)) off.add(name); render(); });
      return button;
    })));
  };

  const showCharts = () => {
    const runs = shownRuns(), until = Math.max(0, ...runs.map((r) => r.facts.rounds || 0));
    const alone = runs.length === 1;
    let any = false;
    for (const [metric, [title, higher, digits]] of Object.entries(state.metrics)) {
      const series = runs.filter((r) => r.curves[metric] && r.curves[metric][0].length)
        .map((r) => ({ name: r.label, style: styleOf(r), x: r.curves[metric][0], y: r.curves[metric][1] }));
      let chart = charts.get(metric);
      if (!chart) {
        chart = new Chart(title[0].toUpperCase() + title.slice(1), higher ? "higher is better" : "lower is better");
        charts.set(metric, chart);
        const order = Object.keys(state.metrics), next = order.slice(order.indexOf(metric) + 1).find((m) => charts.has(m));
        $("panels").insertBefore(chart.figure, next ? charts.get(next).figure : null);
      }
      chart.figure.hidden = !series.length;
      any = any || series.length > 0;
      chart.now.textContent = alone && series.length ? series[0].y[series[0].y.length - 1].toFixed(digits) : "";
      chart.draw(series, { log, until: alone || series.length ? Math.max(...(series.map((s) => s.x[s.x.length - 1])), Math.min(until, 1)) : 0 });
    }
    $("curves").hidden = !any;
    showHeat(runs);
  };

  const showHeat = (runs) => {
    const withHeat = runs.filter((r) => r.facts.buckets), names = [], lows = new Map();
    for (const r of withHeat) for (const [low, high] of r.facts.buckets) lows.set(low, high);
    const order = [...lows.keys()].sort((a, b) => a - b);
    for (const low of order) names.push(low === lows.get(low) ? String(low) : `${short(low)}–${short(lows.get(low))}`);
    let any = false;
    for (const [place, title, note] of [[2, "Test loss by heat", "lower is better; cold features are on the left"], [3, "Test AUC by heat", "higher is better"]]) {
      const series = withHeat.map((r) => {
        const known = r.facts.buckets.filter((b) => b[place] !== null);
        return { name: r.label, style: styleOf(r), x: known.map((b) => order.indexOf(b[0])), y: known.map((b) => b[place]) };
      }).filter((s) => s.x.length);
      let chart = heatCharts.get(place);
      if (!chart) { chart = new Chart(title, note); heatCharts.set(place, chart); $("heat").append(chart.figure); }
      chart.figure.hidden = !series.length;
      any = any || series.length > 0;
      chart.draw(series, { log: log && place === 2, labels: names, xTitle: "clients that hold it" });
    }
    $("cold").hidden = !any;
  };
  const short = (n) => n >= 1e6 ? `${n / 1e6}M` : n >= 1000 ? `${Number((n / 1000).toPrecision(2))}k` : String(n);

  const rows = new Map();
  const showRuns = () => {
    const runs = runsNow(), metric = Object.keys(state.metrics)[0];
    $("runs").hidden = runs.length < 2;
    if (runs.length < 2) return;
    $("metric-head").textContent = metric ? state.metrics[metric][0] : "";
    const rank = { failed: 0, dead: 0, running: 1, waiting: 2, done: 3 };
    runs.sort((a, b) => (rank[a.facts.state] ?? 4) - (rank[b.facts.state] ?? 4) || a.id - b.id);
    for (const run of runs) {
      const f = run.facts, curve = run.curves[metric];
      const words = [f.state || "", `${f.round || 0} / ${f.rounds || 0}`, speed(f.rate), f.state === "running" ? seconds(f.left) : "",
        curve && curve[1].length ? curve[1][curve[1].length - 1].toFixed(state.metrics[metric][2]) : "–", epsilon(f.epsilon) || "–", f.state === "done" ? "" : ago(f.seen)];
      const key = JSON.stringify([words, run.label, styleOf(run), chosen === run.id]);
      const old = rows.get(run.id);
      if (old && old.key === key) continue;
      const button = make("button", { type: "button" }, swatch(styleOf(run)), run.label);
      button.addEventListener("click", () => { chosen = chosen === run.id ? null : run.id; render(); });
      const row = make("tr", { "aria-selected": String(chosen === run.id) }, make("th", { scope: "row" }, button),
        make("td", {}, make("span", { class: `state ${words[0]}` }, words[0])),
        make("td", {}, bar(f.rounds ? f.round / f.rounds : 0, styleOf(run)), words[1]), ...words.slice(2).map((w) => make("td", {}, w)));
      rows.set(run.id, { key, row });
    }
    for (const id of rows.keys()) if (!state.runs.has(id)) rows.delete(id);
    const wanted = runs.map((r) => rows.get(r.id).row), there = $("rows").children;
    if (there.length !== wanted.length || wanted.some((row, i) => there[i] !== row)) $("rows").replaceChildren(...wanted);
  };

  const showNetwork = () => {
    const runs = shownRuns(), many = runs.length > 1;
    const cell = (text, name = "") => make("td", name ? { class: name } : {}, text);
    const nodes = runs.flatMap((r) => (r.facts.nodes || []).map((n) => ({ ...n, label: many ? `${n.name}, ${r.label}` : n.name })));
    $("nodes").hidden = !nodes.length;
    $("node-rows").replaceChildren(...nodes.map((n) => make("tr", {}, make("th", { scope: "row" }, n.label), cell(String(n.clients)),
      cell(n.heard ? ago(n.heard) : "never"), cell(`${n.answered} of ${n.asked}`), cell(`round ${n.round}`), cell(n.said || "its update", n.said ? "text said-bad" : "text"))));
    const refused = runs.flatMap((r) => [...(r.facts.refused || [])].reverse().map((x) => ["refused", x.why, x.who, String(x.round)]));
    const counted = runs.flatMap((r) => (r.facts.refused || []).length ? [] : Object.entries(r.facts.rejected || {}).map(([why, n]) => ["refused", why, `${n} uploads`, ""]));
    const away = runs.flatMap((r) => Object.entries(r.facts.left_out || {}).map(([why, n]) => ["left out", why, `${n} clients in all`, ""]));
    const all = [...refused, ...counted, ...away];
    $("refused").hidden = !all.length;
    $("refused-rows").replaceChildren(...all.map(([what, why, who, round]) => make("tr", {}, make("th", { scope: "row" }, what), cell(why, "text"), cell(who, "text"), cell(round))));
  };

  // Drawing: at once, then at most every fifth of a second.
  let drawn = 0, due = 0;
  const render = () => { due = 0; drawn = performance.now(); showHead(); showNotices(); showLegend(); showCharts(); showRuns(); showNetwork(); };
  const soon = () => { if (!due) due = setTimeout(render, Math.max(0, 200 - (performance.now() - drawn))); };
  $("log").addEventListener("click", () => { log = !log; $("log").setAttribute("aria-pressed", String(log)); render(); });

  // The stream. A hidden page lets go of it: a browser has few connections to one server.
  let source = null;
  const beat = (kind, text) => { $("beat").dataset.state = kind; $("beat").textContent = text; };
  const hear = (kind, act) => source.addEventListener(kind, (event) => { state.heard = performance.now(); beat("live", "following"); act(JSON.parse(event.data)); });
  const connect = () => {
    if (source || state.ended || document.hidden) return;
    source = new EventSource(`events${location.search}`);
    hear("snapshot", (content) => { state.runs.clear(); rows.clear(); take(content); render(); root.dataset.painted = String(Math.round(performance.now())); });
    hear("update", (content) => { take(content); soon(); });
    hear("ping", take);
    hear("bye", (content) => { state.ended = content.said; close(); beat("lost", "ended"); render(); });
    source.onerror = () => {
      if (state.ended) return;
      beat("lost", "not connected");
      if (source && source.readyState === EventSource.CLOSED) close();
    };
  };
  const close = () => { if (source) source.close(); source = null; };
  document.addEventListener("visibilitychange", () => document.hidden ? close() : connect());
  setInterval(() => {
    if (!document.hidden) { connect(); if (state.runs.size) { showHead(); showNotices(); showRuns(); showNetwork(); } }
    if (source && state.heard && performance.now() - state.heard > 15000) beat("lost", "no answer");
  }, 1000);
  connect();
})();
