"use strict";
// Asks for the live snapshot every second and draws it. Text reaches the page as text only, never as markup.

const LIMIT = 300, EVERY_MS = 1000, KEY = "turngate-key";
const PHASES = ["waiting", "queued", "prefill", "decode", "tool", "lease", "idle"];
const $ = (id) => document.getElementById(id);
const tokens = (n) => n == null ? "" : n >= 1e6 ? (n / 1e6).toFixed(1) + "M" : n >= 1e3 ? (n / 1e3).toFixed(1) + "k" : String(n);
const span = (s) => s == null ? "" : s >= 3600 ? (s / 3600).toFixed(1) + " h" : s >= 600 ? Math.round(s / 60) + " min" : Math.round(s) + " s";

const COLUMNS = [
  {name: "session", of: (row) => row.session.slice(0, 12), class: "id"},
  {name: "agent", of: (row) => row.agent || ""},
  {name: "client's id", of: (row) => row.client_session || "", class: "id"},
  {name: "family", of: (row) => row.family.slice(0, 8), class: "id"},
  {name: "tenant", of: (row) => row.tenant || ""},
  {name: "phase", of: (row) => row.phase + (row.waits_for ? " for " + (row.waits_for === "residency" ? "room" : row.waits_for) : ""), by: (row) => PHASES.indexOf(row.phase)},
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
  $("rows").replaceChildren(...rows.map((row) => {
    const line = element("tr"), time = element("td", null, "time");
    line.append(...columns.map((column) => element("td", column.of(row), column.name === "phase" ? "phase " + row.phase : column.class)));
    line.firstChild.title = row.session + (row.parent ? ", child of " + row.parent : "");
    time.append(timeline(row, turns.get(row.session) || [], seconds));
    line.append(time);
    return line;
  }));
  const hidden = told.total - told.sessions.length;
  $("more").textContent = hidden > 0 ? `${hidden} more sessions are not shown` : "";
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
$("filter").oninput = $("window").onchange = () => told && draw();
document.onvisibilitychange = look;
look();
