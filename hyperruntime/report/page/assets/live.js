"use strict";
// Follow the run: new rows come as server-sent events; after a break the browser says which event it had last.
const runShown = runs[0], NESTED = ["scores", "parts", "steps", "usage"];
const connection = el("span", { id: "connection", role: "status" });
document.getElementById("controls").prepend(connection);
let lastPosition = JSON.parse(document.getElementById("position").textContent), isPending = false;

function ownColumn(holder, name) {
  if (!Object.hasOwn(holder, name)) Object.defineProperty(holder, name, { value: [], enumerable: true, writable: true, configurable: true });
  return holder[name]; // a name may be __proto__
}

function allColumns(run) {
  const nested = NESTED.filter((name) => run[name]).flatMap((name) => Object.values(run[name]));
  return [...nested, ...["ids", "parent", "item", "score", "failure", "detail", "stop", "turns", "calls", "started", "duration", "attempts"].map((name) => run[name]).filter(Boolean)];
}

function mergeRows(run, rows) {
  const places = new Map(run.ids.map((id, n) => [id, n]));
  const at = rows.ids.map((id) => {
    if (!places.has(id)) { places.set(id, run.ids.length); run.ids.push(id); }
    return places.get(id);
  });
  const items = new Map((run.items || []).map((item, n) => [item, n]));
  const itemOf = (item) => {
    if (!items.has(item)) { items.set(item, run.items.length); run.items.push(item); }
    return items.get(item);
  };
  const put = (column, values) => values.forEach((value, k) => { column[at[k]] = value; });
  for (const [name, values] of Object.entries(rows)) {
    if (name === "parent") put(run.parent, values.map((id) => (id === null ? -1 : places.get(id) ?? -1)));
    else if (name === "item") put(run.item, values.map(itemOf));
    else if (NESTED.includes(name)) for (const [key, column] of Object.entries(values)) put(ownColumn(run[name], key), column);
    else if (name !== "ids") put(run[name], values);
  }
  for (const column of allColumns(run)) for (let n = 0; n < run.ids.length; n++) if (column[n] === undefined) column[n] = null;
}

// Generations that were made at once do not end in the order of their numbers.
function inOrder(run) {
  const key = (n) => (run.ids[n] === "initial" ? -1 : Number(run.ids[n]));
  const order = [...run.ids.keys()].sort((a, b) => key(a) - key(b)), where = [];
  if (order.every((n, k) => n === k)) return;
  order.forEach((n, k) => { where[n] = k; });
  for (const column of allColumns(run)) {
    const before = column.slice();
    order.forEach((n, k) => { column[k] = before[n]; });
  }
  run.parent.forEach((n, k) => { if (n >= 0) run.parent[k] = where[n]; });
  if (state.chosen !== null) state.chosen = where[state.chosen];
  state.table.moved(where);
}

function redraw() {
  isPending = false;
  if (state.isHeld) { soon(); return; }
  if (state.table.fits()) state.table.update();
  else {
    const old = state.table;
    state.table = runTable(runShown, open, old.choices());
    old.place.replaceWith(state.table.place);
    state.table.refresh();
  }
  const columns = ["score", ...Object.keys(runShown.scores || {})];
  const choice = document.querySelector("select[aria-label=score]");
  if (choice) for (const name of columns) if (![...choice.options].some((one) => one.value === name)) choice.append(el("option", { value: name }, name));
  totals();
  charts(true);
}

function soon() {
  if (isPending) return;
  isPending = true;
  setTimeout(redraw, 250);
}

function say(now, words) {
  connection.dataset.state = now;
  connection.textContent = words;
}

function take(event) {
  const news = JSON.parse(event.data);
  lastPosition = event.lastEventId;
  Object.assign(runShown, { state: news.state, models: news.models, notes: news.notes, options: news.options, now: news.now });
  if (news.rows.ids.length) {
    mergeRows(runShown, news.rows);
    if (runShown.kind === "loop") {
      inOrder(runShown);
      runShown.path = bestPath(runShown);
    }
  }
  say("live", `${news.state}, ${new Date().toLocaleTimeString("en-GB")}`);
  soon();
}

function follow() {
  const source = new EventSource(`events?after=${encodeURIComponent(lastPosition)}`);
  source.onopen = () => say("live", runShown.state);
  source.addEventListener("news", take);
  source.addEventListener("again", () => { source.close(); location.reload(); });
  source.addEventListener("end", () => { isOver = true; places.now.textContent = ""; source.close(); say("ended", `the server has ended; this page does not change any more. ${WHERE_ALL}`); });
  source.onerror = () => {
    say("waiting", "no connection; trying again");
    if (source.readyState === EventSource.CLOSED) setTimeout(follow, 2000);
  };
}
setInterval(() => { if (!isOver) places.now.textContent = nowLine(runShown); }, 1000);
follow();
