// Sheets: up to 24 suspects of one suggested class, or of one confusion, decided together.

const SHEET = 24, SHEET_REFERENCES = 6, WAIT = 600, GUARDED = 10, GUARDS = 2;
const LETTERS = [..."abcdefghijlmnopqrstuvwxy"]; // not k, which keeps, and not z, which undoes
let sheet = null; // { pair, suggested, given, tiles, marked, shown, number }
const waiting = new Set(recallJson(KEY + ":waiting", [])); // marked on a sheet, to be decided one by one
let guardCount = recallJson(KEY + ":guards", { sheets: 0, shown: 0, caught: 0 });

function sheetCandidates(pair = null) {
  return view.map((number) => suspects[number]).filter((s) => s.suggested !== null && !decisionOf(s) && !waiting.has(s.id)
    && (!pair || (s.suggested === pair.suggested && (pair.given === null || s.given === pair.given))));
}
function openSheet(byPair) {
  const open = sheetCandidates();
  if (!open.length) { announce("No open suspect has a suggestion."); return; }
  const wanted = current() && open.includes(current()) ? current() : open[0];
  withReviewer(() => { foldOverview(); fillSheet({ suggested: wanted.suggested, given: byPair ? wanted.given : null }); });
}
function fillSheet(pair) {
  const tiles = sheetCandidates(pair).sort((a, b) => a.order - b.order).slice(0, SHEET);
  const number = guardCount.sheets + 1;
  const guards = data.guard && number % GUARDED === 0 ? pickGuards(pair) : [];
  const shown = tiles.slice(0, SHEET - guards.length).map((suspect) => ({ suspect, image: suspect.image, label: suspect.given }));
  guards.forEach((guard, i) => shown.splice(Math.floor((i + 0.5) * shown.length / GUARDS), 0, guard));
  sheet = { ...pair, number, tiles: shown, marked: new Set(), shown: performance.now() };
  byId("sheet").hidden = false;
  byId("focus").hidden = true;
  byId("sheet-title").replaceChildren("Are all of these ", element("bdi", "", name(pair.suggested)), "?");
  const left = sheetCandidates(pair).length;
  byId("sheet-count").textContent = `${shown.length} of ${left} that look like it${pair.given === null ? "" : `, all labelled ${name(pair.given)}`}${waiting.size ? `; ${waiting.size} wait to be decided one by one` : ""}`;
  const typical = references.filter((r) => r.label === pair.suggested && r.image).slice(0, SHEET_REFERENCES);
  byId("sheet-references").replaceChildren(...typical.map((r) => { const item = element("li"), image = imageOf(r.image); image.alt = "clean image of " + name(r.label); item.append(image); return item; }));
  byId("sheet-tiles").replaceChildren(...shown.map((tile, i) => makeTile(tile, i)));
  markTiles();
  byId("sheet").focus({ preventScroll: true });
  byId("sheet").scrollIntoView({ block: "start" });
  announce(`${byId("sheet-title").textContent} ${byId("sheet-count").textContent}. Enter accepts, letters mark those that are not.`);
}
function pickGuards(pair) { // clean images of other classes: a reviewer who looks marks them
  const others = references.map((r, i) => i).filter((i) => references[i].label !== pair.suggested && references[i].image);
  const guards = [];
  for (let k = 0; k < GUARDS && others.length; k++) guards.push(others.splice(Math.floor(Math.random() * others.length), 1)[0]);
  return guards.map((i) => ({ suspect: null, image: references[i].image, label: pair.given ?? references[i].label }));
}
let lastTile = 0, lastClicked = 0; // under the pointer or focus; clicked or typed
function makeTile(tile, i) {
  const item = element("li"), button = element("button", "tile");
  button.type = "button";
  const frame = element("span", "frame");
  if (tile.image) frame.append(imageOf(tile.image)); else frame.append(element("span", "words", tile.suspect?.text || "no image"));
  button.append(frame, element("kbd", "", LETTERS[i].toUpperCase()), " ", element("bdi", "from", name(tile.label)), element("span", "not", "not this"));
  button.addEventListener("click", (event) => {
    if (event.shiftKey) for (let j = Math.min(lastClicked, i); j <= Math.max(lastClicked, i); j++) sheet.marked.add(j);
    else toggleTile(i);
    lastTile = lastClicked = i;
    markTiles();
  });
  button.addEventListener("mouseenter", () => { lastTile = i; });
  button.addEventListener("focus", () => { lastTile = i; });
  item.append(button);
  return item;
}
function toggleTile(i) {
  if (i >= sheet.tiles.length) return;
  lastTile = lastClicked = i;
  if (!sheet.marked.delete(i)) sheet.marked.add(i);
  markTiles();
}
function markTiles() {
  [...byId("sheet-tiles").children].forEach((item, i) => {
    const marked = sheet.marked.has(i);
    item.firstChild.setAttribute("aria-pressed", String(marked));
    item.firstChild.classList.toggle("marked", marked);
  });
  const left = sheet.tiles.length - sheet.marked.size;
  byId("sheet-accept").textContent = `Accept ${left}`;
  byId("sheet-keep").textContent = `Keep all ${left}`;
  byId("sheet-accept").disabled = byId("sheet-keep").disabled = left === 0 && sheet.marked.size === 0;
}
function enlarge() {
  const tile = sheet?.tiles[lastTile];
  if (!tile?.image) return;
  byId("large-image").src = tile.image;
  byId("large").showModal();
}
function decideSheet(decision) {
  if (!sheet || performance.now() - sheet.shown < WAIT) return; // a key too many must not decide what nobody saw
  const guards = sheet.tiles.map((tile, i) => [tile, i]).filter(([tile]) => !tile.suspect);
  const caught = guards.filter(([, i]) => sheet.marked.has(i)).length;
  guardCount = { sheets: sheet.number, shown: guardCount.shown + guards.length, caught: guardCount.caught + caught };
  remember(KEY + ":guards", JSON.stringify(guardCount));
  const how = `sheet ${sheet.number}${guards.length ? `, ${caught} of ${guards.length} guards caught` : ""}`;
  const entries = [];
  sheet.tiles.forEach(({ suspect }, i) => {
    if (!suspect) return;
    if (sheet.marked.has(i)) waiting.add(suspect.id);
    else entries.push([suspect.id, record(suspect, decision, name(decision === "keep" ? suspect.given : suspect.suggested), how)]);
  });
  remember(KEY + ":waiting", JSON.stringify([...waiting]));
  if (entries.length) change(entries);
  if (guards.length) showGuards();
  const pair = { suggested: sheet.suggested, given: sheet.given };
  if (sheetCandidates(pair).length) { fillSheet(pair); return; }
  const next = sheetCandidates();
  if (next.length) { // the class with most open suspects
    const counts = new Map();
    for (const s of next) counts.set(s.suggested, (counts.get(s.suggested) || 0) + 1);
    const suggested = [...counts].sort((a, b) => b[1] - a[1])[0][0];
    const first = next.find((s) => s.suggested === suggested);
    fillSheet({ suggested, given: pair.given === null ? null : first.given });
    return;
  }
  leaveSheet();
}
function showGuards() {
  byId("guards").hidden = !guardCount.shown;
  byId("guards").textContent = `${guardCount.caught} of ${guardCount.shown} hidden clean images caught`;
}
function closeSheet() {
  if (!sheet) return;
  sheet = null;
  byId("sheet").hidden = true;
  byId("focus").hidden = false;
}
function leaveSheet() { // what was marked is decided one by one
  closeSheet();
  const first = view.findIndex((number) => waiting.has(suspects[number].id) && !decisionOf(suspects[number]));
  const open = first >= 0 ? first : view.findIndex((number) => !decisionOf(suspects[number]));
  goTo(open >= 0 ? open : view.length);
  byId("focus").focus({ preventScroll: true });
  announce(current() ? spoken() : byId("closing-title").textContent);
}
function sheetKey(key, event) {
  if (key === "Enter") decideSheet("accept");
  else if (key === "k") decideSheet("keep");
  else if (key === " ") enlarge();
  else if (key === "Escape") leaveSheet();
  else if (key === "z") stepBack();
  else if (LETTERS.includes(key)) toggleTile(LETTERS.indexOf(key));
  else return false;
  event.preventDefault();
  return true;
}
