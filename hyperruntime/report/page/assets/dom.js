"use strict";
const isLive = document.getElementById("position") !== null;

// Every text of a run becomes a text node: no text of an agent is ever read as HTML.
function el(tag, facts, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(facts || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "className") made.className = value;
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) {
    if (child !== undefined && child !== null) made.append(child instanceof Node ? child : String(child));
  }
  return made;
}

const text = {
  score: (value) => (value === null || value === undefined ? "" : value.toFixed(4)),
  count: (value) => (value === null || value === undefined ? "" : value.toLocaleString("en")),
  money: (value) => (value ? value.toLocaleString("en", { maximumSignificantDigits: 4 }) : ""), // 0: no price is known
  seconds: (value) => {
    if (value === null || value === undefined) return "";
    if (value < 59.95) return `${value.toFixed(1)} s`;
    const whole = Math.round(value), minutes = Math.floor(whole / 60);
    return minutes < 60 ? `${minutes}m ${whole % 60}s` : `${Math.floor(minutes / 60)}h ${minutes % 60}m`;
  },
  time: (value) => (value ? new Date(value * 1000).toISOString().replace("T", " ").slice(0, 19) : ""),
};

const sum = (values) => values.reduce((total, value) => total + (value || 0), 0);

function meters(rows, show) {
  const most = Math.max(...rows.map((row) => row[1]), 1e-9);
  return rows.map(([name, value]) => {
    const bar = el("i", {});
    bar.style.width = `${Math.max(0.5, (100 * value) / most)}%`;
    return el("div", { className: "meter" }, el("span", {}, name), bar, el("span", { className: "n" }, show(value)));
  });
}

function select(label, choices, chosen, onchange) {
  const made = el("select", { "aria-label": label, onchange: () => onchange(made.value) });
  for (const choice of choices) made.append(el("option", { value: choice, selected: choice === chosen }, choice));
  return made;
}
