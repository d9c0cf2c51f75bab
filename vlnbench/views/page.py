"""The page of a view: its data as JSON, its parts made by its script, everything inside one file."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from vlnbench.report import page as report
from vlnbench.version import __version__
from vlnbench.views.find import Found
from vlnbench.views.others import board_json, matrix_json, read_all, training_json
from vlnbench.views.runs import NamedRun, pairs, read_runs, run_json
from vlnbench.views.together import together

SCRIPTS = ("table.js", "plots.js", "compare.js", "view.js")

Json = dict[str, Any]


def payload(found: Found, page: Path | None, data_root: Path, env: str | None) -> tuple[Json, list[NamedRun]]:
    """The data of the page, and the runs in their order. page: as of `run_json`. env: as of `together`."""
    shown, problems = read_runs(found.runs)
    trainings, broken = read_all(found.trainings, training_json)
    matrices, unread = read_all(found.matrices, matrix_json)
    boards, lost = read_all(found.results, board_json)
    episodes, notes = together(shown, data_root, env)
    groups: dict[tuple[str, str, str], list[int]] = {}
    for i, each in enumerate(shown):
        groups.setdefault(each.group, []).append(i)
    return {
        **episodes,
        "walked": episodes["groups"],
        "groups": [
            {"title": f"{key[0]} {key[2]}", "protocol": key[1], "runs": runs} for key, runs in groups.items()
        ],
        "runs": [run_json(each, page, i) for i, each in enumerate(shown)],
        "pairs": pairs(shown),
        "trainings": trainings,
        "matrices": matrices,
        "boards": [table for tables in boards for table in tables],
        "notes": [*problems, *broken, *unread, *lost, *notes],
        "version": __version__,
    }, shown


def render(data: Json, live: bool = False) -> str:
    """The page as text; live: it asks the server that it came from for newer data."""
    style = report.asset("report.css") + report.asset("view.css", __package__)
    script = "".join([report.asset("map.js"), *(report.asset(name, __package__) for name in SCRIPTS)])
    content = report.Content("vlnbench view", _body(_lead(data), live), data)
    return report.document(content, style, script, "'self'" if live else "'none'")


def _lead(data: Json) -> Sequence[str]:
    counts = {
        "run": len(data["runs"]),
        "training": len(data["trainings"]),
        "matrix": len(data["matrices"]),
        "leaderboard table": len(data["boards"]),
    }
    plural = {"matrix": "matrices"}
    return [f"{n} {name if n == 1 else plural.get(name, name + 's')}" for name, n in counts.items() if n]


def _body(lead: Sequence[str], live: bool) -> str:
    state = '<span id="live" class="mark" role="status">live</span>' if live else ""
    return f"""<a class="skip" href="#main">Skip to the tables</a>
<header>
<p class="kicker">vlnbench view {state}</p>
<h1>Runs side by side</h1>
<p class="lead">{escape(" · ".join(lead))}</p>
<nav aria-label="Sections" id="sections"></nav>
</header>
<main id="main"{" data-live" if live else ""}>
<noscript><p class="notice">The tables and plots of this page need JavaScript.</p></noscript>
</main>"""
