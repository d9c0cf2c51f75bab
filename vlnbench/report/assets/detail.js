
// One episode: instruction, map with paths, distance to the goal and actions, step by step.

const GLYPHS = ["■", "↑", "←", "→", "⤒", "⤓"];
const ACTIONS = ["stop", "forward", "left", "right", "look up", "look down"];
const SCORES = {
  spl: ["SPL", (v) => percent(v)],
  distance_to_goal: ["NE", (v) => metres(v)],
  oracle_distance: ["closest to goal", (v) => metres(v)],
  geodesic_start: ["start to goal", (v) => metres(v)],
  ndtw: ["nDTW", (v) => percent(v)],
  sdtw: ["SDTW", (v) => percent(v)],
  cls: ["CLS", (v) => percent(v)],
  path_length: ["path length", (v) => metres(v)],
  steps: ["steps", (v) => String(v)],
  collisions: ["collisions", (v) => String(v)],
};
const percent = (value) => (100 * value).toFixed(1) + " %";
const metres = (value) => value.toFixed(2) + " m";
const score = (episode, name) => (episode.s ? episode.s[DATA.scores.indexOf(name)] : null);
const nameOf = (episode) => episode.id + (DATA.repeats > 1 ? " / " + (episode.repeat || 0) : "");
const kindOf = (episode) => DATA.kinds[episode.kind];
const kindLabel = (episode) => [el("i", { class: "dot k-" + kindOf(episode).name }), kindOf(episode).label];

const dialog = document.getElementById("detail");
let playing = null;
dialog.addEventListener("close", () => {
  pause();
  history.replaceState(null, "", location.pathname + location.search);
});
dialog.addEventListener("click", (event) => {
  if (event.target === dialog) dialog.close();
});

function pause() {
  clearInterval(playing);
  playing = null;
}

// order: the episodes as the list shows them, for the buttons to the next and the one before
function openDetail(episode, order) {
  pause();
  const at = order.indexOf(episode);
  const move = (by) => openDetail(order[at + by], order);
  const go = (label, by) =>
    el("button", { type: "button", disabled: order[at + by] === undefined, onclick: () => move(by) }, label);
  const heading = el("h2", { id: "detail-title", tabindex: -1, autofocus: true }, "Episode " + nameOf(episode) + " · " + DATA.scenes[episode.scene].name);
  dialog.replaceChildren(
    el("div", { class: "detail-head" }, heading, go("← Previous", -1), go("Next →", 1),
      el("button", { type: "button", onclick: () => dialog.close() }, "Close")),
    el("div", { class: "detail-body" }, ...detailBody(episode)),
  );
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
  history.replaceState(null, "", "#episode=" + encodeURIComponent(nameOf(episode)));
}

function detailBody(episode) {
  const marks = [], answers = answersOf(episode);
  let now = 0;
  const show = (step) => {
    now = step;
    marks.forEach((mark) => mark(step));
  };
  const said = answers.length ? [el("div", { class: "wide" }, el("h3", {}, "Answers"), answerList(answers, marks, show))] : [];
  const speaking = answers.length ? [el("h3", {}, "What the model said"), answerNow(answers, marks)] : [];
  const facts = el("div", {}, ...instruction(episode), ...(episode.frames ? [frameNow(episode, marks)] : []), ...speaking, scoreList(episode));
  stepping = null;
  if (!episode.path) {
    show(answers.length ? answers[answers.length - 1].step : 0);
    const lacking = episode.s ? "No trajectory is known." : "No trajectory is recorded: the episode broke.";
    return [el("p", { class: "note" }, lacking), facts, ...said];
  }
  const walk = decode(episode), last = walk.actions.length;
  stepping = { answers, last, show, at: () => now };
  const map = el("div", {}, detailMap(episode, walk, marks), legend(episode), stepper(walk, marks, show));
  const parts = [map, facts, ...said];
  if (episode.dist) parts.push(el("div", { class: "wide" }, el("h3", {}, "Distance to goal (m) by step"), chart(walk, marks)));
  parts.push(el("div", { class: "wide" }, el("h3", {}, "Actions"), actionStrip(walk, marks, show)));
  if (episode.video) {
    const source = "data:video/mp4;base64," + episode.video;
    parts.push(el("div", { class: "wide" }, el("h3", {}, "Video"), el("video", { controls: true, src: source })));
  }
  const sought = state.said.trim().toLowerCase();
  show((sought ? foundStep(episode, sought) : null) ?? last);
  return parts;
}

function instruction(episode) {
  if (episode.text === undefined) return [el("p", { class: "note" }, "The instruction is not known: made without the dataset.")];
  return [el("blockquote", { class: "instruction", lang: episode.lang }, episode.text)];
}

function scoreList(episode) {
  const list = el("dl", { class: "facts" }, el("dt", {}, "ended as"), el("dd", {}, ...kindLabel(episode)));
  if (episode.reason) list.append(el("dt", {}, "reason"), el("dd", {}, episode.reason));
  for (const name of episode.s ? DATA.scores : []) {
    const value = score(episode, name), [label, format] = SCORES[name];
    list.append(el("dt", {}, label), el("dd", {}, value === null ? "–" : format(value)));
  }
  return list;
}

function detailMap(episode, walk, marks) {
  const box = el("div", { class: "detail-map" });
  const levels = DATA.scenes[episode.scene].storeys;
  const reference = episode.ref ? points(episode.ref) : [];
  const goals = episode.goals || [];
  const visited = [...new Set([...walk.poses, ...goals].map((p) => storeyOf(episode.scene, p[1])))].sort((a, b) => a - b);
  const view = bounds([...walk.poses, ...reference, ...goals], MARGIN);
  const size = Math.max(view[2] / 1.4, view[3]) * 0.017;
  let body, drawn = -1;
  const draw = (storey) => {
    drawn = storey;
    const there = (point) => storeyOf(episode.scene, point[1]) === storey;
    body = svg("polygon", { class: "body" });
    const start = walk.poses[0];
    box.replaceChildren(svg("svg", { class: "map", viewBox: view.join(" "), role: "img", "aria-label": mapLabel(episode) },
      ...floor(episode.scene, storey),
      ...pathLines(reference, episode.scene, storey, "reference", true),
      ...pathLines(walk.poses, episode.scene, storey, "agent", true),
      there(start) ? startMark(start, size) : null,
      ...goals.filter(there).map((goal) => goalMark(goal, size)),
      body, ...scaleBar(view)));
    if (visited.length > 1) {
      box.append(el("p", { class: "note" }, `Storey ${storey + 1} of ${levels.length}; paths on others are faint. `
        + "The map follows the agent."));
    }
  };
  marks.push((step) => {
    const pose = walk.poses[step], storey = storeyOf(episode.scene, pose[1]);
    if (storey !== drawn) draw(storey);
    body.setAttribute("points", bodyShape(pose, walk.yaws[step], size));
  });
  return box;
}

function mapLabel(episode) {
  const known = episode.ref ? "reference path and path of the agent" : "path of the agent";
  return `Top-down map with ${known}; the episode ended as: ${kindOf(episode).label}`;
}

function legend(episode) {
  const sample = (shape) => svg("svg", { class: "map", viewBox: "0 0 34 18", "aria-hidden": "true" }, shape);
  const line = (style) => sample(svg("polyline", { class: style, points: "2,9 32,9" }));
  const items = [[line("agent"), "agent"]];
  if (episode.ref) items.push([line("reference"), "reference"]);
  items.push([sample(startMark([17, 0, 9], 6)), "start"]);
  if (episode.goals) items.push([sample(goalMark([17, 0, 9], 6)), "goal"]);
  items.push([sample(svg("polygon", { class: "body", points: bodyShape([17, 0, 9], -90, 6) })), "agent at this step"]);
  return el("ul", { class: "legend" }, ...items.map((item) => el("li", {}, ...item)));
}

function stepper(walk, marks, show) {
  const last = walk.actions.length;
  const output = el("output", {});
  const range = el("input", { type: "range", min: 0, max: last, value: last, "aria-label": "Step" });
  range.addEventListener("input", () => show(Number(range.value)));
  const button = el("button", { type: "button" }, "Play");
  const stop = () => {
    pause();
    button.textContent = "Play";
  };
  button.addEventListener("click", () => {
    if (playing) return stop();
    if (Number(range.value) === last) show(0);
    button.textContent = "Pause";
    playing = setInterval(() => {
      const next = Number(range.value) + 1;
      if (next > last) stop();
      else show(next);
    }, 110);
  });
  marks.push((step) => {
    range.value = step;
    const distance = walk.distances[step];
    const told = [`step ${step} of ${last}`];
    if (step) told.push(ACTIONS[walk.actions[step - 1]] + (walk.hits[step - 1] ? ", collided" : ""));
    if (distance !== null) told.push(distance.toFixed(2) + " m to goal");
    output.textContent = told.join(" · ");
    range.setAttribute("aria-valuetext", output.textContent);
  });
  return el("div", { class: "stepper" }, button, range, output);
}

function chart(walk, marks) {
  const width = Math.min(1080, Math.max(340, innerWidth - 80)), height = 190, left = 38, right = 12, top = 12, bottom = 26;
  const last = walk.actions.length;
  const known = walk.distances.filter((d) => d !== null);
  const most = Math.max(...known, DATA.success) * 1.05;
  const x = (step) => left + ((width - left - right) * step) / Math.max(1, last);
  const y = (distance) => height - bottom - ((height - top - bottom) * distance) / most;
  const label = `Geodesic distance to the goal, ${known[0]} m at the start and ${known[known.length - 1]} m at the end`;
  const picture = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": known.length ? label : "No path to the goal" });
  for (const value of ticks(most, 4)) {
    picture.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
      svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, String(value)));
  }
  for (const step of ticks(last, width / 90)) {
    picture.append(svg("text", { x: x(step), y: height - 8, "text-anchor": "middle" }, String(step)));
  }
  picture.append(svg("line", { class: "near", x1: left, x2: width - right, y1: y(DATA.success), y2: y(DATA.success) }));
  walk.hits.forEach((hit, i) => {
    if (hit) picture.append(svg("line", { class: "hit", x1: x(i + 1), x2: x(i + 1), y1: height - bottom, y2: height - bottom - 7 }));
  });
  const line = walk.distances.map((d, i) => (d === null ? null : `${x(i).toFixed(1)},${y(d).toFixed(1)}`));
  picture.append(svg("polyline", { class: "line", points: line.filter((p) => p !== null).join(" ") }));
  const now = svg("circle", { class: "now", r: 5 });
  picture.append(now);
  marks.push((step) => {
    const distance = walk.distances[step];
    now.setAttribute("cx", x(step));
    now.setAttribute("cy", y(distance === null ? 0 : distance));
  });
  const note = `Dashed: success distance, ${DATA.success} m. Ticks at the foot: collisions.`;
  return el("div", {}, picture, el("p", { class: "note" }, note));
}

// Round values from 0 on, about `count` of them.
function ticks(most, count) {
  const rough = most / count, power = 10 ** Math.floor(Math.log10(Math.max(rough, 1e-9)));
  const step = Math.max(1, [1, 2, 5, 10].map((k) => k * power).find((k) => k >= rough));
  const result = [];
  for (let value = 0; value <= most; value += step) result.push(value);
  return result;
}

function actionStrip(walk, marks, show) {
  const counts = ACTIONS.map((name, i) => [name, walk.actions.filter((action) => action === i).length]);
  const hits = walk.hits.filter(Boolean).length;
  const told = counts.filter((pair) => pair[1]).map(([name, count]) => `${count} ${name}`);
  const note = `${told.join(", ")}; ${hits} with a collision (underlined). Click one to see its step.`;
  const glyphs = walk.actions.map((action, i) =>
    el("span", { class: walk.hits[i] ? "hit" : null, "data-step": i + 1, title: `${i + 1}: ${ACTIONS[action]}` }, GLYPHS[action]));
  const strip = el("div", { class: "actions", "aria-hidden": "true" }, ...glyphs);
  strip.addEventListener("click", (event) => {
    if (event.target.dataset.step) show(Number(event.target.dataset.step));
  });
  let marked = null;
  marks.push((step) => {
    if (marked) marked.classList.remove("now");
    marked = step ? glyphs[step - 1] : null;
    if (marked) marked.classList.add("now");
  });
  return el("div", {}, strip, el("p", { class: "note" }, note));
}
