
// The sections of the page, made from its data, and made again from newer data where it is live.

const main = document.getElementById("main"), sections = document.getElementById("sections");
const METRICS = ["SR", "SPL", "OS", "NE", "nDTW", "SDTW", "CLS", "steps", "collisions"];
const section = (id, title, ...parts) => (parts.flat().length ? [id, title, el("section", { id }, el("h2", {}, title), ...parts.flat())] : null);
const note = (text) => el("p", { class: "note" }, text);
const hoursText = (value) => (value === null || value === undefined ? NOTHING : value >= 1 ? digits(value, 1) : digits(value, 3));

function runTables() {
  const columns = [
    { head: "run", value: (run) => run.name, show: (run) => [run.report ? el("a", { href: run.report }, run.name) : run.name, " ",
      run.running && tag(`running, ${run.done} of ${run.planned}`, "on"), ...run.labels.map((label) => tag(label)), el("span", { class: "range" }, run.folder)] },
    ...METRICS.map((label) => metricColumn(label, (run) => run.metrics[label])),
    { head: "episodes", number: true, value: (run) => run.done, show: (run) => run.episodes },
    { head: "errors", number: true, value: (run) => run.errors },
    { head: "hours", number: true, value: (run) => run.hours.wall, show: (run) => hoursText(run.hours.wall) },
    { head: "on", text: true, wide: true, value: (run) => run.hours.hardware },
  ];
  return DATA.groups.map((group) => el("div", { class: "group" }, el("h3", {}, group.title),
    note(`Protocol ${group.protocol}. Means with 95 % intervals clustered by scene; a run's name leads to its report where there is one. A head sorts.`),
    sortable("runs " + group.title + group.protocol, group.title, columns, group.runs.map((i) => DATA.runs[i]), () => "")));
}

// Everything that has an SR and a cost, by where it comes from: {title, x names, points by x name}
function tradeOffs() {
  const found = [];
  for (const matrix of DATA.matrices) for (const split of matrix.splits) {
    const rows = matrix.rows.filter((row) => row.results[split]?.SR);
    const names = [...new Set(rows.flatMap((row) => Object.keys(row.facts).filter((name) => row.facts[name] !== null && name !== "loss")))];
    for (const name of names) found.push([`${matrix.name}, ${split}`, name, rows.filter((row) => row.facts[name] !== null)
      .map((row) => ({ x: row.facts[name], y: row.results[split].SR.mean, low: row.results[split].SR.low, high: row.results[split].SR.high, name: row.name, reference: row.kind === "reference" }))]);
  }
  for (const group of DATA.groups) {
    const runs = group.runs.map((i) => DATA.runs[i]).filter((run) => run.metrics.SR && run.hours.wall);
    found.push([group.title, "hours of the evaluation", runs.map((run) => ({ x: run.hours.wall, y: run.metrics.SR.mean, low: run.metrics.SR.low, high: run.metrics.SR.high, name: run.name, reference: run.labels.includes("privileged") }))]);
  }
  for (const board of DATA.boards) {
    const rows = board.rows.filter((row) => row.metrics.SR && parseFloat(row.gpu_hours) > 0);
    found.push([boardTitle(board), "GPU-hours of training", rows.map((row) => ({ x: parseFloat(row.gpu_hours), y: row.metrics.SR.mean, low: row.metrics.SR.low, high: row.metrics.SR.high, name: row.method, reference: row.partial }))]);
  }
  return found.filter(([, , points]) => new Set(points.map((point) => point.x)).size > 1);
}

function paretoSection() {
  const all = tradeOffs();
  if (!all.length) return [];
  const [control, chosen] = select("pareto", "Of", [...new Set(all.map(([title]) => title))].map((title) => [title, title]), redraw);
  return [note("Success rate against what it costs. Filled dots: nothing that costs less is as good. Rings: something is. Orange rings: references, privileged or partial, which are no part of this."), el("div", { class: "controls" }, control),
    el("div", { class: "grid" }, ...all.filter(([title]) => title === chosen()).map(([title, x, points]) => pareto(title, x, "SR (%)", points)))];
}

function trainingSection() {
  if (!DATA.trainings.length) return [];
  const names = [...new Set(DATA.trainings.flatMap((training) => Object.keys(training.curves)))];
  const columns = [
    { head: "training", value: (each) => each.name, show: (each) => [each.name, " ", each.running && tag("running", "on"), el("span", { class: "range" }, each.folder)] },
    { head: "steps", number: true, value: (each) => each.done, show: (each) => `${each.done} of ${each.planned}` },
    { head: "loss", number: true, value: (each) => each.loss, show: (each) => digits(each.loss, 4) },
    { head: "steps/h", number: true, value: (each) => each.steps_per_h, show: (each) => digits(each.steps_per_h, 0) },
  ];
  const parts = [sortable("trainings", "Trainings", columns, DATA.trainings)];
  if (!names.length) return parts;
  const [control, chosen] = select("curve", "Curve", names.map((name) => [name, name.replaceAll("_", " ")]), redraw);
  const lines = DATA.trainings.filter((each) => each.curves[chosen()]).map((each) => ({ name: each.name, points: each.curves[chosen()] }));
  return [...parts, el("div", { class: "controls" }, control), el("div", { class: "grid" }, curves(chosen().replaceAll("_", " "), "step", lines))];
}

function matrixTables() {
  return DATA.matrices.map((matrix) => {
    const facts = [...new Set(matrix.rows.flatMap((row) => Object.keys(row.facts)))].filter((name) => matrix.rows.some((row) => row.facts[name] !== null));
    const columns = [
      { head: "setting", value: (row) => row.name, show: (row) => [row.name, " ", row.status !== "done" && tag(row.status), row.kind === "reference" && tag("reference")] },
      ...matrix.splits.flatMap((split) => ["SR", "SPL"].map((label) => ({ ...metricColumn(label, (row) => row.results[split]?.[label]), head: `${split} ${label} (%)`, wide: false }))),
      ...facts.map((name) => ({ head: name, number: true, value: (row) => row.facts[name], show: (row) => (row.facts[name] === null ? NOTHING : short(row.facts[name])) })),
    ];
    return el("div", { class: "group" }, el("h3", {}, matrix.name), note(`${matrix.rows.length} settings and references, axes ${matrix.axes.join(", ") || "none"}.`),
      sortable("matrix " + matrix.folder, matrix.name, columns, matrix.rows, (row) => (row.kind === "reference" ? "aside" : ""), true));
  });
}

const boardTitle = (board) => [board.title, "protocol " + board.protocol, board.languages && "languages " + board.languages].filter(Boolean).join(", ");

function boardSection() {
  if (!DATA.boards.length) return [];
  const [control, chosen] = select("board", "Table", DATA.boards.map((board, i) => [String(i), `${boardTitle(board)} (${board.rows.length})`]), redraw);
  const board = DATA.boards[Number(chosen())], labels = [...new Set(board.rows.flatMap((row) => Object.keys(row.metrics)))];
  const columns = [
    { head: "method", value: (row) => row.method, show: (row) => [row.method, " ", row.partial && tag("PARTIAL"), row.extra && el("span", { class: "range" }, row.extra), row.ours && el("span", { class: "range" }, "run of this repository")] },
    ...labels.map((label) => metricColumn(label, (row) => row.metrics[label])),
    ...[["sensors", "sensors"], ["evidence", "evidence"], ["episodes", "episodes"], ["GPU-hours", "gpu_hours"]].map(([head, name]) => ({ head, wide: name === "episodes", value: (row) => row[name] })),
    { head: "source", text: true, wide: true, value: (row) => row.source, show: (row) => linked(row.source ?? "") },
    { head: "note", text: true, wide: true, value: (row) => row.note },
  ];
  return [el("div", { class: "controls" }, control), note(board.description), sortable("board" + chosen(), boardTitle(board), columns, board.rows, (row) => (row.ours ? "ours" : row.partial ? "aside" : ""), true)];
}

function redraw() {
  const made = [
    section("runs", "Runs", runTables()),
    section("versus", "Run against run", DATA.groups.filter((group) => group.runs.length > 1).flatMap((group) => versus(group))),
    section("episodes", "The same episode", DATA.walked.flatMap((group, i) => [el("h3", {}, DATA.groups.find((each) => each.runs.includes(group.runs[0])).title), sameEpisodes(group, i)])),
    section("pareto", "What success costs", paretoSection()),
    section("trainings", "Trainings", trainingSection()),
    section("matrices", "Matrices", matrixTables()),
    section("board", "Leaderboard", boardSection()),
  ].filter(Boolean);
  const notes = DATA.notes.length ? [el("ul", { class: "notice", "aria-label": "Left out" }, ...DATA.notes.map((text) => el("li", {}, text)))] : [];
  const focused = document.activeElement, place = main.contains(focused) ? [...main.querySelectorAll("button, select, input, [tabindex]")].indexOf(focused) : -1;
  main.replaceChildren(...notes, ...made.map(([, , node]) => node));
  sections.replaceChildren(...made.map(([id, title]) => el("a", { href: "#" + id }, title)));
  if (place >= 0) main.querySelectorAll("button, select, input, [tabindex]")[place]?.focus({ preventScroll: true });
}

redraw();

if ("live" in main.dataset) {
  const state = document.getElementById("live");
  let stamp = DATA.stamp;
  const ask = async () => {
    try {
      const answer = await fetch("data.json?stamp=" + encodeURIComponent(stamp));
      if (answer.status === 200) {
        const fresh = await answer.json();
        stamp = fresh.stamp;
        Object.assign(DATA, fresh);
        redraw();
      }
      state.textContent = "live";
    } catch {
      state.textContent = "the server has gone";
    }
    setTimeout(ask, 2000);
  };
  setTimeout(ask, 2000);
}
