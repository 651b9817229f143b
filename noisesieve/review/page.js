// The page: dialogs, keys, events, and how it begins.

const MOST_OPTIONS = 200;

function saveView() {
  const filters = Object.fromEntries(FILTERS.map((id) => [id, byId(id).value]));
  remember(KEY + ":view", JSON.stringify({ filters, extra, id: current()?.id ?? null, closing: at >= view.length }));
}
function loadView() {
  const saved = recallJson(KEY + ":view", null);
  for (const [id, value] of Object.entries(saved?.filters ?? {})) {
    if (!FILTERS.includes(id) || typeof value !== "string") continue;
    if (id === "filter-pair" && value) choose(id, value, value.split(">").map((number) => name(Number(number))).join(" → "));
    else byId(id).value = value;
  }
  if (Array.isArray(saved?.extra?.margin)) extra.margin = saved.extra.margin;
  if (typeof saved?.extra?.group === "string") extra.group = saved.extra.group;
  applyFilters();
  const here = view.indexOf(numberOf.get(saved?.id));
  const open = view.findIndex((number) => !decisionOf(suspects[number]));
  goTo(here >= 0 ? here : open >= 0 ? open : view.length);
}
function foldOverview() {
  if (!byId("overview").open) return;
  byId("overview").open = false;
  remember("noisesieve:overview", "closed");
}

// Another class

let matches = [], marked = 0;
function openChooser() {
  if (!current()) return;
  byId("chooser-text").value = "";
  listClasses();
  byId("chooser").showModal();
  byId("chooser-text").focus();
}
function listClasses() {
  const text = byId("chooser-text").value.trim().toLowerCase();
  const likely = current().top.map(([number]) => number);
  const all = [...likely, ...classes.map((_, i) => i).filter((i) => !likely.includes(i))];
  matches = all.filter((i) => classes[i].toLowerCase().includes(text));
  const fits = (i) => (classes[i].toLowerCase() === text ? 2 : classes[i].toLowerCase().startsWith(text) ? 1 : 0);
  matches.sort((a, b) => fits(b) - fits(a)); // a stable sort: likely classes stay before others
  const items = matches.slice(0, MOST_OPTIONS).map((number, i) => {
    const item = element("li");
    item.id = "option-" + i;
    item.setAttribute("role", "option");
    item.append(element("bdi", "", classes[number]));
    item.addEventListener("click", () => pick(number));
    return item;
  });
  byId("chooser-note").textContent = matches.length > MOST_OPTIONS ? `and ${matches.length - MOST_OPTIONS} more: type to narrow` : matches.length ? "" : "no such class in this dataset";
  byId("chooser-list").replaceChildren(...items);
  markOption(0);
}
function markOption(i) {
  const shown = Math.min(matches.length, MOST_OPTIONS);
  marked = shown ? (i + shown) % shown : 0;
  for (const item of byId("chooser-list").children) item.setAttribute("aria-selected", String(item.id === "option-" + marked));
  const item = byId("option-" + marked);
  item?.scrollIntoView({ block: "nearest" });
  if (item) byId("chooser-text").setAttribute("aria-activedescendant", item.id);
  else byId("chooser-text").removeAttribute("aria-activedescendant");
}
function pick(number) {
  byId("chooser").close();
  byId("focus").focus({ preventScroll: true }); // or the hidden field would swallow the next key
  take(number);
}

// decisions.csv, out and in

function download() {
  const link = element("a");
  link.href = URL.createObjectURL(new Blob([csv()], { type: "text/csv" }));
  link.download = "decisions.csv";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
let conflicts = [];
function merge(text, file) {
  const rows = readCsv(text), own = rows.filter((row) => row.run === data.run && Object.hasOwn(WORDS, row.decision) && row.id);
  conflicts = [];
  const taken = [];
  for (const row of own) {
    const theirs = {
      decision: row.decision, label: row.label, by: row.reviewer ?? "", at: row.decided_at ?? "", how: row.how ?? "",
      path: row.path || null, sha256: row.sha256 || null, given: row.given, sample: row.sample === "yes",
    };
    const mine = decisions.get(row.id);
    if (!mine) taken.push([row.id, theirs]);
    else if (mine.decision !== theirs.decision || mine.label !== theirs.label) conflicts.push([row.id, theirs]);
  }
  if (taken.length) change(taken);
  showFocus();
  byId("merge-result").textContent = `${file}: ${taken.length.toLocaleString("en")} decisions taken over, ${conflicts.length.toLocaleString("en")} contradict yours, ${(own.length - taken.length - conflicts.length).toLocaleString("en")} are the same${rows.length > own.length ? `, ${(rows.length - own.length).toLocaleString("en")} lines are not of this run` : ""}.`;
  showConflicts();
  byId("merge").showModal();
}
function showConflicts() {
  const words = (d) => (d.decision === "unusable" ? "unusable" : d.label) + (d.by ? ` (${d.by})` : "");
  byId("conflicts").replaceChildren(...conflicts.map(([id, theirs]) => {
    const item = element("li"), suspect = suspects[numberOf.get(id)], mine = element("button", "", words(decisions.get(id))), yours = element("button", "", words(theirs));
    if (suspect?.image) item.append(imageOf(suspect.image));
    item.append(element("bdi", "", id));
    const settle = (d) => { if (d) change([[id, d]]); conflicts = conflicts.filter(([other]) => other !== id); showConflicts(); showFocus(); };
    mine.type = yours.type = "button";
    mine.addEventListener("click", () => settle(null));
    yours.addEventListener("click", () => settle(theirs));
    item.append(mine, yours);
    return item;
  }));
}

// Printing: an audit sheet of what was decided

addEventListener("beforeprint", () => {
  byId("print-rows").replaceChildren(...[...decisions].map(([id, d]) => {
    const row = element("tr"), s = suspects[numberOf.get(id)], shown = element("td");
    if (s?.image) shown.append(imageOf(s.image));
    row.append(shown, element("td", "", s?.path ?? id), element("td", "", s ? name(s.given) : d.given ?? ""), element("td", "", WORDS[d.decision]),
      element("td", "", d.decision === "unusable" ? "" : d.label), element("td", "", d.by), element("td", "", d.at?.slice(0, 16).replace("T", " ")), element("td", "", d.how ?? ""));
    return row;
  }));
});
addEventListener("afterprint", () => byId("print-rows").replaceChildren());

// Keys

const keep = () => current() && decide("keep", name(current().given));
const KEYS = {
  a: accept, j: accept, k: keep, f: keep, c: openChooser, x: () => decide("unusable", ""), z: stepBack, n: nextOpen,
  g: () => openSheet(false), o: openFile, "/": () => byId("filter-text").focus(), "?": () => byId("help").showModal(),
  ArrowRight: () => move(1), ArrowLeft: () => move(-1), 1: () => takeTop(0), 2: () => takeTop(1), 3: () => takeTop(2),
};
function move(by) {
  goTo(at + by, { focus: document.activeElement?.classList.contains("card") });
  announce(current() ? spoken() : byId("closing-title").textContent);
}
function takeTop(i) { const chosen = current()?.top[i]; if (chosen) take(chosen[0]); }
function keyOf(event) { // by what is printed on the key, or by its position on keyboards of other scripts
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (Object.hasOwn(KEYS, key) || key.length > 1 || key === " " || /^[a-z]$/.test(key)) return key;
  return /^(?:Key([A-Z])|Digit(\d))$/.exec(event.code)?.slice(1).find(Boolean)?.toLowerCase() ?? key;
}
document.addEventListener("keydown", (event) => {
  if (event.target.closest?.("input, select, textarea") || document.querySelector("dialog[open]")) return;
  const key = keyOf(event);
  if ((event.ctrlKey || event.metaKey) && key === "z" && !event.altKey) {
    event.preventDefault();
    if (!event.repeat) (event.shiftKey ? stepForward : stepBack)();
    return;
  }
  if (event.altKey || event.metaKey || event.ctrlKey) return;
  if (!byId("keys-on").checked && key.length === 1) return;
  if (sheet) { if (!event.repeat) sheetKey(key, event); return; }
  if (key === "v") { if (!event.repeat) showOriginal(true); return; }
  const action = key === "g" && event.shiftKey ? () => openSheet(true) : KEYS[key];
  if (!action) return;
  event.preventDefault();
  if (!event.repeat || key.startsWith("Arrow")) action(); // a key held down must not decide what nobody saw
});
document.addEventListener("keyup", (event) => { if (keyOf(event) === "v") showOriginal(false); });

// Events

for (const [id, action] of Object.entries({
  accept, keep, choose: openChooser, unusable: KEYS.x, undo: stepBack, redo: stepForward, previous: () => move(-1),
  next: () => move(1), download, "closing-save": download, "closing-continue": continueElsewhere, clear: clearFilters,
  "help-open": KEYS["?"], "help-close": () => byId("help").close(), "sheet-open": () => openSheet(false),
  "sheet-accept": () => decideSheet("accept"), "sheet-keep": () => decideSheet("keep"), "sheet-leave": leaveSheet,
  "open-file": openFile, chip: () => { Object.assign(extra, { margin: null, group: null }); applyFilters(); },
  "open-decisions": () => byId("decisions-file").click(), "merge-close": () => byId("merge").close(),
  theme: () => {
    const now = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = now;
    remember("noisesieve:theme", now);
  },
})) byId(id).addEventListener("click", action);
byId("filters").addEventListener("input", applyFilters);
byId("filters").addEventListener("change", (event) => { if (event.target.matches("select")) byId("focus").focus({ preventScroll: true }); }); // or letters would change the list
byId("filters").addEventListener("submit", (event) => event.preventDefault());
byId("filter-text").addEventListener("keydown", (event) => {
  if (event.key === "Escape") { event.target.value = ""; applyFilters(); }
  if (event.key === "Escape" || event.key === "Enter") byId("focus").focus({ preventScroll: true }); // back to where keys decide
});
byId("chooser-text").addEventListener("input", listClasses);
byId("chooser-text").addEventListener("keydown", (event) => {
  if (event.key === "ArrowDown") markOption(marked + 1);
  else if (event.key === "ArrowUp") markOption(marked - 1);
  else if (event.key === "Enter" && matches.length) pick(matches[marked]);
  else return;
  event.preventDefault();
});
for (const [id, key] of [["help", "?"], ["large", " "]]) {
  byId(id).addEventListener("keydown", (event) => {
    if (event.key !== key) return;
    event.preventDefault();
    event.stopPropagation(); // the page would open it again
    byId(id).close();
  });
}
byId("large").addEventListener("click", () => byId("large").close());
byId("reviewer").addEventListener("input", () => remember("noisesieve:reviewer", byId("reviewer").value));
byId("keys-on").addEventListener("change", () => remember("noisesieve:keys", byId("keys-on").checked ? "on" : "off"));
byId("decisions-file").addEventListener("change", async (event) => {
  const [file] = event.target.files;
  if (file) merge(await file.text(), file.name);
  event.target.value = "";
});
document.addEventListener("click", (event) => {
  const chart = event.target.closest?.("[data-filter]");
  if (!chart) return;
  const { filter, given, suggested, low, high, value } = chart.dataset;
  if (filter === "pair") filterBy(() => choose("filter-pair", given + ">" + suggested, `${name(given)} → ${name(suggested)} (0 shown)`));
  if (filter === "class") filterBy(() => choose("filter-class", given, `${name(given)} (0 shown)`));
  if (filter === "margin") filterBy(() => { extra.margin = [Number(low), Number(high)]; });
  if (filter === "group") filterBy(() => { extra.group = value; });
});
byId("overview").addEventListener("toggle", galleryMoved);
byId("overview").querySelector("summary").addEventListener("click", () => {
  remember("noisesieve:overview", byId("overview").open ? "closed" : "open"); // as it will be
});
addEventListener("scroll", galleryMoved, { passive: true });
addEventListener("resize", galleryMoved);
addEventListener("beforeunload", (event) => { if (!remembers && decisions.size) event.preventDefault(); });
addEventListener("storage", (event) => { // another tab of this page decided something
  if (!decidedElsewhere(event.key, event.newValue)) return;
  showProgress();
  showFocus();
});

byId("reviewer").value = recall("noisesieve:reviewer") || "";
byId("overview").open = (recall("noisesieve:overview") ?? (innerWidth < 900 ? "closed" : "open")) !== "closed";
byId("keys-on").checked = recall("noisesieve:keys") !== "off";
document.documentElement.dataset.theme = recall("noisesieve:theme") || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
loadDecisions();
fillFilters();
showProgress();
showGuards();
loadView();
byId("storage-warning").hidden = remembers;
scrollTo(0, 0);
