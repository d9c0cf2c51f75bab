
// What the model said: of an episode step by step, found by its words, and by the keyboard.

const NAMES = ["STOP", "MOVE_FORWARD", "TURN_LEFT", "TURN_RIGHT", "LOOK_UP", "LOOK_DOWN"];
const SPEAKS = DATA.episodes.some((episode) => episode.said);
const glyphs = (actions) => [...actions].map((digit) => GLYPHS[digit]).join("");
const unread = (episode) => (episode.said ? (episode.said.unparsable || []).length : null);

// Columns as an answer each, in the order in which they were given.
function answersOf(episode) {
  const said = episode.said;
  if (!said) return [];
  const failed = new Set(said.unparsable || []), notes = said.note || {};
  const of = (name, i) => (said[name] ? said[name][i] : null);
  return said.step.map((step, i) => ({
    step, text: said.texts[said.text[i]], actions: said.actions[i], seconds: said.seconds[i], unparsable: failed.has(i),
    note: notes[i] || "", tokens: of("prompt_tokens", i), images: of("images", i), length: of("answer_tokens", i), likely: of("log_probability", i),
  }));
}

// What is searched: text, note, names of the actions, and the word unparsable. sought: in lower case.
function says(answer, sought) {
  const names = [...answer.actions].map((digit) => NAMES[digit]).join(" ");
  return [answer.text, answer.note, names, answer.unparsable ? "unparsable" : ""].join("\n").toLowerCase().includes(sought);
}

function foundStep(episode, sought) {
  const found = answersOf(episode).find((answer) => says(answer, sought));
  return found === undefined ? null : found.step;
}

function sizeOf(answer) {
  const parts = [];
  if (answer.tokens !== null) parts.push(answer.tokens + " tokens");
  if (answer.images !== null) parts.push(answer.images + (answer.images === 1 ? " frame" : " frames"));
  return parts.join(", ") || "–";
}

const readAs = (answer) => (answer.unparsable ? el("strong", { class: "unread" }, "unparsable") : glyphs(answer.actions));

// The answer that decides on the next action, beside frame and map.
function answerNow(answers, marks) {
  const box = el("div", { class: "answer", "aria-live": "polite" });
  marks.push((step) => {
    const now = answers.filter((answer) => answer.step <= step), last = now[now.length - 1];
    if (!last) return box.replaceChildren(el("p", { class: "note" }, "Nothing was asked yet."));
    const tries = now.filter((answer) => answer.step === last.step);
    const facts = [`asked at step ${last.step}`, sizeOf(last), last.seconds + " s"];
    if (last.likely !== null) facts.push("log-probability " + last.likely);
    box.replaceChildren(el("p", { class: "note" }, facts.join(" · ")),
      ...tries.flatMap((answer) => [el("blockquote", {}, answer.text || "(no text)"),
        el("p", { class: "read" }, "read as ", readAs(answer), answer.note ? " · " + answer.note : "")]));
  });
  return box;
}

// All answers of an episode; those in which what is sought was said, where something is.
function answerList(answers, marks, show) {
  const rows = answers.map((answer) => el("tr", { onclick: () => show(answer.step) },
    el("td", { class: "n" }, el("button", { type: "button" }, String(answer.step))), el("td", { class: "text" }, answer.text),
    el("td", {}, readAs(answer)), el("td", {}, sizeOf(answer)), el("td", { class: "n" }, answer.likely === null ? "–" : String(answer.likely)),
    el("td", { class: "n" }, String(answer.seconds))));
  const count = el("span", { class: "count", role: "status" });
  const search = el("input", { type: "search", placeholder: "a word, STOP, unparsable", value: state.said, oninput: () => filter() });
  const filter = () => {
    const sought = search.value.trim().toLowerCase();
    let found = 0;
    answers.forEach((answer, i) => {
      rows[i].hidden = !says(answer, sought);
      found += !rows[i].hidden;
    });
    count.textContent = `${found} of ${answers.length} answers`;
  };
  filter();
  const heads = [["step", "n"], ["the model said"], ["read as"], ["prompt"], ["log-prob.", "n"], ["s", "n"]]
    .map(([name, kind]) => el("th", { scope: "col", class: kind }, name));
  const box = el("div", { class: "scroll said", tabindex: 0, role: "region", "aria-label": "Answers" },
    el("table", { class: "episodes" }, el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, ...rows)));
  marks.push((step) => {
    let now = -1;
    answers.forEach((answer, i) => {
      if (answer.step <= step) now = i;
    });
    rows.forEach((row, i) => row.classList.toggle("now", i === now));
    if (now >= 0 && box.isConnected) box.scrollTop = Math.max(0, rows[now].offsetTop - box.clientHeight / 2);
  });
  return el("div", {}, el("div", { class: "controls" }, el("label", {}, "Find", search), count), box);
}

function frameNow(episode, marks) {
  const picture = el("img", { class: "frame", alt: "What the camera sees at this step" });
  marks.push((step) => {
    let at = Math.min(step, episode.frames.length - 1);
    while (at && !episode.frames[at]) at -= 1;
    picture.src = "data:image/jpeg;base64," + episode.frames[at];
  });
  return picture;
}

// Arrow keys: a step, or with Shift an answer; Home and End. What has the focus and needs them itself keeps them.
let stepping = null;
dialog.addEventListener("keydown", (event) => {
  if (!stepping || event.ctrlKey || event.altKey || event.metaKey || event.target.closest("input, select, video")) return;
  const { answers, at, last, show } = stepping, steps = answers.map((answer) => answer.step);
  const to = {
    ArrowRight: event.shiftKey ? steps.find((step) => step > at()) ?? last : at() + 1,
    ArrowLeft: event.shiftKey ? steps.filter((step) => step < at()).pop() ?? 0 : at() - 1,
    Home: 0,
    End: last,
  }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  pause();
  show(Math.max(0, Math.min(last, to)));
});
