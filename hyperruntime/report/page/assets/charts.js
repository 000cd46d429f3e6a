"use strict";
// Charts by uPlot: this file says what is drawn, and adds a wheel that zooms and a drag that pans.
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
// Cividis, which is safe for colour-blind eyes; on a dark ground its dark end is lighter.
const SHADES = ["#00224e", "#35456c", "#666970", "#948e77", "#c8b866", "#fee838"];
const SHADES_ON_DARK = ["#4d73b8", "#6f83ab", "#8c909a", "#a8a187", "#c8b866", "#fee838"];

function shade(value, low, high) {
  const at = high > low ? (value - low) / (high - low) : 0.5;
  const shades = isDark() ? SHADES_ON_DARK : SHADES;
  return shades[Math.min(shades.length - 1, Math.floor(at * shades.length))];
}

function moves() {
  return {
    hooks: {
      ready: (plot) => {
        const over = plot.over;
        const set = (key, min, max) => { plot.wasMoved = true; plot.setScale(key, { min, max }); };
        over.addEventListener("wheel", (event) => {
          event.preventDefault();
          const box = over.getBoundingClientRect();
          const factor = event.deltaY < 0 ? 0.8 : 1.25;
          for (const [key, at] of [["x", event.clientX - box.left], ["y", event.clientY - box.top]]) {
            if (key === "y" && !event.ctrlKey && !event.shiftKey) continue;
            const middle = plot.posToVal(at, key);
            const { min, max } = plot.scales[key];
            set(key, middle - (middle - min) * factor, middle + (max - middle) * factor);
          }
        }, { passive: false });
        let from = null;
        over.addEventListener("pointerdown", (event) => {
          from = { x: event.clientX, y: event.clientY, sx: { ...plot.scales.x }, sy: { ...plot.scales.y }, far: false };
          over.setPointerCapture(event.pointerId);
          state.isHeld = true;
        });
        over.addEventListener("pointermove", (event) => {
          if (!from) return;
          const [dx, dy] = [event.clientX - from.x, event.clientY - from.y];
          from.far = from.far || Math.hypot(dx, dy) > 4;
          if (!from.far) return;
          const [wide, high] = [over.clientWidth, over.clientHeight];
          const [rx, ry] = [from.sx.max - from.sx.min, from.sy.max - from.sy.min];
          set("x", from.sx.min - (dx / wide) * rx, from.sx.max - (dx / wide) * rx);
          set("y", from.sy.min + (dy / high) * ry, from.sy.max + (dy / high) * ry);
        });
        over.addEventListener("pointerup", () => { plot.wasDragged = from !== null && from.far; from = null; state.isHeld = false; });
        over.addEventListener("pointercancel", () => { from = null; state.isHeld = false; });
        over.addEventListener("dblclick", () => { plot.wasMoved = false; plot.setData(plot.data); }); // all of it again
      },
    },
  };
}

const padded = (_, min, max) => {
  const more = (max - min || Math.abs(max) || 1) * 0.05;
  return [min - more, max + more];
};
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

function progressChart(place, runs, column) {
  const parts = runs.map((run) => progressSeries(column(run)));
  const xs = [...new Set(parts.flatMap((part) => part[0]))].sort((a, b) => a - b);
  const at = parts.map((part) => new Map(part[0].map((x, n) => [x, n])));
  const data = [xs], series = [{ label: "number" }], bands = [];
  const inks = [[colour("accent"), "#56b4e966"], [colour("best"), "#e69f0066"]];
  runs.forEach((run, r) => {
    const [ink, soft] = inks[r % 2], name = runs.length > 1 ? `${run.name}: ` : "";
    const first = series.length;
    for (const [k, label, facts] of [
      [1, "best so far", { width: 2, stroke: ink }], [3, "median", { width: 1, stroke: ink, dash: [4, 3] }],
      [4, "90th percentile", { width: 0, stroke: soft }], [2, "10th percentile", { width: 0, stroke: soft }],
    ]) {
      series.push({ label: name + label, spanGaps: true, points: { show: false }, value: (_, v) => text.score(v), ...facts });
      data.push(xs.map((x) => (at[r].has(x) ? parts[r][k][at[r].get(x)] : undefined)));
    }
    bands.push({ series: [first + 2, first + 3], fill: soft });
  });
  const noun = runs[0].kind === "loop" ? ["generation", "score"] : ["trajectory", "reward"];
  return plot(place, { scales: { x: { time: false, range: padded }, y: { range: padded } }, axes: axes(noun, { incrs: whole }), series, bands, plugins: [moves()], cursor: { drag: { x: false, y: false } } }, data);
}

// The lineage: a point for each generation, a line from each to its parent, the way to the best one highlighted.
function lineageChart(place, run, scores, byTime, chosen, hint, onChoose) {
  const count = scores.length;
  const where = [...Array(count).keys()];
  const x = byTime ? run.started.map((time, n) => (time === null ? n : time)) : where;
  where.sort((a, b) => x[a] - x[b] || a - b);
  const known = scores.filter((score) => score !== null);
  const low = known.length ? known.reduce((a, b) => Math.min(a, b), Infinity) : 0;
  const high = known.length ? known.reduce((a, b) => Math.max(a, b), -Infinity) : 1;
  const floor = low - Math.max(high - low, 0.01) * 0.12;
  const y = scores.map((score) => (score === null ? floor : score));
  const onPath = new Set(run.path || []), parent = run.parent || [];
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
      for (const n of list) if (parent[n] >= 0) { ctx.moveTo(px(parent[n]), py(parent[n])); ctx.lineTo(px(n), py(n)); }
      ctx.stroke();
    };
    if (shown.length <= 3000) line(shown, colour("line"), 1);
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
  const say = (n) => (n === null ? "wheel: zoom (shift: height too), drag: pan, double click: all, click: open"
    : `${run.ids[n]}  ${scores[n] === null ? run.failure[n] || "no score" : text.score(scores[n])}  parent ${parent[n] >= 0 ? run.ids[parent[n]] : "none"}`);
  hint.textContent = say(null);
  const made = plot(place, {
    scales: { x: { time: byTime, range: padded }, y: { range: padded } },
    axes: axes([byTime ? "time" : "generation", "score"], byTime ? {} : { incrs: whole }),
    legend: { show: false },
    series: [{}, { paths: () => null, points: { show: false } }],
    cursor: { drag: { x: false, y: false }, points: { show: false } },
    plugins: [moves(), { hooks: { draw, setCursor: (u) => { hint.textContent = say(nearest(u)); } } }],
  }, [where.map((n) => x[n]), where.map((n) => y[n])]);
  made.over.addEventListener("click", () => { const n = nearest(made); if (n !== null && !made.wasDragged) onChoose(n); });
  made.mark = (n) => { mark(n); made.redraw(); };
  return made;
}
