"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { classes, suspects } = data;
  const byId = (id) => document.getElementById(id);
  const KEY = "noisesieve:" + data.run;
  const WORDS = { accept: "accepted", keep: "kept", relabel: "changed", unusable: "unusable" };
  const MOST_OPTIONS = 200;
  let view = suspects.map((_, i) => i); // the suspects that pass the filters, in order
  let at = 0; // position in the view
  const decisions = new Map(); // id → { decision, label, by, at }; also of suspects that another page of this run shows
  const past = []; // ids with what was decided before, for undo
  let remembers = true;

  // Storage

  function recall(name) {
    try { return localStorage.getItem(name); } catch { remembers = false; return null; }
  }
  function remember(name, value) {
    try { localStorage.setItem(name, value); } catch { remembers = false; }
    byId("storage-warning").hidden = remembers;
  }
  function stored() {
    try {
      const entries = JSON.parse(recall(KEY) || "[]");
      return new Map(entries.filter(([id, d]) => typeof id === "string" && Object.hasOwn(WORDS, d.decision)));
    } catch { return new Map(); }
  }
  function load() {
    for (const [id, d] of stored()) decisions.set(id, d);
    byId("reviewer").value = recall("noisesieve:reviewer") || "";
    byId("overview").open = (recall("noisesieve:overview") ?? (stacked() ? "closed" : "open")) !== "closed";
    byId("keys-on").checked = recall("noisesieve:keys") !== "off";
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.dataset.theme = recall("noisesieve:theme") || (dark ? "dark" : "light");
    byId("storage-warning").hidden = remembers;
  }
  function save(id) { // another tab may have saved since: only this suspect's entry is ours
    const all = stored();
    if (decisions.has(id)) all.set(id, decisions.get(id)); else all.delete(id);
    remember(KEY, JSON.stringify([...all]));
  }

  // Helpers

  function element(tag, className, text) {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  }
  const name = (number) => (number === null || number === undefined ? "?" : classes[number]);
  const percent = (value) => (value > 0.999 ? ">99.9 %" : (100 * value).toFixed(1) + " %");
  function fit(image) {
    image.classList.toggle("tiny", Math.max(image.naturalWidth, image.naturalHeight) <= 64);
  }
  const decisionOf = (suspect) => decisions.get(suspect.id);
  function describe(suspect) {
    const d = decisionOf(suspect);
    if (!d) return "undecided";
    return d.decision === "unusable" ? "unusable" : WORDS[d.decision] + ": " + d.label;
  }

  // Gallery

  const cards = suspects.map(makeCard);
  const unseen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      const image = entry.target.querySelector("img");
      if (image && !image.src) image.src = suspects[Number(entry.target.dataset.number)].image;
      unseen.unobserve(entry.target);
    }
  }, { rootMargin: "600px" });

  function makeCard(suspect, number) {
    const item = element("li");
    const card = element("button", "card");
    card.type = "button";
    card.dataset.number = number;
    card.tabIndex = -1;
    const frame = element("span", "frame");
    if (suspect.image) {
      const image = element("img");
      image.alt = "";
      image.addEventListener("load", () => fit(image));
      frame.append(image);
    } else frame.append(element("span", suspect.text ? "words" : "muted", suspect.text || "no image"));
    const text = element("span", "text");
    const pair = element("span", "pair");
    pair.append(element("bdi", "from", name(suspect.given)));
    const other = element("span", "pair");
    other.append("→ ", element("bdi", "to", name(suspect.suggested)));
    card.title = name(suspect.given) + " → " + name(suspect.suggested);
    text.append(pair, other);
    if (suspect.chance !== null) text.append(element("span", "odds", "P(wrong) " + percent(suspect.chance)));
    card.append(frame, text);
    card.addEventListener("click", () => {
      goTo(view.indexOf(number));
      if (stacked()) byId("focus").scrollIntoView({ block: "start" });
    });
    item.append(card);
    return item;
  }
  function updateCard(number) {
    const suspect = suspects[number], card = cards[number].firstChild, d = decisionOf(suspect);
    card.classList.toggle("done", Boolean(d));
    card.querySelector(".mark")?.remove();
    if (d) card.append(element("span", "mark", d.decision === "unusable" ? "✕ unusable" : { accept: "✓ ", keep: "= ", relabel: "✎ " }[d.decision] + d.label));
    card.setAttribute("aria-label",
      `${name(suspect.given)}, looks like ${name(suspect.suggested)}, ${suspect.chance === null ? "" : `wrong with ${percent(suspect.chance)}, `}${describe(suspect)}`);
  }
  function showGallery() {
    byId("gallery").replaceChildren(...view.map((number) => cards[number]));
    for (const number of view) unseen.observe(cards[number].firstChild);
    byId("nothing").hidden = view.length > 0;
    byId("count").textContent = view.length === suspects.length
      ? `${suspects.length.toLocaleString("en")} suspects` : `${view.length.toLocaleString("en")} of ${suspects.length.toLocaleString("en")}`;
  }

  // The current suspect

  const current = () => suspects[view[at]];
  const stacked = () => matchMedia("(max-width: 900px)").matches;
  function goTo(position, { focus = false } = {}) {
    const before = cards[view[at]]?.firstChild;
    if (before) { before.removeAttribute("aria-current"); before.tabIndex = -1; }
    at = Math.max(0, Math.min(position, view.length - 1));
    showFocus();
    const card = cards[view[at]]?.firstChild;
    if (!card) return;
    card.setAttribute("aria-current", "true");
    card.tabIndex = 0;
    if (!stacked()) card.scrollIntoView({ block: "nearest" }); // if the pane is above, it must stay in view
    if (focus) card.focus({ preventScroll: true });
  }
  function showFocus() {
    const suspect = current();
    for (const id of ["accept", "keep", "choose", "unusable", "previous", "next"]) byId(id).disabled = !suspect;
    byId("undo").disabled = past.length === 0;
    byId("focus").hidden = !suspect;
    if (!suspect) return;
    const shown = byId("image");
    shown.hidden = !suspect.image;
    byId("no-image").hidden = Boolean(suspect.image);
    byId("no-image").textContent = suspect.text || "No image";
    if (suspect.image) shown.src = suspect.image; else shown.removeAttribute("src");
    shown.alt = `Suspect labelled ${name(suspect.given)}`;
    byId("given").textContent = name(suspect.given);
    byId("suggested").textContent = name(suspect.suggested ?? (suspect.sample ? suspect.top[0][0] : null));
    byId("chance").textContent = suspect.chance === null ? "" : percent(suspect.chance);
    byId("margin").textContent = (suspect.margin < 0 ? "" : "+") + suspect.margin.toFixed(2);
    byId("position").textContent = `${at + 1} of ${view.length}${suspect.sample ? ", random sample" : ""}`;
    byId("path").textContent = suspect.path ?? suspect.id;
    byId("accept").disabled = suspect.suggested === null;
    byId("previous").disabled = at === 0;
    byId("next").disabled = at === view.length - 1;
    const d = decisionOf(suspect);
    byId("decided").hidden = !d;
    byId("decided").textContent = d ? describe(suspect) : "";
    byId("top").replaceChildren(...suspect.top.map(([number, chance], i) => {
      const item = element("li"), button = element("button");
      button.type = "button";
      button.setAttribute("aria-keyshortcuts", String(i + 1));
      const bar = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      bar.setAttribute("viewBox", "0 0 100 10");
      bar.setAttribute("preserveAspectRatio", "none");
      bar.setAttribute("aria-hidden", "true");
      const rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      rect.setAttribute("width", 100 * chance);
      rect.setAttribute("height", 10);
      bar.append(rect);
      button.append(element("kbd", "", String(i + 1)), element("bdi", "", name(number)), bar, element("span", "number", percent(chance)));
      button.addEventListener("click", () => take(number));
      item.append(button);
      return item;
    }));
  }
  byId("image").addEventListener("load", () => fit(byId("image")));

  // Decisions

  function decide(decision, label) {
    const suspect = current();
    if (!suspect) return;
    past.push([suspect.id, decisionOf(suspect)]);
    decisions.set(suspect.id, { decision, label, by: byId("reviewer").value, at: new Date().toISOString() });
    afterDecision(view[at]);
    const done = `${suspect.path ?? suspect.id}: ${describe(suspect)}.`;
    const open = nextOpenPosition();
    if (open >= 0) goTo(open); else showFocus();
    announce(open >= 0 ? `${done} Next: ${spoken()}` : `${done} Every suspect in view is decided.`);
  }
  const spoken = () => (current() ? cards[view[at]].firstChild.getAttribute("aria-label") + ", " + byId("position").textContent : "none");
  function take(number) {
    const suspect = current();
    if (!suspect) return;
    if (number === suspect.given) decide("keep", name(number));
    else decide(number === suspect.suggested ? "accept" : "relabel", name(number));
  }
  function accept() {
    const suspect = current();
    if (suspect && suspect.suggested !== null) take(suspect.suggested);
  }
  function undo() {
    const last = past.pop();
    if (!last) return;
    const [id, before] = last;
    if (before) decisions.set(id, before); else decisions.delete(id);
    const number = suspects.findIndex((s) => s.id === id);
    afterDecision(number);
    if (!view.includes(number)) { clearFilters(); }
    goTo(view.indexOf(number));
    announce(`Undone: ${id} is ${describe(suspects[number])}.`);
  }
  function afterDecision(number) {
    updateCard(number);
    save(suspects[number].id);
    showProgress();
  }
  function showProgress() {
    const done = suspects.filter(decisionOf).length;
    byId("progress").max = Math.max(1, suspects.length);
    byId("progress").value = done;
    byId("progress-text").textContent = `${done.toLocaleString("en")} of ${suspects.length.toLocaleString("en")} decided`;
    byId("download").disabled = done === 0;
  }
  function announce(text) { byId("live").textContent = text; }

  // decisions.csv: cells that a spreadsheet would run as a formula get a leading quote, which `noisesieve apply` removes

  function cell(value) {
    let text = String(value ?? "");
    if (/^'*[=+\-@\t\r\n]/.test(text)) text = "'" + text;
    return /[",\r\n]/.test(text) || text !== text.trim() ? '"' + text.replaceAll('"', '""') + '"' : text;
  }
  function csv() {
    const lines = [["id", "path", "sha256", "given", "decision", "label", "reviewer", "decided_at", "run", "sample"]];
    for (const s of suspects) {
      const d = decisionOf(s);
      if (d) lines.push([s.id, s.path, s.sha256, name(s.given), d.decision, d.decision === "unusable" ? "" : d.label, d.by || byId("reviewer").value, d.at, data.run, s.sample ? "yes" : ""]);
    }
    return lines.map((line) => line.map(cell).join(",")).join("\n") + "\n";
  }
  function download() {
    const link = element("a");
    link.href = URL.createObjectURL(new Blob([csv()], { type: "text/csv" }));
    link.download = "decisions.csv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  // Filters

  function fillFilters() {
    const counts = new Map(), pairs = new Map();
    for (const s of suspects) {
      counts.set(s.given, (counts.get(s.given) || 0) + 1);
      if (s.suggested !== null) {
        const key = s.given + ">" + s.suggested;
        pairs.set(key, (pairs.get(key) || 0) + 1);
      }
    }
    for (const [number, count] of [...counts].sort((a, b) => a[0] - b[0])) byId("filter-class").append(new Option(`${name(number)} (${count})`, number));
    for (const [key, count] of [...pairs].sort((a, b) => b[1] - a[1])) {
      const [a, b] = key.split(">");
      byId("filter-pair").append(new Option(`${name(a)} → ${name(b)} (${count})`, key));
    }
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
    const least = Number(byId("filter-chance").value) || 0, text = byId("filter-text").value.trim().toLowerCase();
    if (cards[kept]) { cards[kept].firstChild.removeAttribute("aria-current"); cards[kept].firstChild.tabIndex = -1; }
    view = suspects.map((_, i) => i).filter((i) => {
      const s = suspects[i];
      if (given !== "" && s.given !== Number(given)) return false;
      if (pair && pair !== s.given + ">" + s.suggested) return false;
      if (s.chance !== null && s.chance < least) return false;
      if (state && (state === "decided") !== Boolean(decisionOf(s))) return false;
      return !text || [s.path ?? s.id, name(s.given), name(s.suggested)].some((part) => part.toLowerCase().includes(text));
    }).sort(SORTS[byId("sort").value]);
    showGallery();
    at = 0;
    goTo(Math.max(0, view.indexOf(kept)));
  }
  function clearFilters() {
    byId("filters").reset();
    applyFilters();
  }

  // The dialog for another class

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
    marked = 0;
    const items = matches.slice(0, MOST_OPTIONS).map((number, i) => {
      const item = element("li");
      item.id = "option-" + i;
      item.setAttribute("role", "option");
      item.append(element("bdi", "", classes[number]));
      item.addEventListener("click", () => pick(number));
      return item;
    });
    if (matches.length > MOST_OPTIONS) items.push(element("li", "note", `and ${matches.length - MOST_OPTIONS} more: type to narrow`));
    if (!matches.length) items.push(element("li", "note", "no such class in this dataset"));
    byId("chooser-list").replaceChildren(...items);
    markOption(0);
  }
  function markOption(i) {
    const shown = Math.min(matches.length, MOST_OPTIONS);
    marked = shown ? (i + shown) % shown : 0;
    for (const item of byId("chooser-list").querySelectorAll("[role=option]")) item.setAttribute("aria-selected", String(item.id === "option-" + marked));
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
  byId("chooser-text").addEventListener("input", listClasses);
  byId("chooser-text").addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") markOption(marked + 1);
    else if (event.key === "ArrowUp") markOption(marked - 1);
    else if (event.key === "Enter" && matches.length) pick(matches[marked]);
    else return;
    event.preventDefault();
  });

  // Keys

  function nextOpenPosition() { // the next undecided one, from the start again after the last; -1: there is none
    const later = view.findIndex((number, position) => position > at && !decisionOf(suspects[number]));
    return later >= 0 ? later : view.findIndex((number) => !decisionOf(suspects[number]));
  }
  function nextOpen() {
    const any = nextOpenPosition();
    if (any >= 0) goTo(any);
    announce(any >= 0 ? spoken() : "Every suspect in view is decided.");
  }
  const KEYS = {
    a: accept, k: () => current() && decide("keep", name(current().given)), c: openChooser,
    x: () => decide("unusable", ""), z: undo, n: nextOpen, "/": () => byId("filter-text").focus(),
    "?": () => byId("help").showModal(), ArrowRight: () => move(1), ArrowLeft: () => move(-1),
    1: () => takeTop(0), 2: () => takeTop(1), 3: () => takeTop(2),
  };
  function move(step) {
    goTo(at + step, { focus: document.activeElement?.classList.contains("card") });
    announce(spoken());
  }
  function takeTop(i) { const found = current()?.top[i]; if (found) take(found[0]); }
  document.addEventListener("keydown", (event) => {
    if (event.target.closest?.("input, select, textarea") || document.querySelector("dialog[open]")) return;
    if (event.altKey || event.metaKey || (event.ctrlKey && event.key !== "z")) return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const action = KEYS[key];
    if (!action || (!byId("keys-on").checked && key.length === 1 && !event.ctrlKey)) return;
    event.preventDefault();
    if (!event.repeat || key.startsWith("Arrow")) action(); // a key held down must not decide what nobody saw
  });

  // Event handlers

  for (const [id, action] of Object.entries({
    accept, keep: KEYS.k, choose: openChooser, unusable: KEYS.x, undo, previous: () => move(-1), next: () => move(1),
    download, clear: clearFilters, "help-open": KEYS["?"], "help-close": () => byId("help").close(),
    theme: () => {
      const now = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
      document.documentElement.dataset.theme = now;
      remember("noisesieve:theme", now);
    },
  })) byId(id).addEventListener("click", action);
  byId("filters").addEventListener("input", applyFilters);
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("filter-text").addEventListener("keydown", (event) => {
    if (event.key === "Escape") { event.target.value = ""; applyFilters(); }
    if (event.key === "Escape" || event.key === "Enter") byId("focus").focus(); // back to where keys decide
  });
  byId("help").addEventListener("keydown", (event) => { if (event.key === "?") byId("help").close(); });
  byId("reviewer").addEventListener("input", () => remember("noisesieve:reviewer", byId("reviewer").value));
  byId("keys-on").addEventListener("change", () => remember("noisesieve:keys", byId("keys-on").checked ? "on" : "off"));
  for (const button of document.querySelectorAll(".heat button")) {
    button.addEventListener("click", () => {
      const { given, suggested } = button.dataset, pair = given + ">" + suggested, select = byId("filter-pair");
      byId("filters").reset();
      if (![...select.options].some((option) => option.value === pair)) { // its suspects are not on this page
        select.append(new Option(`${name(given)} → ${name(suggested)} (0 shown)`, pair));
      }
      select.value = pair;
      applyFilters();
      byId("focus").focus();
    });
  }
  byId("overview").querySelector("summary").addEventListener("click", () => {
    remember("noisesieve:overview", byId("overview").open ? "closed" : "open"); // as it will be
  });
  addEventListener("beforeunload", (event) => {
    if (!remembers && decisions.size) event.preventDefault();
  });
  addEventListener("storage", (event) => { // another tab of this page decided something
    if (event.key !== KEY) return;
    decisions.clear();
    load();
    suspects.forEach((_, number) => updateCard(number));
    showProgress();
    showFocus();
  });

  load();
  fillFilters();
  suspects.forEach((_, number) => updateCard(number));
  showGallery();
  showProgress();
  const open = view.findIndex((number) => !decisionOf(suspects[number]));
  goTo(open >= 0 ? open : 0);
  scrollTo(0, 0);
})();
