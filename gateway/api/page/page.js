"use strict";
// Asks for the live snapshot every second and draws it. Text reaches the page as text only, never as markup.

const LIMIT = 300, EVERY_MS = 1000, KEY = "turngate-key";
const PHASES = ["waiting", "queued", "prefill", "decode", "tool", "lease", "idle"];
const $ = (id) => document.getElementById(id);
const SIZES = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];
const tokens = (n) => {
  if (n == null) return "";
  const [size, letter] = SIZES.find(([least]) => n >= least) ?? [1, ""];
  return (n / size).toFixed(size === 1 || n >= 99.95 * size ? 0 : 1) + letter;
};
const span = (s) => s == null ? "" : s >= 3600 ? (s / 3600).toFixed(1) + " h" : s >= 600 ? Math.round(s / 60) + " min" : Math.round(s) + " s";

const COLUMNS = [
  {name: "session", of: (row) => row.session.slice(0, 12), class: "id"},
  {name: "agent", of: (row) => row.agent || ""},
  {name: "client's id", of: (row) => row.client_session || "", class: "id"},
  {name: "family", of: (row) => row.family.slice(0, 8), class: "id"},
  {name: "tenant", of: (row) => row.tenant || ""},
  {name: "phase", of: (row) => row.phase + (row.waits_for ? " for " + (row.waits_for === "residency" ? "room" : row.waits_for) : row.tool ? " " + row.tool : ""), by: (row) => PHASES.indexOf(row.phase)},
  {name: "for", of: (row) => span(row.phase_s), by: (row) => -row.phase_s, class: "number"},
  {name: "turn", of: (row) => row.turn, by: (row) => -row.turn, class: "number"},
  {name: "left", of: (row) => row.expected_turns ?? "", by: (row) => row.expected_turns ?? 1e9, class: "number"},
  {name: "tokens", of: (row) => tokens(row.prompt_tokens), by: (row) => -(row.prompt_tokens ?? 0), class: "number"},
  {name: "replica", of: (row) => row.replica || ""},
];
const OPTIONAL = new Set(["agent", "client's id", "tenant"]);
let sort = COLUMNS[5], told = null, timer = 0;

function element(tag, text, name) {
  const made = document.createElement(tag);
  if (text != null) made.textContent = text;
  if (name) made.className = name;
  return made;
}

function drawing(tag, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function bar(name, from, to) {
  return drawing("rect", {class: name, x: from.toFixed(2), width: Math.max(0.15, to - from).toFixed(2), y: 0, height: 10});
}

function canvas(name, parts, label) {
  const made = drawing("svg", {class: name, viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img", "aria-label": label});
  made.append(...parts);
  return made;
}

function replica(row) {
  const item = element("li", null, row.is_up ? "" : "down"), head = element("b", row.id);
  head.append(element("span", row.is_up ? `${row.slots_used} of ${row.slots ?? "?"} slots` : "down", "dim"));
  const full = row.capacity_tokens || row.ceiling_tokens, used = row.residency_tokens, ceiling = row.ceiling_tokens;
  const text = full ? `${tokens(used)} resident, ceiling ${tokens(ceiling)} of ${tokens(full)}` : `${tokens(used)} resident tokens, size unknown`;
  item.append(head);
  if (full) {
    const state = used > ceiling ? " over" : used > 0.9 * ceiling ? " full" : "";
    const at = Math.min(99.5, 100 * ceiling / full);
    item.append(canvas("gauge", [bar("used" + state, 0, Math.min(100, 100 * used / full)), bar("ceiling", at, at + 0.5)], text));
  }
  item.append(element("span", text, "dim"));
  return item;
}

// The phases of one session as [name, from, to] in seconds before now; a turn that goes on ends at 0.
function phases(row, turns) {
  const found = [];
  let after = null;
  for (const turn of turns.sort((a, b) => b.began_s - a.began_s)) {
    const end = turn.ended_s ?? 0, prefill = turn.prefill_s ?? end, decode = turn.decode_s ?? end;
    if (after != null && after > turn.began_s) found.push(["tool", after, turn.began_s]);
    found.push(["waiting", turn.began_s, prefill], ["prefill", prefill, decode], ["decode", decode, end]);
    for (let n = 0; n < turn.tools_s.length; n += 2) found.push(["tool", turn.tools_s[n], turn.tools_s[n + 1] ?? 0]);
    if (turn.ended_s != null && !turn.is_answered) found.push(["failed", end + 0.3, end]);
    after = end;
  }
  if (after) found.push([row.phase, after, 0]);
  return found;
}

function timeline(row, turns, seconds) {
  const at = (ago) => 100 * (1 - Math.min(ago, seconds) / seconds);
  const bars = phases(row, turns).filter(([, from, to]) => from > to && to < seconds).map(([name, from, to]) => bar(name, at(from), at(to)));
  return canvas("timeline", bars, `${turns.length} turns in the last ${seconds} seconds`);
}

function gates(rows) {
  const counted = rows.filter((row) => (row.gate || "none") !== "none"), sum = (key) => span(counted.reduce((n, row) => n + row[key], 0));
  if (!counted.length) return "";
  const [saved, held] = [sum("gate_saved_s"), sum("gate_held_s")];
  if (counted.every((row) => row.gate === "observed")) return `; gate would save ${saved}, cost ${held}`;
  return `; gate${counted.some((row) => row.gate === "open") ? " open" : ""}: saved ${saved}, cost ${held}`;
}

function draw() {
  const {states, waiting} = told, words = $("filter").value.toLowerCase(), seconds = Number($("window").value);
  $("version").textContent = told.version;
  $("counts").textContent = `${states.running} running, ${states.waiting} waiting (${waiting.residency} for room, `
    + `${waiting.slot} for a slot), ${states.idle} between turns, families: ${told.families}${gates(told.replicas)}`;
  $("replicas").replaceChildren(...told.replicas.map(replica));
  const columns = COLUMNS.filter((column) => !OPTIONAL.has(column.name) || told.sessions.some(column.of));
  $("names").replaceChildren(...columns.map((column) => {
    const cell = element("th", null, column.class === "number" ? "number" : ""), button = element("button", column.name);
    button.onclick = () => { sort = column; draw(); };
    if (column === sort) cell.setAttribute("aria-sort", "ascending");
    cell.append(button);
    return cell;
  }), element("th", `last ${seconds} s`, "dim"));
  const turns = Map.groupBy(told.turns, (turn) => turn.session), by = sort.by || sort.of;
  const rows = told.sessions.filter((row) => columns.some((column) => String(column.of(row)).toLowerCase().includes(words)));
  rows.sort((a, b) => by(a) < by(b) ? -1 : by(a) > by(b) ? 1 : b.age_s - a.age_s);
  const focused = document.activeElement?.dataset.session;
  $("rows").replaceChildren(...rows.map((row) => {
    const line = element("tr"), time = element("td", null, "time");
    line.append(...columns.map((column) => element("td", column.of(row), column.name === "phase" ? "phase " + row.phase : column.class)));
    const name = element("button", line.firstChild.textContent);
    name.onclick = () => why(row.session);
    name.dataset.session = row.session;
    line.firstChild.replaceChildren(name);
    line.firstChild.title = "why is it slow? " + row.session + (row.parent ? ", child of " + row.parent : "");
    time.append(timeline(row, turns.get(row.session) || [], seconds));
    line.append(time);
    return line;
  }));
  if (focused) $("rows").querySelector(`[data-session="${CSS.escape(focused)}"]`)?.focus();
  const hidden = told.total - told.sessions.length;
  $("more").textContent = hidden > 0 ? `${hidden} more sessions are not shown` : "";
}

// ---- why a session, or the fleet, is slow

const PARTS = {gate: ["waiting", "waiting at the gate"], engine_queue: ["queued", "queued in the engine (inferred)"],
  prefill: ["prefill", "prefill"], beside: ["beside", "prefill of other calls"], recompute: ["recompute", "recomputed prompt"],
  decode: ["decode", "decode"], tools: ["tool", "tools"], client: ["lease", "client, between turns"],
  failed: ["failed", "calls without an answer"], gateway: ["gateway", "gateway"]};
const seconds = (ms) => (ms / 1000).toFixed(2) + " s";
const percent = (part) => Math.round(100 * part) + " %";

function stacked(split, whole, label) {
  const bars = [];
  let at = 0;
  for (const name of Object.keys(PARTS)) {
    const width = 100 * (split[name] || 0) / whole;
    if (width > 0) bars.push(bar(PARTS[name][0], at, at + width));
    at += width;
  }
  return canvas("share", bars, label);
}

function splitRow(name, colour, ms, whole) {
  const line = element("tr"), cell = element("td");
  cell.append(canvas("share", [bar(colour, 0, 100 * ms / whole)], percent(ms / whole)));
  line.append(element("td", name), element("td", `${seconds(ms)}, ${percent(ms / whole)}`, "number"), cell);
  return line;
}

function waited(turn) {
  const what = {share: "its tenant's share", slot: "a slot", replica: "a replica"}[turn.waited_for] || "room";
  const behind = [...(turn.waited_behind || []).map((id) => id.slice(0, 12))];
  if (turn.waited_behind_others) behind.push(`${turn.waited_behind_others} of other tenants`);
  return `at the gate for ${what}${behind.length ? ", behind " + behind.join(", ") : ""}`
    + (turn.wait_estimate_ms ? `; expected ${seconds(turn.wait_estimate_ms)}` : "");
}

function turnItem(turn, longest) {
  const item = element("li"), said = [], cached = turn.cached_tokens || 0;
  const names = Object.keys(PARTS).filter((name) => turn.time_ms[name] >= 1).map((name) => `${PARTS[name][1]} ${seconds(turn.time_ms[name])}`);
  if (turn.waited_for) said.push(waited(turn));
  if (turn.prompt_tokens != null) said.push(`${tokens(cached)} tokens cached, ${tokens(turn.prompt_tokens - cached)} computed`
    + (turn.recomputed_tokens ? ` (${tokens(turn.recomputed_tokens)} of them again)` : "") + `, ${tokens(turn.output_tokens || 0)} written`);
  for (const [name, ms] of Object.entries(turn.tools || {})) said.push(`tool ${name} ${seconds(ms)}`);
  if (turn.then_ms >= 1) said.push(`then ${turn.then ? "tool " + turn.then : "the client"} ${seconds(turn.then_ms)}`);
  item.append(element("span", `${seconds(turn.began_ms)}: turn ${turn.turn ?? "?"}, ${seconds(turn.total_ms)} = ${names.join(" + ")}`),
    stacked(turn.time_ms, longest, names.join(", ")), element("span", said.join("; "), "dim"));
  return item;
}

function explain(page) {
  const whole = Object.values(page.split).reduce((sum, ms) => sum + ms, 0) || 1, shown = page.shown;
  const of = page.of ? `${shown.session || page.of}${shown.agent ? ", " + shown.agent : ""}: ` : "The fleet: ";
  $("why-of").textContent = `${of}${page.turns} requests of ${page.num_sessions} sessions, ${seconds(page.measured_ms)} in all`;
  $("why-remedy").textContent = page.remedy;
  const parts = Object.entries(page.split).sort((a, b) => b[1] - a[1]).filter(([, ms]) => ms >= 0.005 * whole);
  const tools = Object.entries(page.tools).sort((a, b) => b[1] - a[1]).slice(0, 5);
  $("why-split").replaceChildren(...parts.map(([name, ms]) => splitRow(PARTS[name][1], PARTS[name][0], ms, whole)),
    ...tools.map(([name, ms]) => splitRow("tool " + name, "tool", ms, whole)));
  const longest = Math.max(1, ...page.timeline.map((turn) => turn.total_ms));
  $("why-turns").replaceChildren(...page.timeline.map((turn) => turnItem(turn, longest)));
  $("why").hidden = false;
}

async function why(of) {
  const key = sessionStorage.getItem(KEY), headers = key ? {Authorization: "Bearer " + key} : {};
  try {
    const answer = await fetch("/v1/turngate/why" + (of ? "?of=" + encodeURIComponent(of) : ""), {headers, cache: "no-store"});
    const page = await answer.json();
    if (answer.ok) explain(page); else complain(page.error.message, false);
  } catch (error) {
    complain(`The gateway does not answer (${error.message}).`, false);
  }
}

function complain(text, asks) {
  $("problem").textContent = text;
  $("problem").hidden = !text;
  $("ask").hidden = !asks;
}

async function look() {
  clearTimeout(timer);
  const key = sessionStorage.getItem(KEY), headers = key ? {Authorization: "Bearer " + key} : {};
  try {
    const answer = await fetch(`/v1/turngate/live?limit=${LIMIT}`, {headers, cache: "no-store", signal: AbortSignal.timeout(5000)});
    if (answer.status === 401 || answer.status === 403) {
      complain(key ? "This key is not known here." : "Give a key: of the operator, or of a client.", true);
      return;
    }
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    told = await answer.json();
    complain("", false);
    draw();
  } catch (error) {
    complain(`The gateway does not answer (${error.message}). What is shown is old.`, false);
  }
  timer = setTimeout(look, document.hidden ? 10 * EVERY_MS : EVERY_MS);
}

$("ask").onsubmit = (event) => { event.preventDefault(); sessionStorage.setItem(KEY, $("key").value); $("key").value = ""; look(); };
$("why-fleet").onclick = () => why("");
$("why-close").onclick = () => { $("why").hidden = true; };
$("filter").oninput = $("window").onchange = () => told && draw();
document.onvisibilitychange = look;
look();
