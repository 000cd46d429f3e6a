"use strict";
// Charts by uPlot: this file says what is drawn, and adds zoom and pan by mouse, fingers and buttons.
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
// Cividis, which is safe for colour-blind eyes; on a dark ground its dark end is lighter.
const SHADES = ["#00224e", "#35456c", "#666970", "#948e77", "#c8b866", "#fee838"];
const SHADES_ON_DARK = ["#4d73b8", "#6f83ab", "#8c909a", "#a8a187", "#c8b866", "#fee838"];

function shade(value, low, high) {
  const at = high > low ? (value - low) / (high - low) : 0.5;
  const shades = isDark() ? SHADES_ON_DARK : SHADES;
  return shades[Math.min(shades.length - 1, Math.floor(at * shades.length))];
}

// Show a part of the chart, as large as it is now times a factor, around a share of it.
function zoom(plot, key, factor, share = 0.5, by = 0) {
  const { min, max } = plot.scales[key], wide = max - min, from = min + wide * share - wide * factor * share + wide * by;
  plot.wasMoved = true;
  plot.setScale(key, { min: from, max: from + wide * factor });
}

function showAll(plot) {
  plot.wasMoved = false;
  plot.setData(plot.data);
}

// Buttons for those without a wheel; they stay when the chart is drawn again, and keep the focus.
function zoomBar(name, plotOf) {
  const button = (sign, label, act) => el("button", { "aria-label": `${label}, ${name}`, title: label, onclick: () => { const plot = plotOf(); if (plot) act(plot); } }, sign);
  return el("div", { className: "zoom", role: "group", "aria-label": `zoom of ${name}` },
    button("+", "zoom in", (plot) => zoom(plot, "x", 0.8)), button("−", "zoom out", (plot) => zoom(plot, "x", 1.25)),
    button("←", "to the left", (plot) => zoom(plot, "x", 1, 0.5, -0.2)), button("→", "to the right", (plot) => zoom(plot, "x", 1, 0.5, 0.2)),
    button("all", "show all", showAll));
}

// A wheel zooms, a drag pans, two fingers do both.
function moves(touch) {
  return {
    hooks: {
      ready: (plot) => {
        const over = plot.over, fingers = new Map();
        over.style.touchAction = touch;
        over.addEventListener("wheel", (event) => {
          event.preventDefault();
          const box = over.getBoundingClientRect(), factor = event.deltaY < 0 ? 0.8 : 1.25;
          zoom(plot, "x", factor, (event.clientX - box.left) / box.width);
          if (event.ctrlKey || event.shiftKey) zoom(plot, "y", factor, 1 - (event.clientY - box.top) / box.height);
        }, { passive: false });
        let from = null;
        const grip = () => {
          const [one, other = one] = fingers.values(), box = over.getBoundingClientRect();
          return { x: ((one.x + other.x) / 2 - box.left) / box.width, y: 1 - ((one.y + other.y) / 2 - box.top) / box.height, apart: Math.hypot(one.x - other.x, one.y - other.y) };
        };
        const hold = (far) => {
          const { x, y } = plot.scales;
          from = { ...grip(), sx: { min: x.min, wide: x.max - x.min }, sy: { min: y.min, wide: y.max - y.min }, far };
        };
        over.addEventListener("pointerdown", (event) => {
          fingers.set(event.pointerId, { x: event.clientX, y: event.clientY });
          over.setPointerCapture(event.pointerId);
          state.isHeld = true;
          hold(fingers.size > 1);
        });
        over.addEventListener("pointermove", (event) => {
          if (!fingers.has(event.pointerId)) return;
          fingers.set(event.pointerId, { x: event.clientX, y: event.clientY });
          const now = grip();
          from.far = from.far || Math.hypot((now.x - from.x) * over.clientWidth, (now.y - from.y) * over.clientHeight) > 4;
          if (!from.far) return;
          plot.wasMoved = true;
          const put = (key, old, wide, was, is) => { const min = old.min + old.wide * was - wide * is; plot.setScale(key, { min, max: min + wide }); };
          put("x", from.sx, from.sx.wide * (from.apart && now.apart ? from.apart / now.apart : 1), from.x, now.x);
          put("y", from.sy, from.sy.wide, from.y, now.y);
        });
        const release = (event) => {
          if (!fingers.delete(event.pointerId)) return;
          plot.wasDragged = from.far;
          state.isHeld = fingers.size > 0;
          if (fingers.size) hold(true);
        };
        over.addEventListener("pointerup", release);
        over.addEventListener("pointercancel", release);
        over.addEventListener("dblclick", () => showAll(plot));
      },
    },
  };
}

const padded = (_, min, max) => {
  const more = (max - min || Math.abs(max) || 1) * 0.05;
  return [min - more, max + more];
};
const across = (plot, min, max) => (plot.wasMoved ? [min, max] : padded(plot, min, max)); // what a reader chose stays
const whole = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000];

function axes(labels, more) {
  const common = { stroke: colour("faint"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line") } };
  return [{ ...common, label: labels[0], labelSize: 22, ...more }, { ...common, label: labels[1], labelSize: 22, size: 62 }];
}

function plot(place, options, data) {
  place.replaceChildren();
  const wide = () => Math.max(260, place.clientWidth);
  const made = new uPlot({ width: wide(), height: 280, ...options }, data, place);
  const watch = new ResizeObserver(() => { if (place.clientWidth) made.setSize({ width: wide(), height: 280 }); });
  watch.observe(place);
  made.stop = () => { watch.disconnect(); made.destroy(); };
  return made;
}

function quantile(sorted, share) {
  const at = (sorted.length - 1) * share, low = Math.floor(at);
  return sorted[low] + (sorted[Math.min(low + 1, sorted.length - 1)] - sorted[low]) * (at - low);
}

// Best so far, and the median and the 10th to 90th percentile of the scores in a window that moves with the run.
function progressSeries(scores) {
  const width = Math.max(5, Math.round(scores.length / 40)), best = [], low = [], middle = [], high = [];
  const every = Math.max(1, Math.floor(scores.length / 1200));
  const xs = [];
  let top = null;
  for (let n = 0; n < scores.length; n++) {
    if (scores[n] !== null && (top === null || scores[n] > top)) top = scores[n];
    if (n % every && n !== scores.length - 1) continue;
    const near = scores.slice(Math.max(0, n - width + 1), n + 1).filter((score) => score !== null).sort((a, b) => a - b);
    xs.push(n);
    best.push(top);
    low.push(near.length ? quantile(near, 0.1) : null);
    middle.push(near.length ? quantile(near, 0.5) : null);
    high.push(near.length ? quantile(near, 0.9) : null);
  }
  return [xs, best, low, middle, high];
}

// A line's colour and that of its band; Okabe and Ito's colours, which colour-blind readers can tell apart.
function inkOf(n) {
  const more = ["#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#8c909a"];
  const ink = n < 2 ? colour(n ? "best" : "accent") : more[(n - 2) % more.length];
  return [ink, n === 0 ? "#56b4e966" : n === 1 ? "#e69f0066" : `${ink}44`];
}

// The median and the quartiles over runs of the best score so far, by what was spent.
function comparedChart(place, chart, axis) {
  const xs = [...new Set(axis.curves.flatMap((curve) => curve[0]))].sort((a, b) => a - b);
  const data = [xs], series = [{ label: axis.label }], bands = [];
  axis.curves.forEach((curve, g) => {
    const [ink, soft] = inkOf(g), first = series.length, at = new Map(curve[0].map((x, n) => [x, n]));
    const last = curve[0][curve[0].length - 1];
    for (const [k, label, facts] of [[2, "median", { width: 2, stroke: ink }], [3, "75 %", { width: 0, stroke: soft }], [1, "25 %", { width: 0, stroke: soft }]]) {
      let known = null; // a curve keeps its value between its points
      data.push(xs.map((x) => { if (at.has(x)) known = curve[k][at.get(x)]; return x <= last ? known : null; }));
      series.push({ label: `${chart.groups[g]}: ${label}`, points: { show: false }, paths: uPlot.paths.stepped({ align: 1 }), value: (_, v) => text.score(v), ...facts });
    }
    bands.push({ series: [first + 1, first + 2], fill: soft });
  });
  if (chart.baseline) {
    data.push(xs.map(() => chart.baseline.score));
    series.push({ label: chart.baseline.name, stroke: colour("faint"), width: 1.5, dash: [6, 4], points: { show: false }, value: (_, v) => text.score(v) });
  }
  return plot(place, { scales: { x: { time: false, range: across }, y: { range: padded } }, axes: axes([axis.label, "best score so far"], xs.every(Number.isInteger) ? { incrs: whole } : {}), series, bands, plugins: [moves("pan-y")], cursor: { drag: { x: false, y: false } } }, data);
}

function progressChart(place, runs, column) {
  const parts = runs.map((run) => progressSeries(column(run)));
  const xs = [...new Set(parts.flatMap((part) => part[0]))].sort((a, b) => a - b);
  const at = parts.map((part) => new Map(part[0].map((x, n) => [x, n])));
  const data = [xs], series = [{ label: "number" }], bands = [];
  runs.forEach((run, r) => {
    const [ink, soft] = inkOf(r), name = runs.length > 1 ? `${run.name}: ` : "";
    const first = series.length, best = [1, "best so far", { width: 2, stroke: ink }];
    const spread = [[3, "median", { width: 1, stroke: ink, dash: [4, 3] }], [4, "90th percentile", { width: 0, stroke: soft }], [2, "10th percentile", { width: 0, stroke: soft }]];
    for (const [k, label, facts] of runs.length > 2 ? [best] : [best, ...spread]) {
      series.push({ label: name + label, spanGaps: true, points: { show: false }, value: (_, v) => text.score(v), ...facts });
      data.push(xs.map((x) => (at[r].has(x) ? parts[r][k][at[r].get(x)] : undefined)));
    }
    if (runs.length <= 2) bands.push({ series: [first + 2, first + 3], fill: soft });
  });
  const noun = runs[0].kind === "loop" ? ["generation", "score"] : ["trajectory", "reward"];
  return plot(place, { scales: { x: { time: false, range: across }, y: { range: padded } }, axes: axes(noun, { incrs: whole }), series, bands, plugins: [moves("pan-y")], cursor: { drag: { x: false, y: false } } }, data);
}

const MOST_LINES = 3000; // generations in sight with a line to each parent

// The lineage: a point for each generation, a line from each to its parent, the way to the best one highlighted.
function lineageChart(place, run, scores, byTime, chosen, hint, onChoose) {
  const x = byTime ? run.started : [...scores.keys()];
  const where = [...scores.keys()].filter((n) => x[n] !== null).sort((a, b) => x[a] - x[b] || a - b);
  const known = scores.filter((score) => score !== null);
  const low = known.length ? known.reduce((a, b) => Math.min(a, b), Infinity) : 0;
  const high = known.length ? known.reduce((a, b) => Math.max(a, b), -Infinity) : 1;
  const floor = low - Math.max(high - low, 0.01) * 0.12;
  const y = scores.map((score) => (score === null ? floor : score));
  const parent = run.parent, onPath = new Set(bestPath(run, scores));
  const hasLine = (n) => parent[n] >= 0 && x[n] !== null && x[parent[n]] !== null;
  let isCrowded = false, under = null;
  let marked = new Set();
  const mark = (n) => { marked = new Set(); for (let at = n; at !== undefined && at >= 0 && !marked.has(at); at = parent[at]) marked.add(at); };
  if (chosen !== null) mark(chosen);

  function draw(u) {
    const ctx = u.ctx, px = (n) => u.valToPos(x[n], "x", true), py = (n) => u.valToPos(y[n], "y", true);
    const { left, top, width, height } = u.bbox, scale = devicePixelRatio || 1;
    const seen = (n) => x[n] >= u.scales.x.min && x[n] <= u.scales.x.max;
    ctx.save();
    ctx.beginPath(); ctx.rect(left, top, width, height); ctx.clip();
    const shown = where.filter(seen);
    const line = (list, ink, thick) => {
      ctx.strokeStyle = ink; ctx.lineWidth = thick * scale; ctx.beginPath();
      for (const n of list) if (hasLine(n)) { ctx.moveTo(px(parent[n]), py(parent[n])); ctx.lineTo(px(n), py(n)); }
      ctx.stroke();
    };
    isCrowded = shown.length > MOST_LINES;
    if (!isCrowded) line(shown, colour("line"), 1);
    showHint();
    line([...onPath], colour("best"), 2.5);
    if (marked.size) line([...marked], colour("accent"), 2.5);
    const size = Math.max(2, Math.min(7, 120 / Math.sqrt(shown.length + 1))) * scale;
    for (const n of shown) {
      const [cx, cy] = [px(n), py(n)];
      if (scores[n] === null) {
        ctx.strokeStyle = colour("faint"); ctx.lineWidth = scale; ctx.beginPath();
        ctx.moveTo(cx - size * 0.7, cy - size * 0.7); ctx.lineTo(cx + size * 0.7, cy + size * 0.7);
        ctx.moveTo(cx + size * 0.7, cy - size * 0.7); ctx.lineTo(cx - size * 0.7, cy + size * 0.7); ctx.stroke();
      } else {
        ctx.fillStyle = shade(scores[n], low, high);
        ctx.beginPath(); ctx.arc(cx, cy, size, 0, 7); ctx.fill();
        const ring = marked.has(n) ? "accent" : onPath.has(n) ? "best" : size > 4 * scale ? "ground" : "";
        if (ring) { ctx.strokeStyle = colour(ring); ctx.lineWidth = 1.5 * scale; ctx.stroke(); }
      }
    }
    ctx.restore();
  }

  const nearest = (u) => {
    const [cx, cy] = [u.cursor.left, u.cursor.top];
    if (cx === undefined || cx < 0) return null;
    const [from, to] = [u.posToVal(cx - 14, "x"), u.posToVal(cx + 14, "x")];
    let found = null, least = 20;
    for (const n of where) {
      if (x[n] < from || x[n] > to) continue;
      const away = Math.hypot(u.valToPos(x[n], "x") - cx, u.valToPos(y[n], "y") - cy);
      if (away < least) [found, least] = [n, away];
    }
    return found;
  };
  const ways = () => (matchMedia("(pointer: coarse), (max-width: 40rem)").matches ? "two fingers: zoom, drag: pan, tap: open"
    : "wheel: zoom (shift: height too), drag: pan, double click: all, click: open");
  const without = scores.length - where.length;
  const general = () => [ways(),
    isCrowded ? `more than ${text.count(MOST_LINES)} in sight: lines to parents come with a closer view` : "",
    without ? `${text.count(without)} without a time are not shown` : ""].filter(Boolean).join("; ");
  const say = (n) => (n === null ? general()
    : `${run.ids[n]}  ${scores[n] === null ? run.failure[n] || "no score" : text.score(scores[n])}  parent ${parent[n] >= 0 ? run.ids[parent[n]] : "none"}`);
  function showHint() { hint.textContent = say(under); }
  const made = plot(place, {
    scales: { x: { time: byTime, range: across }, y: { range: padded } },
    axes: axes([byTime ? "time" : "generation", "score"], byTime ? {} : { incrs: whole }),
    legend: { show: false },
    series: [{}, { paths: () => null, points: { show: false } }],
    cursor: { drag: { x: false, y: false }, points: { show: false } },
    plugins: [moves("none"), { hooks: { draw, setCursor: (u) => { under = nearest(u); showHint(); } } }],
  }, [where.map((n) => x[n]), where.map((n) => y[n])]);
  made.over.addEventListener("click", () => { const n = nearest(made); if (n !== null && !made.wasDragged) onChoose(n); });
  showHint();
  made.mark = (n) => { mark(n); made.redraw(); };
  made.path = [...onPath];
  return made;
}
