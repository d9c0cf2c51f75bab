"""Verdicts of the ledger: both runs walk the same episodes, so how runs differ decides, and not how scenes do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from agents.scripted import StopAgent
from tests.evaluation.test_evaluate import plan
from tests.fakes import PlaneEnv
from tests.leaderboard.test_board import RESULTS, as_benchmark
from vlnbench.cli import main
from vlnbench.data.benchmarks import BENCHMARKS
from vlnbench.errors import UsageError
from vlnbench.evaluation.evaluate import evaluate
from vlnbench.evaluation.records import ROWS, read_rows
from vlnbench.leaderboard.board import load
from vlnbench.leaderboard.committed import committed_runs
from vlnbench.leaderboard.reproduction import (
    Finding,
    make_ledger,
    not_measured,
    paired_tolerance,
    render_ledger,
    spread_tolerance,
)
from vlnbench.rollout.inline import Inline

CLAIM = "streamvln-v1-3-r2r-val-unseen"
"""Publishes SR 56.4, SPL 50.2, OS 63.6, NE 4.90."""

SCENES = [18, 39, 102, 132, 141, 159, 177, 252, 255, 264, 300]
"""Episodes in the 11 scenes of R2R-CE val_unseen."""


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    folder.mkdir()
    shutil.copy(RESULTS / "published.json", folder)
    return folder


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Makes a run folder of all episodes of val_unseen; `successes` of them, in this order, succeed."""

    def made(name: str, successes: Sequence[float], reproduces: str | None = None, *, repeats: int = 1) -> Path:
        folder = tmp_path / name
        evaluate(plan("stop", repeats=repeats), Inline(StopAgent(), PlaneEnv()), folder)
        row = asdict(read_rows(folder)[0])
        scenes = [scene for scene, size in enumerate(SCENES) for _ in range(size)][: len(successes)]
        lines = []
        for i, (scene, success) in enumerate(zip(scenes, successes, strict=True)):
            for repeat in range(repeats):
                place = {"episode_id": str(i), "scene_id": str(scene), "trajectory_id": str(i), "repeat": repeat}
                scores = {
                    **row["scores"],
                    "success": float(success),
                    "spl": 0.8 * success,
                    "distance_to_goal": 5.0,
                }
                lines.append(json.dumps({**row, **place, "benchmark": "r2r-ce", "scores": scores}) + "\n")
        (folder / ROWS).write_text("".join(lines))
        (folder / "entry.json").write_text(json.dumps({"name": name, "reproduces": reproduces}))
        fingerprint, n = BENCHMARKS["r2r-ce"].fingerprint, len(successes)
        data = {"dataset_version": "v1-3", "episodes": n, "split_size": n, "repeats": repeats}
        as_benchmark(folder, benchmark="r2r-ce", fingerprint=fingerprint, **data)
        return folder

    return made


def findings(results: Path, *runs: Path) -> dict[str | None, Finding]:
    """What the ledger says of the first of the runs, by metric."""
    found = make_ledger(*load(results, runs))
    return {finding.metric: finding for finding in found if finding.run == runs[0].name}


def by_scene(points: float) -> list[float]:
    """Successes of 1,839 episodes: 56.4 % and so many points, 15 more in every other scene, 15 less elsewhere."""
    shares = [0.564 + points / 100 + 0.15 * (-1) ** scene for scene in range(len(SCENES))]
    hits = [np.arange(size) < round(share * size) for share, size in zip(shares, SCENES, strict=True)]
    successes = np.concatenate(hits).astype(float)
    surplus = int(successes.sum()) - round(1839 * (0.564 + points / 100))
    successes[np.flatnonzero(successes == float(surplus > 0))[: abs(surplus)]] = float(surplus < 0)
    return list(successes)


@pytest.mark.parametrize(
    ("points", "verdict"),
    [(-6.0, "below"), (-3.3, "below"), (-3.1, "within tolerance"), (3.1, "within tolerance"), (6.0, "above")],
)
def test_six_points_off_is_no_reproduction(
    results: Path, write: Callable[..., Path], points: float, verdict: str
) -> None:
    """1.96 sqrt((0.504 * 0.496 + 0.564 * 0.436) / 1839) = 3.22 points for a run 6 points below."""
    found = findings(results, write("ours", by_scene(points), CLAIM))["SR"]
    assert found.mean == pytest.approx(56.4 + points, abs=0.05)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= 56.4 <= found.high, "over other scenes, it could be either"
    assert (found.verdict, found.rule, found.value) == (verdict, "spread of outcomes", 56.4)
    assert found.tolerance == pytest.approx(3.2, abs=0.05)


def test_every_metric_has_the_tolerance_of_its_own_spread(results: Path, write: Callable[..., Path]) -> None:
    """SPL is 0.8 or 0, its variance 0.64 times that of SR; NE is 5 m everywhere, so 0.1 m off is off."""
    found = findings(results, write("ours", by_scene(0.0), CLAIM))
    assert list(found) == ["SR", "SPL", "OS", "NE"]
    own, half = 0.564 * 0.436, 1.959964 * (1 / 1839) ** 0.5
    assert found["SPL"].tolerance == pytest.approx(100 * half * (2 * 0.64 * own) ** 0.5, rel=1e-3)
    assert found["SPL"].mean == pytest.approx(45.1, abs=0.1)
    assert found["SPL"].verdict == "below"
    assert (found["NE"].tolerance, found["NE"].verdict, found["NE"].value) == (0.0, "above", 4.9)


@pytest.mark.slow
def test_two_runs_are_paired_by_episode(results: Path, write: Callable[..., Path]) -> None:
    """100 of 200 and 106 of 200 successes. Where 12 episodes differ, 9 gained and 3 lost, the tolerance is
    1.96 sqrt(12) / 200 = 3.39 points for 3 points; where 6 differ, all gained, 1.96 sqrt(6) / 200 = 2.40."""
    first = [1.0] * 100 + [0.0] * 100
    many = [0.0] * 3 + [1.0] * 106 + [0.0] * 91
    few = [1.0] * 106 + [0.0] * 94
    folder = write("first", first)
    assert main(["leaderboard", str(folder), "--results", str(results), "--add", "--name", "first"]) == 0
    [(committed, _)] = committed_runs(results)
    claim = f"runs/{committed.folder.name}"
    for name, successes, tolerance, verdict in (
        ("a", many, 3.3948, "within tolerance"),
        ("b", few, 2.4005, "above"),
    ):
        found = findings(results, write(name, successes, claim))
        (success, spl, error) = (found[label] for label in ("SR", "SPL", "NE"))
        assert (success.mean, success.value, success.rule) == (53.0, 50.0, "paired episodes")
        assert (success.tolerance, success.verdict, spl.verdict) == (tolerance, verdict, verdict)
        assert spl.tolerance == pytest.approx(0.8 * tolerance, abs=1e-4)
        assert (error.tolerance, error.verdict, error.value) == (0.0, "within tolerance", 5.0)
        assert (found["nDTW"].verdict, success.source, success.reproduces) == ("within tolerance", None, claim)


def test_a_run_that_differs_from_the_one_it_names_is_not_compared(
    results: Path, write: Callable[..., Path]
) -> None:
    first, other = write("first", [1.0, 0.0, 1.0]), write("other", [1.0, 0.0, 1.0], "runs/first")
    assert findings(results, other, first)["SR"].verdict == "within tolerance"
    as_benchmark(other, simulator="another", dataset_sha256="another")
    found = findings(results, other, first)["SR"]
    assert (found.verdict, found.tolerance, found.rule) == ("not comparable", None, None)
    assert found.reason == "the runs differ in dataset_sha256, simulator"
    third = write("third", [1.0, 0.0, 1.0], "runs/first")
    (third / ROWS).write_text("".join((third / ROWS).read_text().splitlines(keepends=True)[:2]))
    assert findings(results, third, first)["SR"].reason == "the runs have not finished the same episodes"


def test_a_claim_must_name_something(results: Path, write: Callable[..., Path]) -> None:
    own = write("own", [1.0, 0.0], "runs/own")
    with pytest.raises(UsageError, match=r"^unknown run 'runs/own': expected runs/ and one of no runs$"):
        load(results, [own])
    arguments = ["leaderboard", str(own), "--results", str(results), "--add", "--reproduces", "runs/nothing"]
    assert main(arguments) == 2
    assert not (results / "runs").exists()


def test_one_episode_or_none_has_no_verdict(results: Path, write: Callable[..., Path]) -> None:
    found = findings(results, write("one", [1.0], CLAIM))["SR"]
    assert (found.verdict, found.reason) == ("not comparable", "one episode: the run has no spread")
    folder = write("none", [1.0, 0.0], CLAIM)
    (folder / ROWS).write_text(
        (folder / ROWS).read_text().replace('"distance_to_goal": 5.0', '"distance_to_goal": null')
    )
    found = findings(results, folder)["NE"]
    assert (found.verdict, found.reason) == ("not comparable", "the run does not have this metric")


def test_repeats_make_the_own_mean_surer_and_not_the_published_one(
    results: Path, write: Callable[..., Path]
) -> None:
    """Four passes over 200 episodes against one: 1.96 sqrt(s^2 / 800 + p (1 - p) / 200)."""
    found = findings(results, write("four", [1.0, 0.0] * 100, CLAIM, repeats=4))["SR"]
    own, published = 0.25 * 800 / 799, 0.564 * 0.436
    assert found.tolerance == pytest.approx(100 * 1.959964 * (own / 800 + published / 200) ** 0.5, abs=1e-3)


def test_tolerances_by_hand() -> None:
    """Values 0, 0, 1, 1: s^2 = 4 * 0.25 / 3 = 1/3; two runs: 1.96 sqrt(2 / 3 / 4) = 0.800; against a rate of 0.2,
    1.96 sqrt((1/3 + 0.16) / 4) = 0.688. Differences 1, -1, 0, 0.5: 1.96 sqrt(2.25) / 4 = 0.735."""
    assert spread_tolerance([0.0, 0.0, 1.0, 1.0]) == pytest.approx(0.80016, abs=1e-5)
    assert spread_tolerance([0.0, 0.0, 1.0, 1.0], 0.2) == pytest.approx(0.68832, abs=1e-5)
    assert paired_tolerance([1.0, -1.0, 0.0, 0.5]) == pytest.approx(0.73499, abs=1e-5)


@pytest.mark.parametrize("sharpness", [0.2, 1.0, 50.0])
def test_nineteen_of_twenty_pairs_of_runs_of_one_agent_agree(sharpness: float) -> None:
    """Each episode succeeds with a chance of its own: most near 0 or 1, spread out, or all alike. 95 % of
    the pairs agree by their differences; the bound holds too, closely where log-probabilities are alike."""
    rng = np.random.default_rng(0)
    trials, agreed, bounded = 400, 0, 0
    for _ in range(trials):
        chance = rng.beta(sharpness, sharpness, size=300)
        first, second = (list((rng.random(300) < chance).astype(float)) for _ in range(2))
        difference = abs(float(np.mean(first) - np.mean(second)))
        agreed += difference <= paired_tolerance([a - b for a, b in zip(first, second, strict=True)])
        bounded += difference <= spread_tolerance(first, float(np.mean(second)))
    assert 0.92 <= agreed / trials <= 0.975
    assert bounded / trials >= 0.92
    assert (bounded / trials >= 0.99) == (sharpness == 0.2)


def test_the_ledger_shows_rule_and_tolerance(results: Path, write: Callable[..., Path]) -> None:
    files = render_ledger(make_ledger(*load(results, [write("ours", by_scene(-6.0), CLAIM)])))
    (line,) = [line for line in files["reproduction.md"].splitlines() if "| SR |" in line]
    assert line.startswith(f"| ours | ours | {CLAIM} | SR | 50.41 ± ")
    assert line.endswith("| 56.4 | 3.22 | spread of outcomes | below |  |")
    assert "value,tolerance,rule,verdict,reason,source" in files["reproduction.csv"].splitlines()[0]
    assert json.loads(files["reproduction.json"])[0]["tolerance"] == 3.2189


def test_what_nobody_has_run_is_not_measured(results: Path, write: Callable[..., Path]) -> None:
    run = write("theirs", [1.0, 0.0], CLAIM)
    literature, runs = load(results, [run])
    found = not_measured(literature, runs, ["streamvln", "of-nobody"])
    rows = {each.reproduces: each for each in found}
    assert rows["janusvln-r2r-val-unseen"].value == 60.5
    assert CLAIM not in rows
    assert {each.verdict for each in found} == {"not measured"}
    assert [each.method for each in found if each.reproduces is None] == ["of-nobody"]
    assert "| not measured |" in render_ledger(found)["reproduction.md"]
