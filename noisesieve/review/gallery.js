// The gallery: cards are made when they come into view, so that 5,000 suspects cost as much as 50.

let view = suspects.map((_, i) => i); // the suspects that pass the filters, in order
let at = 0; // position in the view; view.length: the closing card
const shownCards = new Map(); // number → list item
const CARD_HEIGHT = 214, CARD_WIDTH = 150, GAP = 10, SPARE_ROWS = 2;

function makeCard(number) {
  const suspect = suspects[number], item = element("li"), card = element("button", "card");
  card.type = "button";
  const frame = element("span", "frame");
  if (suspect.image) frame.append(imageOf(suspect.image));
  else frame.append(element("span", suspect.text ? "words" : "muted", suspect.text || "no image"));
  const text = element("span", "text"), pair = element("span", "pair"), other = element("span", "pair");
  pair.append(element("span", "rank", suspect.rank === null ? "" : "#" + suspect.rank.toLocaleString("en") + " "), element("bdi", "from", name(suspect.given)));
  other.append("→ ", element("bdi", "to", name(otherClass(suspect))));
  card.title = name(suspect.given) + " → " + name(otherClass(suspect));
  text.append(pair, other);
  if (suspect.chance !== null) text.append(element("span", "odds", percent(suspect.chance) + " wrong"));
  card.append(frame, text, element("span", "mark"));
  card.addEventListener("click", () => { goTo(view.indexOf(number)); byId("focus").scrollIntoView({ block: "start" }); });
  item.append(card);
  return item;
}
function updateCard(number) {
  const item = shownCards.get(number);
  if (!item) return;
  const suspect = suspects[number], card = item.firstChild, d = decisionOf(suspect), mark = card.lastChild;
  card.classList.toggle("done", Boolean(d));
  mark.hidden = !d;
  mark.textContent = d ? (d.decision === "unusable" ? "✕ unusable" : MARKS[d.decision] + d.label) : "";
  const now = view[at] === number;
  if (now) card.setAttribute("aria-current", "true"); else card.removeAttribute("aria-current");
  card.tabIndex = now || (at >= view.length && view[0] === number) ? 0 : -1;
}
function columns() { return Math.max(1, Math.floor((byId("gallery").clientWidth + GAP) / (CARD_WIDTH + GAP))); }
function showGallery() {
  const gallery = byId("gallery"), wide = columns(), rows = Math.ceil(view.length / wide), height = CARD_HEIGHT + GAP;
  const top = gallery.getBoundingClientRect().top;
  const first = Math.max(0, Math.floor(-top / height) - SPARE_ROWS);
  const last = Math.min(rows, Math.max(first + SPARE_ROWS, Math.ceil((innerHeight - top) / height) + SPARE_ROWS));
  gallery.style.gridTemplateColumns = `repeat(${wide}, minmax(0, 1fr))`;
  gallery.style.paddingTop = Math.min(first, rows) * height + "px";
  gallery.style.paddingBottom = Math.max(0, rows - Math.max(first, last)) * height + "px";
  const wanted = view.slice(first * wide, Math.max(first, last) * wide);
  for (const number of [...shownCards.keys()]) if (!wanted.includes(number)) shownCards.delete(number);
  for (const number of wanted) if (!shownCards.has(number)) { shownCards.set(number, makeCard(number)); updateCard(number); }
  gallery.replaceChildren(...wanted.map((number) => shownCards.get(number)));
  byId("nothing").hidden = view.length > 0;
}
let drawing = false;
function galleryMoved() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    const focused = document.activeElement?.closest?.("#gallery .card");
    if (!focused) showGallery();
  });
}

// Filters

const extra = { margin: null, group: null }; // filters that are set by clicking on a chart
const FILTERS = ["filter-class", "filter-pair", "filter-chance", "filter-state", "filter-text", "sort"];
const MOST_LISTED = 100;

function fillFilters() {
  const counts = new Map(), pairs = new Map();
  for (const s of suspects) {
    counts.set(s.given, (counts.get(s.given) || 0) + 1);
    if (s.suggested !== null) {
      const key = s.given + ">" + s.suggested;
      pairs.set(key, (pairs.get(key) || 0) + 1);
    }
  }
  const most = [...counts].sort((a, b) => b[1] - a[1]).slice(0, MOST_LISTED); // the text filter finds the others
  for (const [number, count] of most.sort((a, b) => a[0] - b[0])) byId("filter-class").append(new Option(`${name(number)} (${count})`, number));
  for (const [key, count] of [...pairs].sort((a, b) => b[1] - a[1]).slice(0, MOST_LISTED)) {
    const [a, b] = key.split(">");
    byId("filter-pair").append(new Option(`${name(a)} → ${name(b)} (${count})`, key));
  }
}
function choose(id, value, text) { // a value that the list does not have is added to it
  const select = byId(id);
  if (![...select.options].some((option) => option.value === value)) select.append(new Option(text, value));
  select.value = value;
}
const SORTS = {
  rank: (a, b) => a - b,
  chance: (a, b) => suspects[a].chance - suspects[b].chance || a - b,
  margin: (a, b) => suspects[b].margin - suspects[a].margin || a - b,
  pair: (a, b) => suspects[a].given - suspects[b].given || (suspects[a].suggested ?? -1) - (suspects[b].suggested ?? -1) || a - b,
  path: (a, b) => suspects[a].id.localeCompare(suspects[b].id, "en", { numeric: true }) || a - b,
};
function applyFilters() {
  const kept = view[at];
  const given = byId("filter-class").value, pair = byId("filter-pair").value, state = byId("filter-state").value;
  const least = Number(byId("filter-chance").value) / 100 || 0, text = byId("filter-text").value.trim().toLowerCase();
  view = suspects.map((_, i) => i).filter((i) => {
    const s = suspects[i];
    if (given !== "" && s.given !== Number(given)) return false;
    if (pair && pair !== s.given + ">" + s.suggested) return false;
    if (s.chance !== null && s.chance < least) return false;
    if (state && (state === "decided") !== Boolean(decisionOf(s))) return false;
    if (extra.margin && !(s.margin >= extra.margin[0] && s.margin < extra.margin[1])) return false;
    if (extra.group !== null && s.group !== extra.group) return false;
    return !text || [s.path ?? s.id, name(s.given), name(s.suggested)].some((part) => part.toLowerCase().includes(text));
  }).sort(SORTS[byId("sort").value]);
  byId("count").textContent = view.length === suspects.length ? `${suspects.length.toLocaleString("en")} shown` : `${view.length.toLocaleString("en")} of ${suspects.length.toLocaleString("en")}`;
  byId("chip").hidden = !extra.margin && extra.group === null;
  byId("chip").textContent = [
    extra.margin ? `margin ${extra.margin[0].toFixed(2)} to ${extra.margin[1].toFixed(2)}` : "",
    extra.group !== null ? `${data.groupColumn}: ${extra.group}` : "",
  ].filter(Boolean).join(", ") + " ✕";
  shownCards.clear();
  goTo(Math.max(0, view.indexOf(kept)));
}
function clearFilters() {
  byId("filters").reset();
  Object.assign(extra, { margin: null, group: null });
  applyFilters();
}
function filterBy(set) { // by a click on a chart
  byId("filters").reset();
  Object.assign(extra, { margin: null, group: null });
  set();
  applyFilters();
  byId("focus").focus({ preventScroll: true });
  byId("focus").scrollIntoView({ block: "start" });
}
