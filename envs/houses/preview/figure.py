"""The figure of a house preview, drawn with matplotlib."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke

from envs.houses.plan.furnish import Item
from envs.houses.plan.house import House
from envs.houses.plan.layout import Rect
from envs.houses.preview.shots import DrawnEpisode, Shot
from envs.houses.shapes.textures import COLORS

_WIDTH_IN = 17.0
_PLAN_IN = 8.2
_COLUMNS = 8
_APART_M = 0.06
_FRAME_IN = 1.78
_LINE_IN = 0.21
_WRAP = 205
_PATHS = ("#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#e377c2", "#17becf")
_HALO = [withStroke(linewidth=2.5, foreground="white")]


def draw(house: House, walks: Sequence[DrawnEpisode], along: Sequence[Shot], rooms: Sequence[Shot]) -> Figure:
    """Plans with objects and paths, a key of the objects, the instructions, and two contact sheets."""
    lines = [textwrap.wrap(f"{walk.episode_id}: {walk.text}", _WRAP) for walk in walks]
    text_in = _LINE_IN * sum(len(wrapped) + 0.4 for wrapped in lines)
    frame_rows = -(-len(along) // _COLUMNS) - (-len(rooms) // _COLUMNS)
    height = _PLAN_IN + text_in + frame_rows * _FRAME_IN + 0.3
    figure = Figure(figsize=(_WIDTH_IN, height), facecolor="white")
    _plans(figure, house, walks, (1.0 - _PLAN_IN / height, _PLAN_IN / height))
    top = 1.0 - _PLAN_IN / height
    for walk_lines, color in zip(lines, _PATHS, strict=False):
        figure.text(0.02, top, "\n".join(walk_lines), color=color, fontsize=9.5, va="top", linespacing=1.25)
        top -= _LINE_IN * (len(walk_lines) + 0.4) / height
    for shots in (along, rooms):
        _sheet(figure, shots, top)
        top -= -(-len(shots) // _COLUMNS) * _FRAME_IN / height
    return figure


def _plans(figure: Figure, house: House, walks: Sequence[DrawnEpisode], span: tuple[float, float]) -> None:
    """One plan for each storey, side by side at one scale, and the key to their numbers."""
    bottom, height = span
    key = [item for item in house.items if item.landmark or item.distractor]
    storeys, bounds = house.plan.n_storeys, house.plan.bounds.grown(0.4)
    width = 0.82 / storeys
    for storey in range(storeys):
        axes = figure.add_axes((0.01 + storey * width, bottom + 0.01, width - 0.01, height - 0.03))
        _plan(axes, house, storey, key)
        for number, walk in enumerate(walks):
            _path(axes, house, walk, storey, number)
        _titles(axes, house, walks, storey)
        axes.set(xlim=(bounds.x0, bounds.x1), ylim=(bounds.z1, bounds.z0), aspect="equal")
        axes.set_axis_off()
        floor = ("ground floor", "upper floor")[storey]
        axes.set_title(f"{house.name}, {floor}" if storeys > 1 else house.name, fontsize=11)
    axes = figure.add_axes((0.83, bottom + 0.01, 0.17, height - 0.03))
    axes.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0))
    axes.set_axis_off()
    step = min(0.028, 0.97 / max(1, len(key)))
    for i, item in enumerate(key):
        y = 0.99 - step * i
        _marker(axes, (0.05, y), i + 1, item)
        label = f"{item.name}, {house.title(item.room)}" + (" (distractor)" if item.distractor else "")
        axes.text(0.1, y, label, fontsize=7.5, va="center")


def _plan(axes: Axes, house: House, storey: int, key: Sequence[Item]) -> None:
    plan = house.plan
    for room, rect in enumerate(plan.rooms):
        if plan.storeys[room] != storey:
            continue
        floor = np.array(house.looks[room].kind.floor[1]) / 255.0
        _box(axes, rect, facecolor=tuple(0.45 * floor + 0.55), edgecolor="#303030", linewidth=3.0, zorder=1)
        for item in (i for i in house.items if i.room == room and i not in key):
            _furniture(axes, item)
    for door in (d for d in plan.doors if d.storey == storey):
        (x, z), half = door.center, door.width / 2
        dx, dz = (half, 0.0) if door.along == "x" else (0.0, half)
        axes.plot(
            [x - dx, x + dx], [z - dz, z + dz], color="white", linewidth=4.0, solid_capstyle="butt", zorder=3
        )
    for ramp in plan.ramps:
        _box(axes, ramp.rect, facecolor="#d9c7a5", edgecolor="#7a5c2e", hatch="...", linewidth=1.2, zorder=2)
        (bx, _, bz), (tx, _, tz) = ramp.bottom, ramp.top
        arrow: dict[str, Any] = {"arrowstyle": "-|>", "color": "#7a5c2e", "linewidth": 2.0}
        axes.annotate("", (tx, tz), (bx, bz), arrowprops=arrow, zorder=3)
        x, z = ramp.rect.center
        axes.text(
            x, z, "ramp up", fontsize=8, color="#5a3c0e", path_effects=_HALO, zorder=6, va="center", ha="center"
        )
    for number, item in enumerate(key, start=1):
        if item.storey == storey:
            _marker(axes, (item.x, item.z), number, item)


def _titles(axes: Axes, house: House, walks: Sequence[DrawnEpisode], storey: int) -> None:
    for room in range(len(house.plan.rooms)):
        if house.plan.storeys[room] == storey:
            x, z = _title_place(house, room, walks)
            style: dict[str, Any] = {"fontsize": 9.5, "weight": "bold", "ha": "center", "va": "center"}
            axes.text(x, z, house.title(room), path_effects=_HALO, zorder=10, **style)


def _title_place(house: House, room: int, walks: Sequence[DrawnEpisode]) -> tuple[float, float]:
    """Where a room's title covers the least: off objects, ramps, starts and goals."""
    rect, floor = house.plan.rooms[room], house.plan.floor_m(room)
    taken = [i.footprint for i in house.items if i.room == room]
    taken += [ramp.rect for ramp in house.plan.ramps_of(room) for _ in range(2)]
    for x, y, z in (end for walk in walks for end in (walk.locations[0], walk.goal)):
        taken += [Rect(x - 0.25, z - 0.25, x + 0.25, z + 0.25)] if abs(y - floor) < 1.0 else []
    shares = (0.5, 0.35, 0.65, 0.2, 0.8, 0.1, 0.9)
    places = [(rect.x0 + fx * rect.width, rect.z0 + fz * rect.depth) for fz in shares for fx in shares[:3]]

    def cover(place: tuple[float, float]) -> float:
        half = 0.07 * len(house.title(room)) + 0.1
        label = Rect(place[0] - half, place[1] - 0.2, place[0] + half, place[1] + 0.2)
        outside = label.x0 < rect.x0 or label.x1 > rect.x1
        return sum(label.overlaps(other) for other in taken) + 0.5 * outside

    return min(places, key=cover)


def _furniture(axes: Axes, item: Item) -> None:
    color = np.array(COLORS[item.color]) / 255.0
    rug = item.noun == "rug"
    _box(
        axes,
        item.footprint,
        facecolor=tuple(color),
        alpha=0.3 if rug else 0.55,
        edgecolor="#666666",
        zorder=1.5 if rug else 2,
    )
    width, depth = item.footprint.width, item.footprint.depth
    axes.text(
        item.x,
        item.z,
        item.noun.replace(" ", "\n") if min(width, depth) > 0.5 else item.noun,
        fontsize=5.5,
        ha="center",
        va="center",
        rotation=90 if depth > 1.4 * width else 0,
        color="#202020",
        zorder=4,
        path_effects=[withStroke(linewidth=1.2, foreground="white", alpha=0.8)],
        linespacing=0.9,
    )


def _marker(axes: Axes, at: tuple[float, float], number: int, item: Item) -> None:
    color = np.array(COLORS[item.color]) / 255.0
    dark = float(color @ (0.3, 0.6, 0.1)) < 0.55
    shape = "s" if item.distractor else "o"
    axes.plot(
        *at, shape, markersize=12, color=tuple(color), markeredgecolor="black", markeredgewidth=0.8, zorder=5
    )
    ink = "white" if dark else "black"
    axes.text(
        *at, str(number), fontsize=6.5, ha="center", va="center_baseline", color=ink, zorder=6, weight="bold"
    )


def _path(axes: Axes, house: House, walk: DrawnEpisode, storey: int, number: int) -> None:
    """The part of a walk on one storey; a ramp belongs half to either. Walks are drawn a little apart."""
    plan, color, apart = house.plan, _PATHS[number], _APART_M * number
    on_storey = [plan.storeys[plan.room_at(x, z, y)] == storey for x, y, z in walk.locations]
    x = np.where(on_storey, walk.locations[:, 0] + apart, np.nan)
    z = np.where(on_storey, walk.locations[:, 2] + apart, np.nan)
    axes.plot(x, z, color=color, linewidth=2.2, alpha=0.85, zorder=7, path_effects=_HALO)
    if on_storey[0]:
        dx, dz = -0.7 * math.sin(walk.yaw), -0.7 * math.cos(walk.yaw)
        axes.plot(x[0], z[0], "o", color=color, markersize=9, markeredgecolor="white", zorder=9)
        arrow: dict[str, Any] = {"arrowstyle": "-|>", "color": color, "linewidth": 2.2}
        axes.annotate("", (x[0] + dx, z[0] + dz), (x[0], z[0]), arrowprops=arrow, zorder=9)
    gx, gy, gz = walk.goal
    if plan.storeys[plan.room_at(gx, gz, gy)] == storey:
        axes.plot(gx, gz, "*", color=color, markersize=17, markeredgecolor="white", zorder=9)


def _sheet(figure: Figure, shots: Sequence[Shot], top: float) -> None:
    height = float(figure.get_figheight())
    width, row = 0.98 / _COLUMNS, _FRAME_IN / height
    for i, shot in enumerate(shots):
        left, under = 0.01 + (i % _COLUMNS) * width, top - (i // _COLUMNS + 1) * row
        axes = figure.add_axes((left + 0.002, under, width - 0.004, row * 0.88))
        axes.imshow(shot.rgb, aspect="equal", interpolation="antialiased")
        axes.set_title(shot.title, fontsize=8, pad=2)
        axes.set_axis_off()


def _box(axes: Axes, rect: Rect, **style: Any) -> None:
    axes.add_patch(Rectangle((rect.x0, rect.z0), rect.width, rect.depth, **style))
