"use strict";
const runs = JSON.parse(document.getElementById("data").textContent);
const state = { run: 0, column: "", byTime: false, chosen: null, charts: [], progress: null, lineage: null, table: null, isHeld: false };

// From the first generation to the best one by these scores; of equal scores, the earlier one is the best.
function bestPath(run, scores = run.score) {
  let best = -1;
  scores.forEach((score, n) => { if (score !== null && (best < 0 || score > scores[best])) best = n; });
  const path = new Set();
  for (let at = best; at >= 0 && !path.has(at); at = run.parent[at]) path.add(at);
  return [...path].reverse();
}
for (const run of runs) if (run.kind === "loop") run.path = bestPath(run);

function theme(name) {
  document.documentElement.dataset.theme = name;
  charts(true);
  drawCompared();
}

function columnOf(run) {
  return (state.column && (run.scores || {})[state.column]) || run.score;
}

function costOf(run) {
  return run.models.length ? sum(run.models.map((one) => one.money)) : sum(run.usage.money || []);
}

function counts(names) {
  const found = new Map();
  for (const name of names) found.set(name, (found.get(name) || 0) + 1);
  return [...found].sort((a, b) => b[1] - a[1]);
}

function tiles(run) {
  const loop = run.kind === "loop", known = run.score.filter((score) => score !== null);
  const best = known.length ? known.reduce((a, b) => Math.max(a, b)) : null;
  const spent = costOf(run);
  const facts = [
    [loop ? "best score" : "mean reward", text.score(loop ? best : known.length ? sum(known) / known.length : null) || "none"],
    [loop ? "best generation" : "best reward", loop ? (run.path.length ? run.ids[run.path[run.path.length - 1]] : "none") : text.score(best) || "none"],
    [loop ? "generations" : "trajectories", text.count(run.ids.length) + (loop && run.options["generations wanted"] ? ` of ${text.count(run.options["generations wanted"])}` : "")],
    ["failed", text.count(run.failure.filter(Boolean).length)],
    ["total time", text.seconds(sum(run.duration))],
    ["state", run.state],
  ];
  if (Object.keys(run.usage).length) {
    facts.push(["tokens read", text.count(sum(run.usage.input_tokens))], ["tokens written", text.count(sum(run.usage.output_tokens))]);
  }
  if (spent) facts.push(["cost", text.money(spent)]);
  return el("div", { className: "tiles" }, facts.map(([name, value]) => el("div", { className: "tile" }, el("b", {}, value), el("span", {}, name))));
}

// The generations that are made now: the live page has them, with the second in which each began.
function nowLine(run) {
  const made = ([id, step, began]) => `generation ${id} (${[step, text.seconds(Math.max(0, Math.round(Date.now() / 1000 - began)))].filter(Boolean).join(", ")})`;
  return (run.now || []).length ? `now: ${run.now.map(made).join(", ")}` : "";
}

function comparison() {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.options)))];
  const best = (run) => run.score.reduce((a, b) => (b !== null && (a === null || b > a) ? b : a), null);
  const mean = (run) => { const known = run.score.filter((score) => score !== null); return known.length ? sum(known) / known.length : null; };
  const rows = [
    ["state", (run) => run.state], ["entries", (run) => text.count(run.ids.length)], ["best", (run) => text.score(best(run))],
    ["mean", (run) => text.score(mean(run))], ["failed", (run) => text.count(run.failure.filter(Boolean).length)],
    ["failed by class", (run) => counts(run.failure.filter(Boolean)).map(([name, count]) => `${name} ${count}`).join(", ")],
    ["total time", (run) => text.seconds(sum(run.duration))],
    ["tokens read", (run) => text.count(sum(run.usage.input_tokens || []))], ["tokens written", (run) => text.count(sum(run.usage.output_tokens || []))],
    ["cost", (run) => text.money(costOf(run))],
    ...names.map((name) => [name, (run) => run.options[name] ?? ""]),
  ];
  return el("div", { className: "wide" }, el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, ""), runs.map((run) => el("th", {}, run.name)))),
    el("tbody", {}, rows.map(([name, get]) => el("tr", {}, el("th", {}, name), runs.map((run) => el("td", {}, String(get(run)))))))));
}

function tables(run) {
  const failures = counts(run.failure.filter(Boolean));
  const steps = Object.entries(run.steps).map(([name, values]) => [name, sum(values)]).filter(([, value]) => value > 0).sort((a, b) => b[1] - a[1]);
  const kinds = [["requests", "requests"], ["errors", "errors"], ["input_tokens", "tokens read"], ["output_tokens", "written"], ["money", "cost"], ["seconds", "time"]]
    .filter(([name]) => run.models.some((one) => Object.hasOwn(one, name))); // a rollout does not record failed requests
  const models = run.models.map((one) => el("tr", {}, el("td", {}, one.model), kinds.map(([name]) => el("td", { className: "n" }, (text[name] || text.count)(one[name])))));
  return el("div", { className: "columns" },
    el("section", {}, el("h2", {}, "Failures by class"), failures.length ? meters(failures, text.count) : el("p", { className: "note" }, "None.")),
    el("section", {}, el("h2", {}, "Time by step"), steps.length ? meters(steps, text.seconds) : el("p", { className: "note" }, "None.")),
    run.kind === "rollout" ? groupSection(run) : run.path.length > 1 ? pathSection(run) : null,
    models.length ? el("section", {}, el("h2", {}, "Models"), el("div", { className: "wide" }, el("table", {}, el("thead", {}, el("tr", {}, ["model", ...kinds.map((kind) => kind[1])].map((name, k) => el("th", { className: k ? "n" : "" }, name)))), el("tbody", {}, models)))) : null);
}

// What each diff on the way to the best generation gained over its parent.
function pathSection(run) {
  const path = run.path, first = path.length ? run.score[path[0]] : null, last = path.length ? run.score[path[path.length - 1]] : null;
  const gain = (n) => { const before = run.parent[n] >= 0 ? run.score[run.parent[n]] : null; return before === null || run.score[n] === null ? null : run.score[n] - before; };
  const signed = (value) => (value === null ? "" : (value < 0 ? "" : "+") + text.score(value));
  const share = (value) => (value === null || first === null || last === null || last <= first ? "" : `${((100 * value) / (last - first)).toFixed(0)} %`);
  return el("section", {}, el("h2", {}, "Best path"), el("div", { className: "wide" }, el("table", {},
    el("thead", {}, el("tr", {}, ["generation", "parent", "score", "gain", "of the whole"].map((name, k) => el("th", { className: k > 1 ? "n" : "" }, name)))),
    el("tbody", {}, path.map((n) => el("tr", {}, el("td", {}, el("button", { onclick: () => state.table.choose(n, false, true) }, run.ids[n])),
      el("td", {}, run.parent[n] >= 0 ? run.ids[run.parent[n]] : ""), el("td", { className: "n" }, text.score(run.score[n])),
      el("td", { className: "n" }, signed(gain(n))), el("td", { className: "n" }, share(gain(n)))))))));
}

function groupSection(run) {
  const groups = run.items.map((item) => ({ item, scores: [] }));
  run.item.forEach((k, n) => { if (run.score[n] !== null) groups[k].scores.push(run.score[n]); });
  const rows = groups.map(({ item, scores }) => {
    const mean = scores.length ? sum(scores) / scores.length : null;
    const spread = scores.length ? Math.sqrt(sum(scores.map((one) => (one - mean) ** 2)) / scores.length) : null;
    return { item, mean, spread, count: scores.length };
  }).sort((a, b) => (b.mean ?? -Infinity) - (a.mean ?? -Infinity)).slice(0, 200);
  return el("section", {}, el("h2", {}, "Groups"), el("div", { className: "wide" }, el("table", {},
    el("thead", {}, el("tr", {}, ["item", "mean reward", "deviation", "scored"].map((name, k) => el("th", { className: k ? "n" : "" }, name)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, el("td", {}, row.item), el("td", { className: "n" }, text.score(row.mean)), el("td", { className: "n" }, text.score(row.spread)), el("td", { className: "n" }, row.count)))))),
    run.items.length > 200 ? el("p", { className: "note" }, `${text.count(run.items.length - 200)} more groups: search the table above for an item.`) : null);
}

const compared = JSON.parse((document.getElementById("chart") || { textContent: "null" }).textContent);
let comparedPlot = null, comparedAxis = 0;

// The chart over runs, by one of the axes.
function drawCompared() {
  const place = document.getElementById("compared");
  if (!compared || !compared.axes.length) return;
  if (comparedPlot) comparedPlot.stop();
  const chart = el("div", { className: "chart" }), labels = compared.axes.map((axis) => axis.label);
  place.replaceChildren(el("div", { className: "bar" }, el("label", {}, "by ", select("by", labels, labels[comparedAxis], (name) => { comparedAxis = labels.indexOf(name); drawCompared(); })), zoomBar("over runs", () => comparedPlot)), chart);
  comparedPlot = comparedChart(chart, compared, compared.axes[comparedAxis]);
}

const places = { totals: el("div", {}), now: el("p", { className: "now" }), notes: el("div", {}), tables: el("div", {}), progress: el("div", { className: "chart" }), lineage: el("div", { className: "chart" }), hint: el("div", { className: "hint" }), panel: el("section", { className: "panel", hidden: true, "aria-live": "polite" }) };

function totals() {
  const run = runs[state.run];
  places.totals.replaceChildren(tiles(run));
  places.now.textContent = nowLine(run);
  places.notes.replaceChildren(...run.notes.map((note) => el("p", { className: "note" }, note)));
  places.tables.replaceChildren(tables(run));
}

// Draw the charts; what the reader zoomed or moved stays if `keeps` is set.
function charts(keeps) {
  const before = state.charts.map((chart) => (keeps && chart.wasMoved ? { x: { ...chart.scales.x }, y: { ...chart.scales.y } } : null));
  for (const chart of state.charts) chart.stop();
  state.charts = [];
  const run = runs[state.run], compared = runs.length > 1 ? runs : [run];
  state.progress = state.lineage = null;
  if (compared.every((one) => one.ids.length)) {
    state.progress = progressChart(places.progress, compared, columnOf);
    state.charts.push(state.progress);
  }
  if (run.kind === "loop" && run.ids.length) {
    state.lineage = lineageChart(places.lineage, run, columnOf(run), state.byTime, state.chosen, places.hint, (n) => { state.table.choose(n, false, true); });
    state.charts.push(state.lineage);
  }
  state.charts.forEach((chart, k) => {
    if (!before[k]) return;
    chart.wasMoved = true;
    for (const [key, { min, max }] of Object.entries(before[k])) chart.setScale(key, { min, max });
  });
}

async function open(n, looks) {
  const number = state.run, run = runs[number];
  state.chosen = n;
  if (state.lineage) state.lineage.mark(n);
  const id = run.ids[n], found = await detailsOf(run, number, n);
  n = run.ids.indexOf(id); // a live run may have put its rows in order meanwhile
  if (state.chosen !== n || state.run !== number) return;
  const title = `${run.kind === "loop" ? "Generation" : "Trajectory"} ${run.ids[n]}: ${run.score[n] === null ? run.failure[n] || "no score" : text.score(run.score[n])}`;
  const parentId = run.kind === "loop" && run.parent[n] >= 0 ? run.ids[run.parent[n]] : null;
  const parent = parentId === null ? null : el("button", { onclick: () => state.table.choose(run.ids.indexOf(parentId)) }, `parent ${parentId}`);
  places.panel.hidden = false;
  places.panel.replaceChildren(
    el("div", { className: "bar" }, el("h2", {}, title), parent, el("button", { onclick: close, "aria-label": "close" }, "close (Esc)")),
    ...[run.failure[n] ? el("p", {}, `${run.failure[n]}: ${run.detail[n]}`) : null,
      found ? null : el("p", { className: "left-out" }, isOver ? `The server has ended. ${WHERE_ALL}` : isLive ? "Its details cannot be read." : "Its details were left out to keep this file small; make it again with a larger --max-size."),
      ...(run.kind === "loop" ? generationView(run, n, found) : trajectoryView(run, n, found)).flat(2)].filter((one) => one));
  if (looks) places.panel.scrollIntoView({ block: "nearest" });
}

function close() {
  state.chosen = null;
  places.panel.hidden = true;
  if (state.lineage) state.lineage.mark(-1);
}

function show() {
  const run = runs[state.run], main = document.getElementById("main");
  const kept = main.querySelectorAll("section.plain");
  for (const section of kept) section.style.display = "none"; // printed and read without a script
  main.querySelectorAll(".script").forEach((one) => one.remove());
  close();
  state.table = runTable(run, open);
  const columns = ["score", ...Object.keys(run.scores || {})];
  const loop = run.kind === "loop";
  const controls = loop ? el("div", { className: "bar" },
    el("label", {}, "score of ", select("score", columns, state.column || "score", (name) => { state.column = name === "score" ? "" : name; charts(); state.table.update(); })),
    el("button", { "aria-pressed": String(state.byTime), onclick: (event) => { state.byTime = !state.byTime; event.target.setAttribute("aria-pressed", String(state.byTime)); charts(); } }, "by time")) : null;
  const body = el("div", { className: "script" },
    runs.length > 1 ? [comparison(), el("div", { className: "bar" }, runs.map((one, k) => el("button", { "aria-pressed": String(k === state.run), onclick: () => { state.run = k; state.column = ""; show(); } }, one.name)))] : null,
    places.totals, places.now, places.notes, controls,
    el("div", { className: "columns" },
      el("section", {}, el("h2", {}, loop ? "Progress" : "Rewards"), zoomBar(loop ? "progress" : "rewards", () => state.progress), places.progress),
      loop ? el("section", {}, el("h2", {}, "Lineage"), zoomBar("lineage", () => state.lineage), places.lineage, places.hint) : null),
    el("h2", {}, loop ? "Generations" : "Trajectories"),
    el("p", { className: "hint" }, "Keys: j and k or the arrows move, / searches, Enter leaves the search, t changes the colours, Esc closes."),
    state.table.place, places.panel, places.tables);
  main.prepend(body);
  totals();
  charts();
}

document.getElementById("controls").append(el("button", { onclick: () => theme(isDark() ? "light" : "dark") }, "dark / light (t)"));
function isDark() { return document.documentElement.dataset.theme === "dark"; }
document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
document.addEventListener("keydown", (event) => {
  const writing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName);
  if (event.key === "Escape") { document.activeElement.blur(); close(); return; }
  if (writing || event.ctrlKey || event.metaKey || event.altKey) return;
  const acts = { j: () => state.table.step(1), k: () => state.table.step(-1), ArrowDown: () => state.table.step(1), ArrowUp: () => state.table.step(-1), "/": () => state.table.find.focus(), t: () => theme(isDark() ? "light" : "dark") };
  const inTable = document.activeElement === document.body || document.activeElement.classList.contains("rows");
  if (acts[event.key] && (inTable || !event.key.startsWith("Arrow"))) { event.preventDefault(); acts[event.key](); }
});
let beforePrint = null;
window.addEventListener("beforeprint", () => {
  for (const one of document.querySelectorAll("details")) one.open = true;
  beforePrint = document.documentElement.dataset.theme;
  theme("light"); // the charts are drawn again in ink
});
window.addEventListener("afterprint", () => { if (beforePrint) theme(beforePrint); });
show();
drawCompared();
