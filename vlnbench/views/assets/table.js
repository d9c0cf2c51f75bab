
// Tables that sort by their heads. What a reader has chosen outlives new data: it is kept by the key of the table.

const CHOSEN = new Map();
const collate = new Intl.Collator("en", { numeric: true }).compare;
const NOTHING = "–";
const digits = (value, places = 1) => (value === null || value === undefined ? NOTHING : (Math.round(value * 10 ** places) / 10 ** places + 0).toFixed(places));
const tag = (text, style = "") => el("span", { class: "tag " + style }, text);

// columns: {head, value(row), show(row) -> nodes, number, wide}. A row without a value comes last, either way.
function sortable(key, label, columns, rows, style = () => "", tall = false) {
  const state = CHOSEN.get(key) ?? { column: -1, down: true };
  const head = el("tr"), body = el("tbody");
  const classes = (column) => [column.number ? "n" : "", column.wide ? "wide" : "", column.text ? "text" : ""].join(" ").trim() || null;
  function fill() {
    const order = [...rows];
    if (state.column >= 0) {
      const value = columns[state.column].value, sign = state.down ? -1 : 1;
      const missing = (x) => x === null || x === undefined || x === "";
      order.sort((x, y) => {
        const a = value(x), b = value(y);
        if (missing(a) || missing(b)) return missing(a) - missing(b);
        return sign * (typeof a === "number" ? a - b : collate(a, b));
      });
    }
    body.replaceChildren(...order.map((row) => el("tr", { class: style(row) || null }, ...columns.map((column, i) => {
      const shown = [column.show ? column.show(row) : (column.value(row) ?? NOTHING)].flat().filter((part) => part !== false);
      return i === 0 ? el("th", { scope: "row" }, ...shown) : el("td", { class: classes(column) }, ...shown);
    }))));
    [...head.children].forEach((cell, i) => {
      if (i === state.column) cell.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    });
  }
  columns.forEach((column, i) => {
    const sort = () => {
      state.down = state.column === i ? !state.down : Boolean(column.number);
      state.column = i;
      CHOSEN.set(key, state);
      fill();
    };
    head.append(el("th", { scope: "col", class: classes(column) }, el("button", { type: "button", onclick: sort }, column.head)));
  });
  fill();
  const table = el("table", { class: "sortable" }, el("thead", {}, head), body);
  return el("div", { class: "scroll" + (tall ? " tall" : ""), tabindex: 0, role: "region", "aria-label": label }, table);
}

// A mean with its interval below, in percent or metres.
function estimate(found, places = 1) {
  if (!found) return NOTHING;
  const range = found.low === null || found.low === undefined ? null : `${digits(found.low, places)} to ${digits(found.high, places)}`;
  return [el("span", { class: "main" }, digits(found.mean, places)), range && el("span", { class: "range" }, range)];
}

const METERS = new Set(["NE", "TL"]);
const unit = (label) => (METERS.has(label) ? " (m)" : ["steps", "collisions"].includes(label) ? "" : " (%)");
const metricColumn = (label, of) => ({
  head: label + unit(label), number: true, wide: ["CLS", "SDTW", "collisions", "steps"].includes(label),
  value: (row) => of(row)?.mean ?? null, show: (row) => estimate(of(row), METERS.has(label) ? 2 : 1),
});

// Text with what are addresses in it as links.
function linked(text) {
  const parts = [];
  let at = 0;
  for (const match of text.matchAll(/https?:\/\/[^\s;,)<>"']+|arXiv (\d{4}\.\d{4,5})/g)) {
    parts.push(text.slice(at, match.index));
    const href = match[1] ? "https://arxiv.org/abs/" + match[1] : match[0];
    parts.push(el("a", { href, rel: "noopener noreferrer" }, match[0]));
    at = match.index + match[0].length;
  }
  return [...parts, text.slice(at)];
}

function select(key, label, options, change) {
  const found = el("select", { onchange: () => { CHOSEN.set(key, found.value); change(); } },
    ...options.map(([value, text]) => el("option", { value }, text)));
  const known = CHOSEN.get(key);
  if (options.some(([value]) => value === known)) found.value = known;
  return [el("label", {}, label, found), () => found.value];
}
