"""Plots of a record: memory of training, time of turns, loss curves. Drawn where there is something to show."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from benchmarks.gpu_evidence.record import finished
from vlnbench.matrix.plots import COLOURS

PARTS = {
    "weights": ("weights",),
    "optimizer states": ("states",),
    "gradients": ("gradients",),
    "activations and logits": ("activations", "logits"),
    "ZeRO buffers, temporaries": ("buffers", "temporaries"),
}
CARDS = {"80 GB": 80, "141 GB": 141}
"""Cards as they are sold, in GB of 2^30 bytes."""
USABLE_GB = 0.985 * 2**30 / 1e9
DPI = 110


def draw(content: Mapping[str, Any], settings: Mapping[str, Mapping[str, Any]], folder: Path) -> dict[str, str]:
    """Write the plots and remove those that nothing is known for; returns their files by name."""
    figures = {"training": training(content, settings), "turns": turns(content), "small": small(content)}
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {}
    for name, figure in figures.items():
        path = folder / f"gpu_{name}.png"
        path.unlink(missing_ok=True)
        if figure is not None:
            with matplotlib.rc_context({"font.size": 9}):
                figure.savefig(path, dpi=DPI, metadata={"Software": None})
            drawn[name] = path.name
    return drawn


def training(content: Mapping[str, Any], settings: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Planned memory as bars of what holds it, with what the allocator keeps; measured as dots."""
    figure = Figure(figsize=(8.5, 1.4 + 0.3 * len(settings)), layout="constrained")
    axes = figure.add_subplot()
    names = list(settings)
    for row, name in enumerate(names):
        plan, left = settings[name], 0.0
        widths = {part: sum(plan["usage"][key] for key in keys) / 1e9 for part, keys in PARTS.items()}
        widths["context, fragmentation"] = (plan["context"] + plan["fragmentation"]) / 1e9
        for color, (part, width) in zip(COLOURS, widths.items(), strict=False):
            axes.barh(row, width, left=left, color=color, height=0.62, label=part if row == 0 else None)
            left += width
        kept = [[0], [plan["high"] / 1e9 - left]]
        label = "what the allocator keeps on a card with room" if row == 0 else None
        axes.errorbar(left, row, xerr=kept, color="black", capsize=3, lw=1, label=label)
    dots = [
        (names.index(name), case["measured"]["allocated"] / 1e9)
        for name, case in finished(content, "training")
        if name in names and "measured" in case
    ]
    if dots:
        rows, sizes = zip(*dots, strict=True)
        axes.plot(sizes, rows, "D", color="white", mec="black", ms=6, label="allocated, measured")
    for label, size in CARDS.items():
        axes.axvline(size * USABLE_GB, color="gray", ls="--", lw=1)
        axes.annotate(
            f" {label} card", (size * USABLE_GB, 1.0), xycoords=("data", "axes fraction"), va="bottom", ha="center"
        )
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("GB on the GPU (1e9 bytes)" + ("" if dots else ": planned, not measured"))
    axes.legend(loc=(0.63, 0.4), fontsize=8)  # beside the short bars
    return figure


def turns(content: Mapping[str, Any]) -> Figure | None:
    """Milliseconds per turn by episodes at once, a line per attention; without guesses and with right ones."""
    found = {name: [row for row in case["rows"] if "no_guess" in row] for name, case in finished(content, "turns")}
    if not any(found.values()):
        return None
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True)
    for axes, way, title in zip(panels, ("no_guess", "guess_right"), ("eight passes", "one pass"), strict=True):
        for color, (name, rows) in zip(COLOURS, found.items(), strict=False):
            points = [(row["episodes"], row[way]["ms_per_turn"]) for row in rows]
            axes.plot(*zip(*points, strict=True), "o-", color=color, label=name) if points else None
        axes.set_title(f"ms per turn, {title}", fontsize=9)
        axes.set_xlabel("episodes at once")
        axes.set_xticks(sorted({row["episodes"] for rows in found.values() for row in rows}))
        axes.set_ylim(bottom=0)
    panels[0].legend(fontsize=8)
    return figure


def small(content: Mapping[str, Any]) -> Figure | None:
    """Loss by step, a line per arm."""
    arms = {name: arm for _, case in finished(content, "small") for name, arm in case.get("arms", {}).items()}
    if not arms:
        return None
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    axes = figure.add_subplot()
    for color, (name, arm) in zip(COLOURS, arms.items(), strict=False):
        style = "--" if "another" in name else "-"
        axes.plot(range(1, len(arm["losses"]) + 1), arm["losses"], style, color=color, lw=1.2, label=name)
    axes.set_xlabel("optimizer step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("loss")
    axes.legend(fontsize=8)
    return figure
