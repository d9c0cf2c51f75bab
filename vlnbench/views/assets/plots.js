
// Plots: SR against what it costs with the Pareto front, and curves of trainings.

const WIDE = 560, HIGH = 330, LEFT = 46, RIGHT = 16, TOP = 14, BOTTOM = 42;

function ticks(low, high, count = 5) {
  const rough = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const found = [];
  for (let x = Math.ceil(low / step - 1e-9) * step; x <= high + step * 1e-9; x += step) found.push(Number(x.toPrecision(12)));
  return found;
}

const short = (value) => (Math.abs(value) >= 1e4 ? value.toExponential(0) : String(Number(value.toPrecision(4))));

// A frame with grid and names; x may be logarithmic. Returns the picture and how to place a point.
function frame(label, [x0, x1], [y0, y1], xName, yName, log = false) {
  const bend = (x) => (log ? Math.log10(x) : x);
  const px = (x) => LEFT + ((bend(x) - bend(x0)) / (bend(x1) - bend(x0) || 1)) * (WIDE - LEFT - RIGHT);
  const py = (y) => HIGH - BOTTOM - ((y - y0) / (y1 - y0 || 1)) * (HIGH - TOP - BOTTOM);
  const picture = svg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "group", "aria-label": label });
  for (const y of ticks(y0, y1)) picture.append(
    svg("line", { class: "grid-line", x1: LEFT, x2: WIDE - RIGHT, y1: py(y), y2: py(y) }),
    svg("text", { x: LEFT - 6, y: py(y) + 4, "text-anchor": "end" }, short(y)));
  const decades = Math.log10(x1 / x0), marks = log && decades > 1
    ? Array.from({ length: Math.ceil(decades) + 2 }, (_, i) => 10 ** (Math.floor(Math.log10(x0)) + i)).filter((x) => x >= x0 && x <= x1)
    : ticks(x0, x1);
  for (const x of marks) picture.append(
    svg("line", { class: "grid-line", x1: px(x), x2: px(x), y1: TOP, y2: HIGH - BOTTOM }),
    svg("text", { x: px(x), y: HIGH - BOTTOM + 16, "text-anchor": "middle" }, short(x)));
  picture.append(svg("text", { x: (LEFT + WIDE - RIGHT) / 2, y: HIGH - 6, "text-anchor": "middle" }, xName + (log ? " · logarithmic" : "")),
    svg("text", { x: 12, y: (TOP + HIGH - BOTTOM) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(TOP + HIGH - BOTTOM) / 2})` }, yName));
  return [picture, px, py];
}

// Points that nothing beats: no other one is at least as good for at most the same cost.
function front(points) {
  const ordered = [...points].sort((a, b) => a.x - b.x || b.y - a.y), best = [];
  for (const point of ordered) if (!best.length || point.y > best[best.length - 1].y) best.push(point);
  return best;
}

// points: {x, y, low, high, name, reference}
function pareto(title, xName, yName, points) {
  const best = front(points.filter((point) => !point.reference));
  const xs = points.map((point) => point.x), least = Math.min(...xs), most = Math.max(...xs);
  const log = least > 0 && most / least > 20, pad = (most - least) * 0.06 || most * 0.1 || 1;
  const span = log ? [least / 1.4, most * 1.4] : [Math.max(0, least - pad), most + pad];
  const top = Math.max(...points.map((point) => point.high ?? point.y));
  const [picture, px, py] = frame(title, span, [0, Math.min(100, top * 1.08) || 1], xName, yName, log);
  const caption = el("figcaption", { role: "status" }, "");
  const rest = `${title}. ${points.length} points; the dashed line joins those that nothing of lower cost beats. Point at one, or tab to it.`;
  caption.textContent = rest;
  if (best.length > 1) picture.append(svg("polyline", { class: "front", points: best.map((p) => px(p.x) + "," + py(p.y)).join(" ") }));
  for (const point of points) {
    const range = point.low === null || point.low === undefined ? "" : ` [${digits(point.low)}, ${digits(point.high)}]`;
    const said = `${point.name}: ${yName} ${digits(point.y)}${range}, ${xName} ${short(point.x)}`;
    const tell = () => (caption.textContent = said), hush = () => (caption.textContent = rest);
    if (range) picture.append(svg("line", { class: "whisk", x1: px(point.x), x2: px(point.x), y1: py(point.low), y2: py(point.high) }));
    picture.append(svg("circle", {
      class: "dot-mark" + (best.includes(point) ? " best" : "") + (point.reference ? " reference" : ""), cx: px(point.x), cy: py(point.y), r: 5,
      tabindex: 0, role: "img", "aria-label": said, onmouseenter: tell, onfocus: tell, onmouseleave: hush, onblur: hush,
    }, svg("title", {}, said)));
  }
  const taken = []; // boxes of names: one that would lie on another is left to the caption
  for (const point of [...best].reverse()) {
    const name = point.name.length > 28 ? point.name.slice(0, 27) + "…" : point.name;
    const end = px(point.x) > WIDE * 0.55, long = 6.2 * name.length, y = py(point.y) - 8;
    const x = px(point.x) + (end ? -8 - long : 8);
    if (taken.some(([left, width, at]) => Math.abs(at - y) < 13 && left < x + long && x < left + width)) continue;
    taken.push([x, long, y]);
    picture.append(svg("text", { class: "name", x: end ? px(point.x) - 8 : x, y, "text-anchor": end ? "end" : "start" }, name));
  }
  return el("figure", { class: "plot" }, picture, caption);
}

// lines: [{name, points: [[x, y], ...]}]
function curves(title, xName, lines) {
  const all = lines.flatMap((line) => line.points), xs = all.map((p) => p[0]), ys = all.map((p) => p[1]);
  const low = Math.min(...ys), high = Math.max(...ys), pad = (high - low) * 0.05 || Math.abs(high) * 0.1 || 1;
  const [picture, px, py] = frame(title, [Math.min(...xs), Math.max(...xs)], [low - pad, high + pad], xName, title);
  lines.forEach((line, i) => picture.append(svg("polyline", { class: `curve c${i % 8}`, points: line.points.map((p) => px(p[0]) + "," + py(p[1])).join(" ") },
    svg("title", {}, line.name))));
  const keys = el("ul", { class: "keys" }, ...lines.map((line, i) => el("li", {}, el("i", { class: `c${i % 8}` }), `${line.name}: ${short(line.points[line.points.length - 1][1])}`)));
  return el("figure", { class: "plot" }, picture, keys);
}
