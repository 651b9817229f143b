// What the page knows and remembers: the suspects, the decisions, undo and redo, and where the reviewer was.

const data = JSON.parse(document.getElementById("data").textContent);
const { classes, suspects, references } = data;
const byId = (id) => document.getElementById(id);
const KEY = "noisesieve:" + data.run; // of everything that is stored of this run
const ITEM = KEY + ":row:"; // and a row's id: its decision
const WORDS = { accept: "accepted", keep: "kept", relabel: "changed", unusable: "unusable" };
const MARKS = { accept: "✓ ", keep: "= ", relabel: "✎ " };
const MOST_UNDO = 300;
const numberOf = new Map(suspects.map((suspect, number) => [suspect.id, number]));
const decisions = new Map(); // id → decision; also of rows that another page of this run shows
let past = []; // [{ ids, before, after }], for undo
let future = []; // for redo
let remembers = true;

function recall(name) {
  try { return localStorage.getItem(name); } catch { remembers = false; return null; }
}
function remember(name, value) {
  try { localStorage.setItem(name, value); } catch { remembers = false; }
  byId("storage-warning").hidden = remembers;
}
function recallJson(name, fallback) {
  try { return JSON.parse(recall(name)) ?? fallback; } catch { return fallback; }
}
const isDecision = (d) => Object.hasOwn(WORDS, d?.decision);
function storedDecisions() {
  const entries = recallJson(KEY, []); // of a page of an earlier version: all in one list
  const all = new Map((Array.isArray(entries) ? entries : []).filter((entry) =>
    Array.isArray(entry) && typeof entry[0] === "string" && isDecision(entry[1])));
  try {
    for (let i = 0; i < localStorage.length; i++) {
      const key = localStorage.key(i);
      if (!key.startsWith(ITEM)) continue;
      const d = recallJson(key, null), id = key.slice(ITEM.length);
      if (isDecision(d)) all.set(id, d); else all.delete(id); // null: undone
    }
  } catch { remembers = false; }
  return all;
}
function loadDecisions() {
  for (const [id, d] of storedDecisions()) decisions.set(id, d);
  const steps = (name) => recallJson(KEY + name, []).filter?.((step) => Array.isArray(step?.ids)) ?? [];
  past = steps(":undo");
  future = steps(":redo");
}
function saveDecisions(ids) { // one entry per row: pages and tabs of the same run never overwrite each other's
  for (const id of ids) remember(ITEM + id, JSON.stringify(decisions.get(id) ?? null));
  remember(KEY + ":undo", JSON.stringify(past.slice(-MOST_UNDO)));
  remember(KEY + ":redo", JSON.stringify(future.slice(-MOST_UNDO)));
}
function decidedElsewhere(key, text) { // another tab, or a page that was left a moment ago, has stored a decision
  if (!key?.startsWith(ITEM)) return false;
  const id = key.slice(ITEM.length);
  let d = null;
  try { d = JSON.parse(text); } catch { /* not ours */ }
  if (isDecision(d)) decisions.set(id, d); else decisions.delete(id);
  if (numberOf.has(id)) updateCard(numberOf.get(id));
  return true;
}

// Every decision has its row's given label and hash, so that any page of this run can write it to decisions.csv.
function record(suspect, decision, label, how) {
  return {
    decision, label, by: byId("reviewer").value.trim(), at: new Date().toISOString(), how,
    path: suspect.path, sha256: suspect.sha256, given: name(suspect.given), sample: suspect.sample,
  };
}
function change(entries) { // [[id, decision or undefined]]: one step of undo
  const ids = entries.map(([id]) => id);
  past.push({ ids, before: ids.map((id) => decisions.get(id) ?? null), after: entries.map(([, d]) => d ?? null) });
  future = [];
  put(ids, entries.map(([, d]) => d));
}
function put(ids, values) {
  ids.forEach((id, i) => { if (values[i]) decisions.set(id, values[i]); else decisions.delete(id); });
  saveDecisions(ids);
  for (const id of ids) if (numberOf.has(id)) updateCard(numberOf.get(id));
  showProgress();
}
function step(from, to, field) {
  const last = from.pop();
  if (!last) return null;
  to.push(last);
  put(last.ids, last[field]);
  return last;
}

// Words

function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}
const name = (number) => (number === null || number === undefined ? "?" : classes[number]);
const percent = (value) => (value > 0.995 && value < 1 ? ">99 %" : value < 0.005 && value > 0 ? "<1 %" : Math.round(100 * value) + " %");
const decisionOf = (suspect) => decisions.get(suspect.id);
const otherClass = (suspect) => suspect.suggested ?? suspect.top.find(([number]) => number !== suspect.given)?.[0] ?? null;
function describe(suspect) {
  const d = decisionOf(suspect);
  if (!d) return "undecided";
  return d.decision === "unusable" ? "unusable" : WORDS[d.decision] + ": " + d.label;
}
function chanceWords(chance) {
  if (chance === null) return "Too few labels to tell how many like this are wrong.";
  if (chance >= 0.975) return "Almost all like this are wrong.";
  if (chance >= 0.925) return "About 19 of 20 like this are wrong.";
  if (chance < 0.05) return "Few like this are wrong.";
  const tenth = Math.round(10 * chance);
  return tenth === 5 ? "About half of those like this are wrong." : `About ${tenth} of 10 like this are wrong.`;
}
// The probabilities of classes that add up with P(wrong): the given label has what is left of it.
function shareOf(suspect, number) {
  if (suspect.chance === null) return null;
  if (number === suspect.given) return 1 - suspect.chance;
  const own = suspect.top.find(([other]) => other === number)?.[1] ?? 0;
  return suspect.chance * Math.min(1, own / Math.max(1e-6, 1 - suspect.givenProbability));
}
function announce(text) { byId("live").textContent = text; }
function fit(image) { image.classList.toggle("tiny", Math.max(image.naturalWidth, image.naturalHeight) <= 64); }
function imageOf(source) {
  const image = element("img");
  image.alt = "";
  image.addEventListener("load", () => fit(image));
  image.src = source;
  return image;
}

// decisions.csv: cells that a spreadsheet would run as a formula get a leading quote, which `noisesieve apply` removes

const COLUMNS = ["id", "path", "sha256", "given", "decision", "label", "reviewer", "decided_at", "run", "sample", "how"];
function cell(value) {
  let text = String(value ?? "");
  if (/^'*[=+\-@\t\r\n]/.test(text)) text = "'" + text;
  return /[",\r\n]/.test(text) || text !== text.trim() ? '"' + text.replaceAll('"', '""') + '"' : text;
}
function csv() {
  const lines = [COLUMNS];
  const order = [...suspects.map((s) => s.id).filter((id) => decisions.has(id)), ...[...decisions.keys()].filter((id) => !numberOf.has(id))];
  for (const id of order) {
    const d = decisions.get(id), s = suspects[numberOf.get(id)];
    lines.push([id, s?.path ?? d.path, s?.sha256 ?? d.sha256, s ? name(s.given) : d.given, d.decision,
      d.decision === "unusable" ? "" : d.label, d.by, d.at, data.run, (s?.sample ?? d.sample) ? "yes" : "", d.how]);
  }
  return lines.map((line) => line.map(cell).join(",")).join("\n") + "\n";
}
function readCsv(text) { // → objects by column; quotes as in RFC 4180
  const rows = [[]];
  let value = "", quoted = false;
  const end = () => { rows.at(-1).push(/^'+[=+\-@\t\r\n]/.test(value) ? value.slice(1) : value); value = ""; };
  for (let i = 0; i < text.length; i++) {
    const c = text[i];
    if (quoted) {
      if (c !== '"') value += c;
      else if (text[i + 1] === '"') { value += '"'; i++; } else quoted = false;
    } else if (c === '"' && value === "") quoted = true;
    else if (c === ",") end();
    else if (c === "\n") { end(); rows.push([]); }
    else if (c !== "\r") value += c;
  }
  end();
  const [header, ...body] = rows;
  return body.filter((row) => row.length === header.length).map((row) => Object.fromEntries(header.map((column, i) => [column, row[i]])));
}
