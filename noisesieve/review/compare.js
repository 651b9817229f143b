// Compare: one suspect between clean images of its given and of its suggested class.

const REFERENCES_SHOWN = 6, STRIP = 8;
const current = () => suspects[view[at]];

function goTo(position, { focus = false } = {}) {
  const before = view[at];
  at = Math.max(0, Math.min(position, view.length));
  zoomTo(1);
  showFocus();
  showGallery();
  for (const number of [before, view[at]]) if (number !== undefined) updateCard(number);
  saveView();
  if (focus) shownCards.get(view[at])?.firstChild.focus({ preventScroll: true });
}
function showFocus() {
  const suspect = current(), open = suspects.filter((s) => !decisionOf(s)).length;
  byId("closing").hidden = Boolean(suspect);
  byId("compare").hidden = !suspect;
  byId("undo").disabled = past.length === 0;
  byId("redo").disabled = future.length === 0;
  for (const id of ["accept", "keep", "choose", "unusable"]) byId(id).disabled = !suspect;
  byId("previous").disabled = at === 0;
  byId("next").disabled = at >= view.length;
  byId("sheet-open").disabled = sheetCandidates().length === 0;
  showStrip();
  if (!suspect) { showClosing(open); return; }
  const other = otherClass(suspect);
  showImage(byId("image"), byId("no-image"), suspect);
  byId("given").textContent = name(suspect.given);
  byId("suggested").textContent = name(other);
  byId("chance-words").textContent = chanceWords(suspect.chance);
  byId("position").textContent = `${at + 1} of ${view.length}${suspect.rank === null ? "" : `, rank ${suspect.rank.toLocaleString("en")}`}, margin ${(suspect.margin < 0 ? "" : "+") + suspect.margin.toFixed(2)}${suspect.sample ? ", random sample" : ""}`;
  byId("path").textContent = suspect.path ?? suspect.id;
  byId("accept").disabled = other === null;
  byId("open-file").disabled = fileOf(suspect) === null;
  const d = decisionOf(suspect);
  byId("decided").hidden = !d;
  byId("decided").textContent = d ? describe(suspect) + (d.by ? `, by ${d.by}` : "") : "";
  showReferences("given-references", suspect.near[0], suspect.given);
  showReferences("suggested-references", suspect.near[1], other);
  showShares(suspect, other);
  byId("top").replaceChildren(...suspect.top.map(([number], i) => {
    const item = element("li"), button = element("button"), share = shareOf(suspect, number);
    button.type = "button";
    button.setAttribute("aria-keyshortcuts", String(i + 1));
    button.append(element("kbd", "", String(i + 1)), " ", element("bdi", "", name(number)), " ", element("span", "number", share === null ? "" : percent(share)));
    button.addEventListener("click", () => take(number));
    item.append(button);
    return item;
  }));
}
function showImage(shown, missing, suspect) {
  shown.hidden = !suspect.image;
  missing.hidden = Boolean(suspect.image);
  missing.textContent = suspect.text || "No image";
  if (suspect.image) shown.src = suspect.image; else shown.removeAttribute("src");
  shown.alt = `Suspect labelled ${name(suspect.given)}`;
}
function showReferences(id, chosen, number) {
  const shown = (chosen ?? []).slice(0, REFERENCES_SHOWN).filter((i) => references[i].image);
  byId(id).replaceChildren(...shown.map((i) => {
    const item = element("li"), image = imageOf(references[i].image);
    image.alt = `clean image of ${name(number)}`;
    item.append(image);
    return item;
  }));
  byId(id).parentElement.classList.toggle("empty", shown.length === 0);
}
function showShares(suspect, other) { // given | suggested | other: adds up to one, and with P(wrong)
  const bar = byId("shares");
  bar.hidden = suspect.chance === null;
  if (suspect.chance === null) return;
  const given = shareOf(suspect, suspect.given), suggested = other === null ? 0 : shareOf(suspect, other);
  const parts = { given, suggested, rest: Math.max(0, 1 - given - suggested) };
  let x = 0;
  for (const [part, share] of Object.entries(parts)) {
    const rect = bar.querySelector("rect." + part);
    rect.setAttribute("x", 100 * x);
    rect.setAttribute("width", 100 * share);
    x += share;
  }
  byId("share-given").textContent = `given ${percent(given)}`;
  byId("share-suggested").textContent = other === null ? "" : `looks like ${percent(suggested)}`;
  byId("share-rest").textContent = `other ${percent(parts.rest)}`;
}
function showStrip() {
  byId("strip").replaceChildren(...view.slice(at + 1, at + 1 + STRIP).map((number, i) => {
    const item = element("li"), button = element("button"), suspect = suspects[number];
    button.type = "button";
    button.tabIndex = -1;
    button.classList.toggle("done", Boolean(decisionOf(suspect)));
    if (suspect.image) button.append(imageOf(suspect.image));
    button.append(element("span", "hidden", `suspect ${at + 2 + i}, ${name(suspect.given)}`));
    button.addEventListener("click", () => goTo(at + 1 + i));
    item.append(button);
    return item;
  }));
}
function showClosing(open) {
  const counts = {};
  for (const d of decisions.values()) counts[d.decision] = (counts[d.decision] || 0) + 1;
  const words = Object.entries(WORDS).filter(([key]) => counts[key]).map(([key, word]) => `${counts[key].toLocaleString("en")} ${word}`);
  byId("closing-title").textContent = !suspects.length ? "There is no suspect." : open ? (view.length ? "Every suspect in view is decided." : "No suspect passes these filters.") : "Every suspect is decided.";
  byId("closing-counts").textContent = words.length ? words.join(", ") + "." : "Nothing is decided yet.";
  byId("closing-open").textContent = open ? `${open.toLocaleString("en")} are still open on this page.` : "";
  byId("closing-continue").hidden = !open;
  byId("closing-save").disabled = decisions.size === 0;
}

// The original file, beside the page as the dataset was beside the run

function fileOf(suspect) {
  if (!data.files || !suspect.image || !suspect.path || suspect.path.includes("\\")) return null;
  return data.files + suspect.path.split("/").map(encodeURIComponent).join("/");
}
function showOriginal(on) {
  const suspect = current(), file = suspect && fileOf(suspect), image = byId("image");
  if (!suspect?.image || !file) return;
  image.src = on ? file : suspect.image;
}
byId("image").addEventListener("error", () => {
  const suspect = current();
  if (suspect?.image && byId("image").src !== suspect.image) {
    byId("image").src = suspect.image;
    announce("The original is not where it was when the page was made.");
  }
});
byId("image").addEventListener("load", () => fit(byId("image")));
function openFile() {
  const file = current() && fileOf(current());
  if (file) open(file, "_blank", "noopener");
}
let zoom = 1;
function zoomTo(value, x = 50, y = 50) {
  zoom = Math.max(1, Math.min(8, value));
  const image = byId("image");
  if (zoom > 1) image.style.transformOrigin = `${x}% ${y}%`;
  image.style.transform = zoom > 1 ? `scale(${zoom})` : "";
}
byId("stage").addEventListener("wheel", (event) => {
  if (event.ctrlKey || (zoom === 1 && event.deltaY > 0)) return;
  const box = byId("stage").getBoundingClientRect();
  zoomTo(zoom * (event.deltaY < 0 ? 1.25 : 0.8), 100 * (event.clientX - box.left) / box.width, 100 * (event.clientY - box.top) / box.height);
  event.preventDefault();
}, { passive: false });

// Decisions

function withReviewer(action) { // the name is asked for once, before the first decision
  if (byId("reviewer").value.trim() || recall(KEY + ":asked")) { action(); return; }
  byId("who-name").value = "";
  byId("who").showModal();
  byId("who").onclose = () => {
    byId("reviewer").value = byId("who-name").value.trim();
    remember("noisesieve:reviewer", byId("reviewer").value);
    if (byId("who").returnValue !== "ok") return;
    remember(KEY + ":asked", "yes");
    byId("focus").focus({ preventScroll: true });
    action();
  };
}
function decide(decision, label) {
  const suspect = current();
  if (!suspect) return;
  withReviewer(() => {
    foldOverview();
    change([[suspect.id, record(suspect, decision, label, "")]]);
    const open = nextOpenPosition();
    goTo(open >= 0 ? open : view.length);
    announce(`${suspect.path ?? suspect.id}: ${describe(suspect)}. ${open >= 0 ? "Next: " + spoken() : byId("closing-title").textContent}`);
  });
}
function spoken() {
  const suspect = current();
  return suspect ? `${name(suspect.given)}, looks like ${name(otherClass(suspect))}, ${describe(suspect)}, ${at + 1} of ${view.length}` : "none";
}
function take(number) {
  const suspect = current();
  if (!suspect) return;
  if (number === suspect.given) decide("keep", name(number));
  else decide(number === suspect.suggested ? "accept" : "relabel", name(number));
}
function accept() {
  const suspect = current(), other = suspect && otherClass(suspect);
  if (other !== null && other !== undefined) take(other);
}
function stepBack() { afterStep(step(past, future, "before"), "Undone"); }
function stepForward() { afterStep(step(future, past, "after"), "Done again"); }
function afterStep(last, word) {
  if (!last) return;
  closeSheet();
  const number = last.ids.map((id) => numberOf.get(id)).find((found) => found !== undefined);
  if (number !== undefined) {
    if (!view.includes(number)) clearFilters();
    goTo(view.indexOf(number));
  } else showFocus();
  announce(`${word}: ${last.ids.length === 1 ? last.ids[0] : last.ids.length + " decisions"}.`);
}
function showProgress() {
  const done = suspects.filter(decisionOf).length, elsewhere = [...decisions.keys()].filter((id) => !numberOf.has(id)).length;
  byId("progress").max = Math.max(1, suspects.length);
  byId("progress").value = done;
  byId("progress-text").textContent = `${done.toLocaleString("en")} of ${suspects.length.toLocaleString("en")} decided${elsewhere ? `, ${elsewhere.toLocaleString("en")} more on other pages of this run` : ""}`;
  byId("download").disabled = decisions.size === 0;
}
function nextOpenPosition() { // the next undecided one, from the start again after the last; -1: there is none
  const later = view.findIndex((number, position) => position > at && !decisionOf(suspects[number]));
  return later >= 0 ? later : view.findIndex((number) => !decisionOf(suspects[number]));
}
function nextOpen() {
  const any = nextOpenPosition();
  goTo(any >= 0 ? any : view.length);
  announce(any >= 0 ? spoken() : byId("closing-title").textContent);
}
function continueElsewhere() { // after the last one of a filter
  clearFilters();
  nextOpen();
}
