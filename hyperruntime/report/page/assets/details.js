"use strict";
// The details of one generation or trajectory: read from its block when it is opened.
const WHERE_ALL = "To read details, write a page with them: hyperrun report RUN";
const isWhole = document.readyState !== "loading" ? Promise.resolve()
  : new Promise((done) => document.addEventListener("DOMContentLoaded", done, { once: true })); // the blocks come last
let isOver = false; // the server of a live page has ended: another user may have its port, and would get the token
async function detailsOf(run, number, n) {
  if (isOver) return null;
  if (isLive) {
    try {
      const answer = await fetch(`details?id=${encodeURIComponent(run.ids[n])}`);
      return answer.ok ? await answer.json() : null;
    } catch {
      return null; // there is no connection
    }
  }
  const place = run.details[n];
  if (!place) return null;
  await isWhole;
  const [block, offset, length] = place;
  const blocks = document.querySelectorAll(`script.block[data-run="${number}"]`);
  const coded = atob(blocks[block].textContent.slice(offset, offset + length));
  const bytes = Uint8Array.from(coded, (letter) => letter.charCodeAt(0));
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(plain).text());
}

function fold(title, open, ...children) {
  return el("details", { open: open ? true : null }, el("summary", {}, title), ...children);
}

function diffView(diff) {
  const kind = (line) => {
    if (/^(diff --git|\+\+\+ |--- )/.test(line)) return "file";
    if (line.startsWith("@@")) return "place";
    if (line.startsWith("+")) return "added";
    return line.startsWith("-") ? "removed" : "";
  };
  return el("pre", { className: "diff" }, diff.replace(/\n$/, "").split("\n").map((line) => el("span", { className: kind(line) }, line || " ")));
}

const isTool = (title) => /^(tool|call|result|output)/i.test(title);

function transcriptView(transcript, open) {
  return fold(transcript.title, open, transcript.parts.map(([title, body]) => (title
    ? fold(title, body.length < 4000 && !isTool(title), body ? el("pre", {}, body) : null) : el("pre", {}, body))));
}

function tasksView(tasks) {
  if (!tasks.length) return null;
  const rows = tasks.map((task) => el("tr", {}, el("td", {}, task.domain), el("td", {}, task.split), el("td", {}, task.task),
    el("td", { className: "n" }, text.score(task.score)), el("td", {}, task.valid === false ? "invalid" : ""), el("td", {}, task.detail)));
  const pictures = tasks.filter((task) => task.picture).map((task) => el("figure", {},
    el("img", { alt: `answer to ${task.task}`, src: `data:image/svg+xml;base64,${task.picture}` }),
    el("figcaption", {}, `${task.split} ${task.task}: ${text.score(task.score)}`)));
  const answers = tasks.filter((task) => task.answer).map((task) => fold(`answer to ${task.split} ${task.task}`, false, el("pre", {}, task.answer)));
  return [
    el("h3", {}, "Scores by task"),
    el("div", { className: "wide" }, el("table", {}, el("thead", {}, el("tr", {}, ["domain", "split", "task", "score", "", "what the domain says"].map((name) => el("th", { className: name === "score" ? "n" : "" }, name)))), el("tbody", {}, rows))),
    el("div", { className: "pictures" }, pictures),
    answers.length ? fold("Answers", false, answers) : null,
  ];
}

function stepsView(run, n) {
  const rows = Object.entries(run.steps).map(([name, values]) => [name, values[n]]).filter(([, value]) => value);
  return rows.length ? fold("Time by step", false, meters(rows, text.seconds)) : null;
}

function generationView(run, n, found) {
  if (!found) return [stepsView(run, n)];
  const settings = Object.entries(found.settings).filter(([, value]) => value !== null && value !== "");
  return [
    tasksView(found.tasks),
    found.left_out.map((missing) => el("p", { className: "note" }, `${missing}.`)),
    found.diff ? fold("Change of the parent", true, diffView(found.diff)) : el("p", { className: "note" }, "It has no change of its own."),
    found.dropped.length ? fold(`${found.dropped.length} changes left out`, false, el("ul", {}, found.dropped.map(([path, why]) => el("li", {}, `${path}: ${why}`)))) : null,
    found.transcripts.map((transcript, k) => transcriptView(transcript, k === 0 && !found.diff)),
    stepsView(run, n),
    found.log ? fold("Log", false, el("pre", {}, found.log)) : null,
    settings.length ? fold("Settings", false, el("pre", {}, settings.map(([name, value]) => `${name} = ${value}`).join("\n"))) : null,
  ];
}

function messageView(message) {
  const calls = message.calls.map((call) => fold(`calls ${call.name}`, false, el("pre", {}, call.arguments)));
  const body = message.text ? (message.role === "tool" || message.role === "system"
    ? fold(message.role === "tool" ? `result, ${message.text.length} characters` : "system message", false, el("pre", {}, message.text))
    : el("pre", {}, message.text)) : null;
  return el("div", { className: `message ${/^[a-z]+$/.test(message.role) ? message.role : ""}` }, el("div", { className: "role" }, message.role), body, calls);
}

// Tokens that the model made are underlined by their probability; a hover shows the number and the logarithm.
function tokensView(segment, k) {
  const tokens = segment.ids.map((id, n) => {
    const logprob = segment.logprobs[n], made = segment.mask[n] === 1;
    const level = logprob === null || logprob === undefined ? 0 : logprob > -0.7 ? 0 : logprob > -2.3 ? 1 : logprob > -4.6 ? 2 : 3;
    const shown = !segment.texts.length ? `${id} ` : id === null ? segment.texts[n] : segment.texts[n] || "·"; // a part of a letter
    const tip = `${id === null ? "hidden token, part of a text with a key" : `token ${id}`}, ${made ? `made by the model${logprob === null || logprob === undefined ? "" : `, log probability ${logprob}`}` : "of the prompt"}`;
    return el("span", { className: made ? `l${level}` : "prompt", title: tip }, shown);
  });
  const made = sum(segment.mask);
  return fold(`Tokens of segment ${k + 1}: ${made} made by the model, ${segment.ids.length - made} of prompts`, false,
    el("p", { className: "note" }, "Underlined: probability below 50 % (blue), 10 % (orange), 1 % (red). Grey: prompt."),
    el("div", { className: "tokens" }, tokens),
    segment.left_out ? el("p", { className: "note" }, `${segment.left_out} more tokens are left out.`) : null);
}

function json(title, value) {
  const empty = !value || (typeof value === "object" && !Object.keys(value).length);
  return empty ? null : fold(title, false, el("pre", {}, typeof value === "string" ? value : JSON.stringify(value, null, 1)));
}

function trajectoryView(run, n, found) {
  const group = run.ids.map((_, k) => k).filter((k) => run.item[k] === run.item[n]);
  const rewards = group.map((k) => (run.score[k] === null ? run.failure[k] : text.score(run.score[k]))).join(", ");
  const head = el("p", {}, `Item ${run.items[run.item[n]]}, rewards of its group: ${rewards}`);
  if (!found) return [head, stepsView(run, n)];
  return [
    head, json("Error", found.error), json("Verdict", found.verdict), json("Failed tool calls", found.tool_errors),
    json("Replay", found.replay), el("h3", {}, "Conversation"), found.messages.map(messageView),
    found.segments.map(tokensView), stepsView(run, n),
  ];
}
