"""Draws the pictures of the published rows with matplotlib, which the rest of the leaderboard does without."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from vlnbench.errors import UsageError
from vlnbench.leaderboard.points import SPLIT, Picture, Point, records
from vlnbench.leaderboard.published import spoken
from vlnbench.util.durable.files import write_bytes

LOOKS: dict[str | None, tuple[str, str]] = {
    "RGB": ("#0072b2", "o"),
    "stereo RGB": ("#56b4e9", "s"),
    "multi-view RGB": ("#d55e00", "D"),
    "RGB-D": ("#cc79a7", "^"),
    "panoramic RGB-D": ("#009e73", "v"),
    None: ("#7f7f7f", "X"),
}
"""Color and marker by class of sensors: colors that color-blind readers tell apart (Okabe and Ito)."""
GAP = 3.5
"""SR in percent that two names need between them."""


def write_pictures(made: Sequence[Picture], folder: Path) -> None:
    """Write each as SVG with its digest inside. Raises UsageError if the folder cannot be written."""
    try:
        for picture in made:
            write_bytes(folder / picture.file, svg(picture))
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written ({error.strerror}); choose another --out") from error


def svg(picture: Picture) -> bytes:
    """The picture as a file; the same one for the same points and version of matplotlib."""
    costs = picture.file.endswith("hours.svg")
    with matplotlib.rc_context({"svg.hashsalt": picture.file, "svg.fonttype": "none", "font.size": 8}):
        figure = Figure(figsize=(5.2 * len(picture.panels), 4.4), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots(1, len(picture.panels), squeeze=False, sharey=True)[0]
        for axis, (dataset, points) in zip(axes, picture.panels.items(), strict=True):
            _scatter(axis, points)
            axis.set_title(f"{dataset} {SPLIT} (protocols{' and languages' * bool(spoken(dataset, ()))} differ)")
            axis.grid(color="#e5e5e5", linewidth=0.6)
            axis.set_axisbelow(True)
            (_costs if costs else _time)(axis, points)
        axes[0].set_ylabel("SR (%), as published")
        _legend(figure, [point for points in picture.panels.values() for point in points])
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Description": f"points {picture.digest}"})
    return buffer.getvalue()


def _scatter(axis: Axes, points: Sequence[Point]) -> None:
    for point in points:
        color, marker = LOOKS[point.sensors]
        face = "none" if point.apart else color
        axis.plot(point.x, point.sr, marker, markersize=5, markerfacecolor=face, markeredgecolor=color, alpha=0.85)


def _time(axis: Axes, points: Sequence[Point]) -> None:
    """The line of the best so far; a name where it rises by enough."""
    best = records(points)
    axis.step([p.x for p in best], [p.sr for p in best], where="post", color="#555555", linewidth=1, zorder=1)
    last = -GAP
    for point in best:
        if point.sr - last >= GAP:
            _name(axis, point, (-5, 2), "right")
            last = point.sr
    axis.set_xlim(points[0].x - 1.2, points[-1].x + 0.3)
    axis.set_ylim(0, 100)
    axis.set_xlabel("month of the arXiv id")


def _costs(axis: Axes, points: Sequence[Point]) -> None:
    axis.set_xscale("log")
    for point in points:
        _name(axis, point, (5, -2), "left")
    axis.set_xlim(points[0].x / 1.3, points[-1].x * 3)
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel("GPU-hours of training, on cards of several kinds")


def _name(axis: Axes, point: Point, offset: tuple[float, float], side: Literal["left", "right"]) -> None:
    label = axis.annotate(
        point.name.partition(",")[0],
        (point.x, point.sr),
        offset,
        textcoords="offset points",
        fontsize=6.5,
        ha=side,
    )
    label.set_parse_math(False)


def _legend(figure: Figure, points: Sequence[Point]) -> None:
    used = [sensors for sensors in LOOKS if any(point.sensors == sensors for point in points)]
    handles = [
        Line2D([], [], linestyle="", color=LOOKS[each][0], marker=LOOKS[each][1], label=each or "sensors unknown")
        for each in used
    ]
    if any(point.apart for point in points):
        label = "hollow: privileged, or a part of the split"
        handles.append(Line2D([], [], linestyle="", color="#555555", marker="o", fillstyle="none", label=label))
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
