
// Overview maps and the list of episodes: filters, sorting, pages.

const SIZES = [25, 50, 100, 250];
const FEW = 12;
const compareText = new Intl.Collator("en", { numeric: true }).compare;
const won = (episode) => kindOf(episode).name === "success";
const state = { kind: "", scene: "", text: "", said: "", sort: "id", down: false, page: 0, size: SIZES[0] };

const figure = (name, digits, scale = 1) => ({
  value: (episode) => score(episode, name),
  show: (value) => (value * scale).toFixed(digits),
});
const COLUMNS = [
  { key: "id", head: "Episode", value: nameOf },
  { key: "scene", head: "Scene", value: (episode) => DATA.scenes[episode.scene].name },
  { key: "kind", head: "Ended as", value: (episode) => episode.kind },
  { key: "text", head: "Instruction", value: (e) => e.text ?? e.reason ?? "" },
  { key: "spl", head: "SPL (%)", number: true, ...figure("spl", 1, 100) },
  { key: "ne", head: "NE (m)", number: true, ...figure("distance_to_goal", 2) },
  { key: "ndtw", head: "nDTW (%)", number: true, minor: true, ...figure("ndtw", 1, 100) },
  { key: "start", head: "Start (m)", number: true, minor: true, ...figure("geodesic_start", 2) },
  { key: "length", head: "Path (m)", number: true, minor: true, ...figure("path_length", 2) },
  { key: "steps", head: "Steps", number: true, ...figure("steps", 0) },
  { key: "collisions", head: "Hits", number: true, minor: true, ...figure("collisions", 0) },
  { key: "turns", head: "Turns", number: true, minor: true, value: (e) => e.turns ?? null, show: String },
  ...(SPEAKS ? [{ key: "unread", head: "Unparsable", number: true, minor: true, value: unread, show: String }] : []),
  { key: "words", head: "Words", number: true, minor: true, value: (e) => e.words ?? null, show: String },
];

function matches(episode) {
  if (state.kind && kindOf(episode).name !== state.kind) return false;
  if (state.scene && DATA.scenes[episode.scene].name !== state.scene) return false;
  const said = state.said.trim().toLowerCase(), sought = state.text.trim().toLowerCase();
  if (said && foundStep(episode, said) === null) return false;
  return !sought || nameOf(episode) === sought || (episode.text ?? "").toLowerCase().includes(sought);
}

// The chosen episodes in order; whatever has no value comes last.
function chosen() {
  const column = COLUMNS.find((each) => each.key === state.sort), sign = state.down ? -1 : 1;
  const keyed = DATA.episodes.filter(matches).map((episode) => [column.value(episode), episode]);
  keyed.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null);
    return sign * (typeof a === "number" ? a - b : compareText(a, b));
  });
  return keyed.map((pair) => pair[1]);
}

const head = el("tr", {}), rows = el("tbody", {}), count = el("span", { class: "count", role: "status" });
const pages = el("div", { class: "pages" });

function update(change) {
  Object.assign(state, { page: 0 }, change);
  const found = chosen(), n = Math.max(1, Math.ceil(found.length / state.size));
  state.page = Math.min(state.page, n - 1);
  const first = state.page * state.size;
  rows.replaceChildren(...found.slice(first, first + state.size).map((episode) => row(episode, found)));
  count.textContent = `${found.length} of ${DATA.episodes.length} episodes`;
  [...head.children].forEach((cell, i) => {
    const sorted = COLUMNS[i].key === state.sort;
    if (sorted) cell.setAttribute("aria-sort", state.down ? "descending" : "ascending");
    else cell.removeAttribute("aria-sort");
  });
  const turn = (label, page) =>
    el("button", { type: "button", disabled: page < 0 || page >= n, onclick: () => update({ page }) }, label);
  pages.replaceChildren(turn("← Previous", state.page - 1), `Page ${state.page + 1} of ${n}`, turn("Next →", state.page + 1));
  kindSelect.value = state.kind;
  sceneSelect.value = state.scene;
  search.value = state.text;
  saidSearch.value = state.said;
}

const cellClass = (column) => [column.number ? "n" : "", column.minor ? "minor" : "", column.key === "text" ? "text" : ""].join(" ").trim() || null;

function row(episode, order) {
  const cells = COLUMNS.map((column, i) => {
    const value = column.value(episode);
    let shown = value === null ? "–" : column.show ? column.show(value) : value;
    if (i === 0) shown = el("button", { type: "button", "aria-label": "Show episode " + value }, value);
    if (column.key === "kind") shown = kindLabel(episode);
    return el("td", { class: cellClass(column), title: column.key === "text" ? value : null }, ...[shown].flat());
  });
  return el("tr", { onclick: () => openDetail(episode, order) }, ...cells);
}

function option(value, label) {
  return el("option", { value }, label);
}

const present = new Set(DATA.episodes.map((episode) => kindOf(episode).name));
const kindSelect = el("select", { onchange: () => update({ kind: kindSelect.value }) }, option("", "all"),
  ...DATA.kinds.filter((kind) => present.has(kind.name)).map((kind) => option(kind.name, kind.label)));
const sceneSelect = el("select", { onchange: () => update({ scene: sceneSelect.value }) }, option("", "all"),
  ...DATA.scenes.map((scene) => option(scene.name, scene.name)));
const search = el("input", { type: "search", placeholder: "words or episode id", oninput: () => update({ text: search.value }) });
const saidSearch = el("input", { type: "search", placeholder: "a word, STOP, unparsable", oninput: () => update({ said: saidSearch.value }) });
const sizeSelect = el("select", { onchange: () => update({ size: Number(sizeSelect.value) }) },
  ...SIZES.map((size) => option(size, String(size))));

function buildList() {
  for (const column of COLUMNS) {
    const sort = () => update({ sort: column.key, down: state.sort === column.key && !state.down });
    head.append(el("th", { scope: "col", class: cellClass(column) }, el("button", { type: "button", onclick: sort }, column.head)));
  }
  const table = el("table", { class: "episodes" }, el("thead", {}, head), rows);
  document.getElementById("list").append(
    el("div", { class: "controls" }, el("label", {}, "Instruction", search),
      SPEAKS && el("label", {}, "Answers", saidSearch), el("label", {}, "Ended as", kindSelect),
      el("label", {}, "Scene", sceneSelect), el("label", {}, "Rows", sizeSelect), count),
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Episodes" }, table),
    pages,
  );
  update({});
}

function show(change) {
  update({ kind: "", scene: "", text: "", said: "", ...change });
  document.getElementById("episodes").scrollIntoView();
}

// A card for every storey on which episodes begin.
function buildCards() {
  const groups = new Map();
  for (const episode of DATA.episodes) {
    if (!episode.path) continue;
    const storey = storeyOf(episode.scene, points(episode.path)[0][1]), key = episode.scene + "/" + storey;
    if (!groups.has(key)) groups.set(key, { scene: episode.scene, storey, episodes: [] });
    groups.get(key).episodes.push(episode);
  }
  const ordered = [...groups.values()].sort((a, b) => a.scene - b.scene || a.storey - b.storey);
  const place = document.getElementById("cards");
  place.append(...ordered.slice(0, FEW).map(card));
  const rest = ordered.slice(FEW);
  if (rest.length) {
    const more = el("button", { type: "button", class: "more" }, `Show ${rest.length} more maps`);
    more.addEventListener("click", () => {
      more.remove();
      place.append(...rest.map(card));
    });
    place.after(more);
  }
  const maps = DATA.scenes.some((scene) => scene.storeys.some((level) => level.png));
  const note = maps ? "" : " The floors are not shown: the scenes were not at hand when this page was made.";
  document.getElementById("maps-note").textContent =
    "Paths of all episodes that begin on the storey, as the agent walked them: successes blue, all others orange, "
    + "starts as circles. North (−z) is up. A click shows the scene's episodes." + note;
}

function card({ scene, storey, episodes }) {
  const { name, storeys } = DATA.scenes[scene];
  const level = storeys[storey];
  const walked = episodes.map((episode) => [episode, points(episode.path)]).sort(([a], [b]) => won(a) - won(b));
  const all = walked.flatMap((pair) => pair[1]);
  if (level.box) {
    const [x, z, width, height] = level.box;
    all.push([x, 0, z], [x + width, 0, z + height]);
  }
  const view = bounds(all, MARGIN / 2), size = Math.max(view[2], view[3]) * 0.008;
  const starts = new Map(walked.map(([, path]) => [path[0].join(), path[0]]));
  const scored = episodes.filter((episode) => kindOf(episode).name !== "unscored");
  const rate = scored.length ? `, SR ${((100 * scored.filter(won).length) / scored.length).toFixed(1)} %` : "";
  const title = name + (storeys.length > 1 ? ` · storey ${storey + 1} of ${storeys.length}` : "");
  return el("button", { type: "button", class: "card", onclick: () => show({ scene: name }) },
    svg("svg", { class: "map", viewBox: view.join(" "), "aria-hidden": "true" }, ...floor(scene, storey),
      ...walked.flatMap(([episode, path]) => pathLines(path, scene, storey, won(episode) ? "won" : "lost", false)),
      ...[...starts.values()].map((point) => startMark(point, size)), ...scaleBar(view, 0.055)),
    el("b", {}, title), el("small", {}, `${episodes.length} episodes${rate}`));
}

document.querySelectorAll("[data-kind]").forEach((button) =>
  button.addEventListener("click", () => show({ kind: button.dataset.kind })));
buildList();
buildCards();

function openAddressed() {
  const named = /^#episode=(.+)$/.exec(location.hash);
  const episode = named && DATA.episodes.find((each) => nameOf(each) === decodeURIComponent(named[1]));
  if (episode) openDetail(episode, chosen());
}
addEventListener("hashchange", openAddressed);
openAddressed();
