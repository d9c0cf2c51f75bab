
// Run against run, and the same episode of several runs.

function versus(group) {
  const members = group.runs, [control, label] = select("versus", "Metric", [["SR", "SR"], ["SPL", "SPL"]], redraw);
  const of = new Map();
  for (const pair of DATA.pairs) {
    of.set(pair.a + "-" + pair.b, [pair, 1]);
    of.set(pair.b + "-" + pair.a, [pair, -1]);
  }
  if (!members.some((a) => members.some((b) => of.has(a + "-" + b)))) return [];
  const cell = (row, column) => {
    const [pair, sign] = of.get(column + "-" + row) ?? [null, 1], found = pair && pair[label()];
    if (row === column || !found) return el("td", {}, row === column ? "" : NOTHING);
    const ends = found.low === null ? null : sign > 0 ? [found.low, found.high] : [-found.high, -found.low];
    const style = !ends ? null : ends[0] > 0 ? "better" : ends[1] < 0 ? "worse" : null;
    const [wins, losses] = sign > 0 ? [pair.wins, pair.losses] : [pair.losses, pair.wins];
    const mean = sign * found.mean, told = `${DATA.runs[row].name} minus ${DATA.runs[column].name}: ${wins} episodes won, ${losses} lost, n ${found.n}`;
    return el("td", { class: style, title: told }, el("b", {}, (mean > 0 ? "+" : "") + digits(mean)), ends && `${digits(ends[0])} to ${digits(ends[1])}`);
  };
  const table = el("table", { class: "versus" },
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "row − column"), ...members.map((i) => el("th", { scope: "col" }, DATA.runs[i].name)))),
    el("tbody", {}, ...members.map((row) => el("tr", {}, el("th", { scope: "row" }, DATA.runs[row].name), ...members.map((column) => cell(row, column))))));
  return [el("h3", {}, "Run against run: ", group.title), el("div", { class: "controls" }, control),
    el("p", { class: "note" }, "Row minus column in points, paired by episode, with 95 % intervals clustered by scene; colored where the interval leaves 0 out. Runs of other episodes are not compared."),
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Run against run" }, table)];
}

const PER_PAGE = 20;
const kindDot = (walk) => (walk ? el("i", { class: "dot k-" + DATA.kinds[walk.kind].name, role: "img", "aria-label": DATA.kinds[walk.kind].label, title: DATA.kinds[walk.kind].label }) : NOTHING);

function sameEpisodes(group, number) {
  const key = "episodes" + number, state = CHOSEN.get(key) ?? { at: null, page: 0, text: "", split: false };
  CHOSEN.set(key, state);
  const body = el("tbody"), panel = el("div", { class: "episode", tabindex: -1, "aria-live": "polite" }), pages = el("div", { class: "pages" });
  const differs = (episode) => new Set(episode.walks.filter(Boolean).map((walk) => walk.kind === 0)).size > 1;
  const chosen = () => group.episodes.filter((episode) => (!state.split || differs(episode)) &&
    (!state.text || episode.id === state.text || (episode.text ?? "").toLowerCase().includes(state.text.toLowerCase()) || DATA.scenes[episode.scene].name === state.text));
  function show(episode) {
    state.at = episode.id;
    panel.replaceChildren(el("h3", {}, `Episode ${episode.id} in ${DATA.scenes[episode.scene].name}`), episode.text && el("p", { class: "instruction" }, episode.text),
      el("div", { class: "ways" }, ...group.runs.map((run, i) => way(episode, episode.walks[i], DATA.runs[run].name))));
    [...body.children].forEach((row) => row.classList.toggle("now", row.dataset.id === episode.id));
  }
  function fill() {
    const found = chosen(), n = Math.max(1, Math.ceil(found.length / PER_PAGE));
    state.page = Math.max(0, Math.min(state.page, n - 1));
    body.replaceChildren(...found.slice(state.page * PER_PAGE, (state.page + 1) * PER_PAGE).map((episode) =>
      el("tr", { "data-id": episode.id, onclick: () => show(episode) }, el("th", { scope: "row" }, el("button", { type: "button" }, episode.id)),
        el("td", {}, DATA.scenes[episode.scene].name), ...episode.walks.map((walk) => el("td", {}, kindDot(walk))))));
    const turn = (text, step) => el("button", { type: "button", disabled: state.page + step < 0 || state.page + step >= n, onclick: () => { state.page += step; fill(); } }, text);
    pages.replaceChildren(turn("← Previous", -1), `Page ${state.page + 1} of ${n}, ${found.length} episodes`, turn("Next →", 1));
    if (found.length) show(found.find((episode) => episode.id === state.at) ?? found[0]);
    else panel.replaceChildren("No episode is left by this choice.");
  }
  const move = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || event.altKey || event.ctrlKey || event.metaKey || event.target.tagName === "INPUT" || event.target.tagName === "SELECT") return;
    const found = chosen(), at = found.findIndex((episode) => episode.id === state.at) + step;
    if (at < 0 || at >= found.length) return;
    event.preventDefault();
    state.at = found[at].id;
    state.page = Math.floor(at / PER_PAGE);
    fill();
  };
  const search = el("input", { type: "search", value: state.text, placeholder: "words, scene or id", oninput: () => { state.text = search.value.trim(); state.page = 0; fill(); } });
  const split = el("input", { type: "checkbox", checked: state.split, onchange: () => { state.split = split.checked; state.page = 0; fill(); } });
  const table = el("table", { class: "dots" }, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "episode"), el("th", { scope: "col" }, "scene"),
    ...group.runs.map((run) => el("th", { scope: "col" }, DATA.runs[run].name)))), body);
  fill();
  return el("div", { class: "group", onkeydown: move }, el("div", { class: "controls" }, el("label", {}, "Find", search), el("label", {}, split, "only where some succeed and some fail")),
    panel, el("p", { class: "note" }, "Blue: the way that was walked, from the circle to the arrow; green dashes: the reference path; red star: the goal. ← and → go through the episodes."),
    el("ul", { class: "keys" }, ...DATA.kinds.filter((_, i) => group.episodes.some((each) => each.walks.some((walk) => walk?.kind === i))).map((kind) => el("li", {}, el("i", { class: "dot k-" + kind.name }), kind.label))), el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Episodes of several runs" }, table), pages);
}

function way(episode, walk, name) {
  const figure = el("figure", { class: "way" });
  if (!walk) return fill(figure, {}, [el("b", {}, name), el("small", {}, "not walked")]);
  const path = walk.path ? points(walk.path) : [], reference = episode.ref ? points(episode.ref) : [], goals = episode.goals ?? [];
  const facts = [["SPL", walk.spl === undefined || walk.spl === null ? null : digits(100 * walk.spl) + " %"], ["NE", walk.ne === undefined || walk.ne === null ? null : digits(walk.ne, 2) + " m"], ["", walk.steps === undefined || walk.steps === null ? null : walk.steps + " steps"]]
    .filter(([, value]) => value !== null).map(([label, value]) => (label + " " + value).trim()).join(", ");
  if (path.length) {
    const others = episode.walks.filter(Boolean).flatMap((each) => (each.path ? points(each.path) : []));
    const box = bounds([...others, ...reference, ...goals], MARGIN), storey = storeyOf(episode.scene, path[0][1]), size = Math.max(box[2], box[3]) * 0.014;
    figure.append(svg("svg", { viewBox: box.join(" "), class: "map", role: "img", "aria-label": `Way of ${name}` }, ...floor(episode.scene, storey),
      ...(reference.length > 1 ? pathLines(reference, episode.scene, storey, "reference", true) : []), ...pathLines(path, episode.scene, storey, "agent", true),
      startMark(path[0], size), ...goals.map((goal) => goalMark(goal, size)),
      svg("polygon", { class: "body", points: bodyShape(path[path.length - 1], walk.yaw, size) }), ...scaleBar(box, 0.045)));
  }
  return fill(figure, {}, [el("b", {}, name), el("small", {}, kindDot(walk), " ", DATA.kinds[walk.kind].label, facts && " · " + facts, walk.reason && " · " + walk.reason)]);
}
