"use strict";
// A table that has elements only for the rows in sight, so that 10,000 rows cost as much as 20.
const ROW_HEIGHT = 28;

function columnsOf(run) {
  const wide = (name, get, show, width, numeric) => ({ name, get, show, width, numeric });
  const number = (name, values, show, width) => wide(name, (n) => values[n], show || text.count, width || 90, true);
  const columns = [wide(run.kind === "loop" ? "generation" : "trajectory", (n) => run.ids[n], String, run.kind === "loop" ? 95 : 190)];
  if (run.kind === "loop") {
    columns[0].get = (n) => (run.ids[n] === "initial" ? -1 : Number(run.ids[n]));
    columns[0].show = (_, n) => run.ids[n];
    columns.push(wide("parent", (n) => run.parent[n], (n) => (n >= 0 ? run.ids[n] : ""), 75));
  }
  columns.push(number(run.kind === "loop" ? "score" : "reward", run.score, text.score));
  for (const [name, values] of Object.entries(run.scores || run.parts || {})) columns.push(number(name, values, text.score, 130));
  if (run.kind === "rollout") {
    columns.push(number("turns", run.turns, text.count, 65), number("calls", run.calls, text.count, 65));
    columns.push(wide("stop", (n) => run.stop[n], String, 100));
  }
  columns.push(number("time", run.duration, text.seconds, 85), wide("started", (n) => run.started[n] || 0, text.time, 175));
  for (const [name, values] of Object.entries(run.usage || {})) columns.push(number(name.replace("_", " "), values, text[name] || text.count, 115));
  if (run.attempts.some((count) => count > 1)) columns.push(number("attempts", run.attempts, text.count, 85));
  for (const one of columns) one.width = Math.max(one.width, one.name.length * 8.5 + 34); // the heading with its arrow
  columns.push(wide("failure", (n) => run.failure[n], (_, n) => [run.failure[n], run.detail[n]].filter(Boolean).join(": "), 420));
  return columns;
}

function runTable(run, onChoose, before) {
  const columns = columnsOf(run), kept = before || {};
  const wordsOf = (n) => `${run.ids[n]} ${run.failure[n]} ${run.detail[n]} ${run.item ? run.items[run.item[n]] : ""}`.toLowerCase();
  let all = [], words = [], shown = [];
  let sorted = { column: columns.find((one) => one.name === (kept.sort || (run.kind === "loop" ? "score" : "reward"))) || columns[0], down: kept.down ?? true };
  let chosen = kept.chosen ?? null;
  const wide = columns.reduce((total, one) => total + one.width, 0);
  const rows = el("div", { className: "rows", tabindex: 0, role: "listbox", "aria-label": "all entries" });
  const sheet = el("div", {});
  rows.append(sheet);
  const heads = columns.map((one) => {
    const head = el("button", { onclick: () => { sorted = { column: one, down: sorted.column === one ? !sorted.down : Boolean(one.numeric) }; apply(); } }, one.name);
    head.style.width = `${one.width}px`;
    if (one.numeric) head.style.textAlign = "right";
    return head;
  });
  const find = el("input", { type: "search", placeholder: "search  ( / )", "aria-label": "search", oninput: () => apply(), onkeydown: (event) => { if (event.key === "Enter") rows.focus(); } });
  const least = el("input", { type: "number", step: "any", placeholder: run.kind === "loop" ? "score from" : "reward from", "aria-label": "least score", oninput: () => apply() });
  least.style.width = "8rem";
  const filter = select("failures", ["all", "without failure"], "all", () => apply());
  const count = el("span", { className: "hint" });
  const clear = el("button", { onclick: () => { find.value = least.value = ""; filter.value = "all"; apply(); } }, "clear");

  function apply() {
    const word = find.value.trim().toLowerCase(), from = least.value === "" ? null : Number(least.value), scores = columnOf(run);
    shown = all.filter((n) => (!word || words[n].includes(word))
      && (from === null || ((scores[n] ?? null) !== null && scores[n] >= from))
      && (filter.value === "all" || (filter.value === "without failure" ? !run.failure[n] : run.failure[n] === filter.value)));
    const { column, down } = sorted, sign = down ? -1 : 1;
    const empty = (value) => value === null || value === undefined || value === "";
    shown.sort((a, b) => {
      const [one, other] = [column.get(a), column.get(b)];
      if (empty(one) || empty(other)) return empty(one) - empty(other) || a - b;
      return (one < other ? -1 : one > other ? 1 : 0) * sign || a - b;
    });
    heads.forEach((head, k) => { head.textContent = columns[k].name + (columns[k] === column ? (down ? " ▼" : " ▲") : ""); });
    clear.disabled = !word && from === null && filter.value === "all";
    count.textContent = `${shown.length} of ${all.length}`;
    sheet.style.height = `${shown.length * ROW_HEIGHT}px`;
    draw();
  }

  function draw() {
    const first = Math.max(0, Math.floor(rows.scrollTop / ROW_HEIGHT) - 5);
    const last = Math.min(shown.length, first + Math.ceil(rows.clientHeight / ROW_HEIGHT) + 10);
    sheet.replaceChildren(...shown.slice(first, last).map((n, k) => {
      const row = el("div", { className: "row", role: "option", "aria-selected": n === chosen ? "true" : "false", onclick: () => choose(n, false, true) },
        columns.map((one) => {
          const cell = el("span", { className: one.numeric ? "n" : "" }, one.show(one.get(n), n));
          cell.style.width = `${one.width}px`;
          return cell;
        }));
      row.style.top = `${(first + k) * ROW_HEIGHT}px`;
      return row;
    }));
  }

  function choose(n, quiet, looks) {
    chosen = n;
    const at = shown.indexOf(n);
    if (at >= 0) {
      const top = at * ROW_HEIGHT;
      if (top < rows.scrollTop) rows.scrollTop = top;
      if (top + ROW_HEIGHT > rows.scrollTop + rows.clientHeight) rows.scrollTop = top + ROW_HEIGHT - rows.clientHeight;
    }
    draw();
    if (!quiet) onChoose(n, looks);
  }

  // Take new rows over; what the reader searches, sorts and has chosen stays.
  function update() {
    all = [...run.ids.keys()];
    words = all.map(wordsOf);
    const known = new Set([...filter.options].map((one) => one.value));
    for (const kind of new Set(run.failure.filter(Boolean))) if (!known.has(kind)) filter.append(el("option", { value: kind }, kind));
    rows.style.height = `min(26rem, ${Math.max(2, all.length) * ROW_HEIGHT + 2}px)`;
    apply();
  }

  const choices = () => ({ sort: sorted.column.name, down: sorted.down, word: find.value, least: least.value, kind: filter.value, top: rows.scrollTop, chosen });
  const step = (by) => {
    if (!shown.length) return;
    const at = shown.indexOf(chosen);
    choose(shown[at < 0 ? 0 : Math.max(0, Math.min(shown.length - 1, at + by))]);
  };
  rows.addEventListener("scroll", draw, { passive: true });
  const grid = el("div", { className: "grid" }, el("div", { className: "head" }, heads), rows);
  rows.style.width = `${wide}px`;
  const place = el("section", {}, el("div", { className: "bar" }, find, filter, least, clear, count), grid);
  new ResizeObserver(draw).observe(rows);
  update();
  [find.value, least.value] = [kept.word || "", kept.least || ""];
  if (kept.kind) filter.value = kept.kind;
  if (before) { apply(); rows.scrollTop = kept.top; }
  const names = columns.map((one) => one.name).join();
  return { place, find, step, choose, refresh: draw, update, choices, fits: () => columnsOf(run).map((one) => one.name).join() === names, moved: (where) => { if (chosen !== null) chosen = where[chosen]; } };
}
