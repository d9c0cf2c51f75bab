"""Figures in documents are those of the committed runs and matrices."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from tests.docs.findings import AUGMENTED, DATA, LOOKS, SHIFT, SPLITS, contrasts, settings
from tests.docs.pages import ROOT, document
from vlnbench.evaluation.summary import format_summary, summarize
from vlnbench.interfaces import Action
from vlnbench.leaderboard.committed import read_run

AGENTS = ("shortest-path", "cma-tiny", "seq2seq-tiny", "streamvln-tiny", "read-and-look", "blind", "random")


@cache
def summary(agent: str, split: str = "val-unseen") -> Any:
    run, _ = read_run(ROOT / "results" / "runs" / f"houses-r2r-{split}-{agent}", trajectories=False)
    return summarize(run.rows.values(), list(run.rows), run.identity)


def shown(agent: str, metric: str, *, se: bool = False, split: str = "val-unseen") -> str:
    value = summary(agent, split).metrics[metric]
    middle = f" ± {100 * value.se:.1f}" if se else ""
    return f"{100 * value.mean:.1f}{middle} [{100 * value.low:.1f}, {100 * value.high:.1f}]"


def test_the_first_result_is_the_committed_run() -> None:
    assert format_summary(summary("streamvln-tiny")).strip() in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("agent", AGENTS)
def test_results_of_agents_are_those_of_committed_runs(agent: str) -> None:
    houses = document("houses.md").read_text(encoding="utf-8")
    (row,) = (line for line in houses.splitlines() if line.startswith(f"| `{agent}` |"))
    assert shown(agent, "SR", se=True) in row.split("|")[5]


@pytest.mark.parametrize(
    ("agent", "split", "name"),
    [
        ("cma-tiny", "val_unseen", "augmentation.md"),
        ("cma-tiny", "val_seen", "augmentation.md"),
        ("seq2seq-tiny", "val_unseen", "augmentation.md"),
        ("streamvln-tiny", "val_unseen", "streamvln_tiny.md"),
        ("streamvln-tiny", "val_seen", "streamvln_tiny.md"),
    ],
)
def test_the_page_on_training_shows_the_committed_runs_of_what_it_trains(
    agent: str, split: str, name: str
) -> None:
    page = document(name).read_text(encoding="utf-8")
    houses = document("houses.md").read_text(encoding="utf-8")
    (table,) = re.findall(rf"^\| `{agent}`, mean .*\n(?:\|.*\n)+", page, re.MULTILINE)
    folder = split.replace("_", "-")
    values = " | ".join(shown(agent, metric, se=True, split=folder) for metric in ("SR", "SPL", "OS"))
    assert re.search(rf"^\| {split} \| 900 in \d+ houses \| {re.escape(values)} \|$", table, re.MULTILINE)
    assert values.rpartition(" | ")[0] in houses


def taken_back(actions: Sequence[int]) -> list[bool]:
    """For every turn: whether the next turn among the eight actions after it goes the other way."""
    turns = (Action.TURN_LEFT, Action.TURN_RIGHT)
    following = [[each for each in actions[i + 1 : i + 9] if each in turns][:1] for i in range(len(actions))]
    return [after not in ([], [each]) for each, after in zip(actions, following, strict=True) if each in turns]


def test_a_turn_is_taken_back_by_hand() -> None:
    forward, left, right = Action.MOVE_FORWARD, Action.TURN_LEFT, Action.TURN_RIGHT
    assert taken_back([left, left, right, *[forward] * 7, right, left]) == [False, True, False, True, False]
    assert taken_back([left, *[forward] * 8, right]) == [False, False]


@pytest.mark.parametrize("agent", ["shortest-path", "cma-tiny", "streamvln-tiny"])
def test_what_walks_are_like_is_as_the_committed_runs_have_it(agent: str) -> None:
    path = ROOT / "results" / "runs" / f"houses-r2r-val-unseen-{agent}" / "trajectories.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        walks = [json.loads(line)["actions"] for line in file]
    ended = [walk for walk in walks if len(walk) < 500]
    back = [each for walk in ended for each in taken_back(walk)]
    steps = sum(map(len, ended))
    row = f"{steps / len(ended):.0f} | {100 * len(back) / steps:.0f} | {100 * sum(back) / len(back):.0f}"
    page = document("streamvln_tiny.md").read_text(encoding="utf-8")
    assert f"| `{agent}` | {row} | {len(walks) - len(ended)} of {len(walks)} |" in page


def without_intervals(table: str) -> str:
    """The table over seeds as pages show it, whose columns hold two metrics."""
    return re.sub(r" \[[\d.]+, [\d.]+\]", "", table)


def test_cells_of_augmentation_are_those_of_the_matrix() -> None:
    """SR and SPL of every cell of CMA on both splits, as the matrix's own table over seeds has them."""
    table = without_intervals((ROOT / "results" / "vlnce_augmentation" / "matrix.md").read_text(encoding="utf-8"))
    page = document("augmentation.md").read_text(encoding="utf-8")
    cells = re.findall(
        r"^\| (CMA, .+?) +\| 5 of 5 +\| (.+?) +\| (.+?) +\| (.+?) +\| (.+?) +\|$", table, re.MULTILINE
    )
    assert len(cells) == 6
    for name, sr_seen, spl_seen, sr, spl in cells:
        assert f"| {name} | {sr_seen} / {spl_seen} | {sr} / {spl} |" in page


PUBLISHED_SPL = {
    "CMA": {"": 22, "PM": 19, "DAgger": 25, "Aug": 19, "DAgger + Aug": 26, "PM + DAgger + Aug": 30},
    "Seq2Seq": {"": 18, "PM": 15, "DAgger": 23, "Aug": 17, "PM + DAgger + Aug": 22},
}
"""Table 2 of arXiv 2004.02857, val_unseen, in percent."""


def test_effects_of_augmentation_are_those_of_the_matrix() -> None:
    """Every row of the page: what a way of training changes, as effects.csv has it, and what that is called."""
    effects = {}
    with (ROOT / "results" / "vlnce_augmentation" / "effects.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if (row["metric"], row["split"], row["axis"]) == ("SPL", "val_unseen", "sets"):
                effects[row["value"], row["in"]] = row
    page = document("augmentation.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (CMA|Seq2Seq): (.+) \| (\S+) \| (.+) \| (.+) \| (.+) \|$", page, re.MULTILINE)
    assert len(rows) == 9
    for network, value, published, measured, p, verdict in rows:
        assert int(published) == PUBLISHED_SPL[network][value] - PUBLISHED_SPL[network][""]
        effect = effects[value, network]
        mean, low, high = (100 * float(effect[name]) for name in ("difference", "low", "high"))
        corrected = float(effect["p_holm"])
        assert measured == f"{mean:+.1f} [{low:.1f}, {high:.1f}]"
        assert p == (f"{corrected:.3f}" if corrected >= 0.0005 else "< 0.001")
        same = "same sign" if (mean > 0) == (float(published) > 0) else "other sign"
        assert verdict == (same if corrected < 0.05 else "cannot tell")


def test_values_in_the_text_on_parts_and_data_are_those_of_the_matrices() -> None:
    """Every value with an interval that a sentence says: of a setting, a reference or an effect, whose interval
    is its own or holds together with the others of its matrix."""
    number = r"([+-]?\d+\.\d)"
    interval = rf"\[{number}, {number}\]"
    found = set()
    for folder, splits in ((SHIFT, LOOKS), (AUGMENTED, LOOKS), (DATA, SPLITS)):
        tables = settings(folder, splits) + contrasts(folder, splits)
        for value, *ends in re.findall(rf"{number}(?: ± \d+\.\d)? {interval}(?: \| {interval})?", tables):
            found |= {(value, *ends[:2]), (value, *ends[2:])}
    prose = re.sub(
        r"^\|.*$", "", document("which-parts-which-data.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    said = re.findall(rf"{number} {interval}", " ".join(prose.split()))
    assert len(said) > 15
    assert set(said) <= found, sorted(set(said) - found)


def test_what_is_said_of_walls_and_cards_is_measured_and_planned() -> None:
    """How many of 900 episodes end stuck, and the figure of planned memory beside every choice of parts."""
    page = document("which-parts-which-data.md").read_text(encoding="utf-8")
    rows = json.loads((ROOT / "results" / "tunable_parts_x_data" / "matrix.json").read_text())["rows"]

    def stuck(*parts: str, sets: Sequence[str]) -> str:
        found = [
            row["results"]["val_unseen"]["failures"]["stuck"]
            for row in rows
            if row["labels"]["tunable_parts"] in parts
            and row["labels"]["sets"] in sets
            and row["status"] == "done"
        ]
        return f"{min(found)} to {max(found)}"

    everything, frozen = "vision + projector + language", ("vision + projector", "projector", "vision")
    learns = (everything, "projector + language", "vision + language", "language", "projector + LoRA")
    flat = " ".join(page.split())
    assert f"{stuck(everything, sets=['R2R'])} end stuck after R2R alone" in flat
    assert f"and {stuck(everything, sets=['R2R + DAgger'])} after it" in flat
    rules = stuck(everything, sets=["R2R + DAgger, StreamVLN's rules"])
    assert f"{rules} stuck), so that" in flat
    dagger = ["R2R + DAgger", "R2R + EnvDrop + DAgger"]
    assert f"{stuck(*learns, sets=dagger)} of 900 are stuck where the language model" in flat
    assert f"trained, {stuck(*frozen, sets=dagger)} where both are frozen" in flat
    memory = document("planned_memory.md").read_text(encoding="utf-8")
    memory = memory[memory.index("## StreamVLN") : memory.index("## NaVILA")]
    planned = dict(
        re.findall(r"^\| (\S[^|]*?)(?: of rank 16)? \| [\d,]+ \| [\d.]+ \| [\d.]+ \| ([\d.]+) \|", memory, re.M)
    )
    shown = re.findall(r"^\| ([^|]+?), R2R[^|]* \| \d \|.*\| ([\d.]+) \|$", page, re.M)
    assert len(shown) == 15
    assert all(planned[parts] == gb for parts, gb in shown)
