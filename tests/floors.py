"""The house: on which floor every room lies. Imports run downwards (`tests/test_imports.py`).

A room is a folder or a module beside it. Folders of many rooms have floors of their own; what a family of `agents`
is called does not matter, so all that are not listed lie together on the floor of `OTHERS`.
"""

from __future__ import annotations

from pathlib import Path

OTHERS = "every other"

FLOORS: dict[str, tuple[tuple[str, ...], ...]] = {
    "vlnbench": (
        ("defaults", "errors", "interfaces", "version"),
        ("traits",),
        ("util",),
        ("data",),
        ("envs", "rollout"),
        ("evaluation", "serving"),
        ("importing", "leaderboard", "report", "training"),
        ("agents", "conformance", "gymnasium_env", "matrix"),
        ("views",),
        ("api", "cli"),
    ),
    "vlnbench/rollout": (
        ("agent_options", "answers", "said"),
        ("episode",),
        ("agent_names", "env_names", "simulators"),
        ("agents",),
        ("executor",),
        ("engine", "inline"),
        ("processes",),
        ("replica_main",),
        ("replicas",),
        ("ray",),
        ("start",),
    ),
    "vlnbench/evaluation": (
        ("choice", "identity", "metrics", "stats", "video"),
        ("records",),
        ("answers", "columns"),
        ("costs", "summary"),
        ("status", "tally", "until"),
        ("evaluate", "options"),
        ("recorded", "session"),
        ("rescore",),
    ),
    "vlnbench/matrix": (
        ("execution", "fields"),
        ("hardware", "preparation", "references", "statistics"),
        ("spec",),
        ("needs", "plots", "work"),
        ("rows",),
        ("sheet",),
        ("forecast", "parts", "sizes", "table"),
        ("runner",),
    ),
    "agents": (("common", "remote_options"), ("base",), (OTHERS,), ("table",)),
}
"""By folder, from the ground up."""

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "architecture.md"
BEGIN, END = "<!-- floors: made by `python -m tests.regenerate` -->\n", "<!-- end of floors -->\n"


def floor(folder: str, room: str) -> int | None:
    """Floor of a room of a folder; None where nothing is said about it."""
    found = {name: number for number, names in enumerate(FLOORS[folder]) for name in names}
    return found.get(room, found.get(OTHERS))


def draw() -> str:
    """The floors as Markdown, from the ground up."""
    lines = []
    for folder, floors in FLOORS.items():
        lines += [f"`{folder}/`, from the ground up:", ""]
        names = [", ".join(name if name == OTHERS else f"`{name}`" for name in names) for names in floors]
        lines += [*(f"{number}. {text}" for number, text in enumerate(names, start=1)), ""]
    return "\n".join(lines)


def page(text: str) -> str:
    """The page with the floors as they should be."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + draw() + END + after
