"""Table of what a StreamVLN trained from nothing reaches, round by round of DAgger: from the committed rows."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache

from tests.docs.findings import ROOT, filled, markdown
from vlnbench.evaluation.identity import TOLD_MARK
from vlnbench.evaluation.recorded import RecordedRun
from vlnbench.evaluation.stats import Estimate, estimate
from vlnbench.evaluation.summary import summarize
from vlnbench.leaderboard.committed import committed_runs, read_run

FOLDER = ROOT / "results" / "train_base_tiny"
PAGE = ROOT / "docs" / "findings" / "streamvln_tiny.md"
REFERENCES = "blind", "shortest-path", "streamvln-tiny"
METRICS = "SR", "SPL", "OS"
CHECKS = {"": "", "-gray": ", gray frames", "-other": ", told of another episode"}


def page() -> str:
    """The page of the small StreamVLN with its table as it should be."""
    return filled(PAGE, {"rounds": by_seed()})


def by_seed() -> str:
    """Markdown: the references, and every seed's rounds, each beside the one before."""
    lines = [["", f"`{name}`", "", *_metrics(_reference(name)), ""] for name in REFERENCES]
    for (seed, number, check), run in sorted(runs().items()):
        of = trainings()[str(seed)]
        read = sum(int(of[f"round{each}"]["windows"]) for each in range(number + 1))
        name = f"`round{number}`{CHECKS[check]}"
        before = runs().get((seed, number - 1, "")) if not check else None
        paired = _paired(run, before) if before else ""
        lines.append([str(seed), name, "" if check else f"{read:,}", *_metrics(run), paired])
    fifths = "SR, nearest fifth", "SR, farthest fifth"
    return markdown(["seed", "after", "windows", *METRICS, *fifths, "SR against the round before"], lines)


@cache
def runs() -> Mapping[tuple[int, int, str], RecordedRun]:
    """(seed, round, check) -> run: of each round, and with gray frames or with other instructions."""
    return {_parts(entry.name): run for run, entry in committed_runs(FOLDER, trajectories=False)}


@cache
def trainings() -> Mapping[str, Mapping[str, Mapping[str, float]]]:
    """Seed -> round -> windows, epochs and hours of both processes' processors, by its train_log.jsonl."""
    found: Mapping[str, Mapping[str, Mapping[str, float]]] = json.loads((FOLDER / "trainings.json").read_text())
    return found


def _parts(name: str) -> tuple[int, int, str]:
    found = re.fullmatch(r"base-(\d+)-round(\d+)(|-\w+)", name.removesuffix(TOLD_MARK))
    assert found is not None, name
    return int(found[1]), int(found[2]), found[3]


@cache
def _reference(name: str) -> RecordedRun:
    """A run of the same episodes, by a camera of the usual size."""
    run = read_run(ROOT / "results" / "runs" / f"houses-r2r-val-unseen-{name}", trajectories=False)[0]
    assert all(_episodes(run) == _episodes(each) for each in runs().values()), name
    return run


def _episodes(run: RecordedRun) -> dict[str, tuple[str, float]]:
    return {row.episode_id: (row.scene_id, row.scores["geodesic_start"]) for row in run.rows.values()}


def _metrics(run: RecordedRun) -> list[str]:
    """SR, SPL and OS, and SR of the fifths of episodes that start nearest and farthest: in percent, by scene."""
    metrics = summarize(run.rows.values(), list(run.rows), run.identity).metrics
    rows = sorted(run.rows.values(), key=lambda row: (row.scores["geodesic_start"], row.episode_id))
    fifth = len(rows) // 5
    found = [
        estimate([row.scores["success"] for row in part], [row.scene_id for row in part], "fraction")
        for part in (rows[:fifth], rows[-fifth:])
    ]
    return ["{:.1f} [{:.1f}, {:.1f}]".format(*_percent(each)) for each in (*map(metrics.get, METRICS), *found)]


def _paired(run: RecordedRun, before: RecordedRun) -> str:
    """Difference of SR in points, over the same episodes."""
    of, other = ({row.episode_id: row for row in each.rows.values()} for each in (run, before))
    assert of.keys() == other.keys()
    differences = [of[each].scores["success"] - other[each].scores["success"] for each in of]
    found = estimate(differences, [row.scene_id for row in of.values()], "difference")
    return "{:+.1f} [{:.1f}, {:.1f}]".format(*_percent(found))


def _percent(value: Estimate | None) -> tuple[float, float, float]:
    assert value is not None
    assert value.low is not None
    assert value.high is not None
    return 100 * value.mean, 100 * value.low, 100 * value.high
