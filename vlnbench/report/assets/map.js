
"use strict";
// Elements, decoding and maps. Text enters the page as text nodes only. Lengths are centimetres.

const DATA = JSON.parse(document.getElementById("run-data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const MARGIN = 120;

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}
const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// [[x, z, dx, dz, ...], [y, dy, ...]] -> [[x, y, z], ...]
function points(path) {
  const [flat, level] = path;
  const result = [];
  let x = 0, y = level.length === 1 ? level[0] : 0, z = 0;
  for (let i = 0; 2 * i < flat.length; i++) {
    x += flat[2 * i];
    z += flat[2 * i + 1];
    if (level.length > 1) y += level[i];
    result.push([x, y, z]);
  }
  return result;
}

// What an episode did: poses (one more than actions), actions, collisions, distances in metres or null.
function decode(episode) {
  if (episode.walk) return episode.walk;
  const stops = points(episode.path);
  const walk = { poses: [], yaws: [], actions: [], hits: [], distances: [] };
  let at = 0, yaw = episode.yaw;
  const push = () => {
    walk.poses.push(stops[at]);
    walk.yaws.push(yaw);
    const distance = episode.dist ? episode.dist[at] : -1;
    walk.distances.push(distance < 0 ? null : distance / 100);
  };
  push();
  for (const letter of episode.acts) {
    const code = letter.charCodeAt(0) - 65;
    const action = code % 6;
    if (Math.floor(code / 6) % 2) at += 1;
    if (action === 2) yaw += DATA.turn;
    if (action === 3) yaw -= DATA.turn;
    walk.actions.push(action);
    walk.hits.push(code >= 12);
    push();
  }
  return (episode.walk = walk);
}

function storeyOf(scene, y) {
  const levels = DATA.scenes[scene].storeys;
  let best = 0;
  levels.forEach((level, i) => {
    if (Math.abs(level.y - y) < Math.abs(levels[best].y - y)) best = i;
  });
  return best;
}

// A path as polylines, cut where it changes storey; those of other storeys are faint, or left out.
function pathLines(path, scene, storey, style, others) {
  const groups = [];
  for (const point of path) {
    const here = storeyOf(scene, point[1]) === storey;
    const last = groups[groups.length - 1];
    if (last && last.here === here) last.points.push(point);
    else groups.push({ here, points: last ? [last.points[last.points.length - 1], point] : [point] });
  }
  return groups
    .filter((group) => group.points.length > 1 && (group.here || others))
    .map((group) =>
      svg("polyline", {
        class: group.here ? style : style + " elsewhere",
        points: group.points.map((p) => p[0] + "," + p[2]).join(" "),
      }),
    );
}

let masks = 0;

// The floor of a storey: the picture of the map as a mask, so that it takes the page's colours.
function floor(scene, storey) {
  const level = DATA.scenes[scene].storeys[storey];
  if (!level || !level.png) return [];
  const [x, y, width, height] = level.box;
  const id = "mask" + masks++;
  const place = { x, y, width, height };
  const picture = svg("image", { ...place, href: "data:image/png;base64," + level.png, preserveAspectRatio: "none" });
  return [svg("mask", { id }, picture), svg("rect", { class: "floor", ...place, mask: `url(#${id})` })];
}

function bounds(list, margin) {
  const xs = list.map((p) => p[0]), zs = list.map((p) => p[2]);
  const x = Math.min(...xs) - margin, z = Math.min(...zs) - margin;
  return [x, z, Math.max(...xs) + margin - x, Math.max(...zs) + margin - z];
}

function startMark([x, , z], size) {
  return svg("circle", { class: "start", cx: x, cy: z, r: size });
}

function goalMark([x, , z], size) {
  const corners = [];
  for (let i = 0; i < 10; i++) {
    const radius = size * (i % 2 ? 0.62 : 1.5), angle = (Math.PI * i) / 5;
    corners.push(x + radius * Math.sin(angle) + "," + (z - radius * Math.cos(angle)));
  }
  return svg("polygon", { class: "goal", points: corners.join(" ") });
}

function bodyShape([x, , z], yaw, size) {
  return [[0, 1.7], [2.5, 1.3], [-2.5, 1.3]]
    .map(([turn, length]) => {
      const angle = (yaw * Math.PI) / 180 + turn;
      return x - size * length * Math.sin(angle) + "," + (z - size * length * Math.cos(angle));
    })
    .join(" ");
}

// A bar of 1, 2 or 5 metres in the lower left corner of a view.
function scaleBar([x, z, width, height], share = 0.032) {
  const long = [500, 200, 100].find((length) => length < width / 3) || 100;
  const left = x + width * 0.03, low = z + height * 0.97, size = Math.max(width / 1.4, height) * share;
  return [
    svg("line", { class: "scale", x1: left, x2: left + long, y1: low, y2: low }),
    svg("text", { x: left, y: low - size * 0.5, "font-size": size }, long / 100 + " m"),
  ];
}
