"""Benchmarks with another body: their names, and runs of agents that were trained with one."""

from __future__ import annotations

import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.scripted import RandomAgent
from tests.fakes import PlaneEnv
from tests.runs import nine_episodes, write_dataset
from vlnbench.cli import main
from vlnbench.data.benchmarks import BENCHMARKS, as_expected, get_benchmark, misfit
from vlnbench.errors import UsageError
from vlnbench.evaluation.identity import SHARED
from vlnbench.evaluation.recorded import load_run, remake_plan
from vlnbench.evaluation.records import read_rows
from vlnbench.interfaces import Conventions, Embodiment
from vlnbench.leaderboard.board import OURS, load, make_tables

RESULTS = Path(__file__).parents[2] / "results"
WANTED = Conventions(width=320, height=240, hfov=100.0, turn_deg=30.0)
NAME = "rxr-ce@320x240-hfov100-turn30"

lengths = st.none() | st.floats(0.01, 5).map(lambda value: round(value, 6))
angles = st.none() | st.floats(1, 179).map(lambda value: round(value, 6))
pixels = st.none() | st.integers(1, 2048)
anything = st.builds(
    Conventions,
    width=pixels,
    height=pixels,
    hfov=angles,
    camera_height_m=lengths,
    forward_m=lengths,
    turn_deg=angles,
)


class WideAgent(RandomAgent):
    """An agent that was trained with another camera and other turns."""

    expects = WANTED


class Plane(PlaneEnv):
    """A free plane, which notes whom it was made for."""

    def __init__(self, body: Embodiment, *_: Any) -> None:
        super().__init__()
        with open("bodies.txt", "a") as noted:
            noted.write(f"{body}\n")


@given(st.sampled_from(sorted(BENCHMARKS)), anything, anything)
def test_every_body_has_a_name_by_which_it_is_found_again(name: str, one: Conventions, two: Conventions) -> None:
    benchmark = get_benchmark(name)
    made = as_expected(benchmark, one)
    assert not one.conflicts(made.body)
    assert get_benchmark(made.name) == made
    assert (made.fingerprint == benchmark.fingerprint) == (not one.conflicts(benchmark.body))
    assert {**asdict(made), "name": 0, "summary": 0, "body": 0, "splits": 0, "dataset_folders": 0} == {
        **asdict(benchmark), "name": 0, "summary": 0, "body": 0, "splits": 0, "dataset_folders": 0
    }  # fmt: skip
    again = as_expected(made, two)
    assert not two.conflicts(again.body)
    assert get_benchmark(again.name).body == again.body


def test_a_body_that_ships_keeps_its_benchmark() -> None:
    body = BENCHMARKS["r2r-navila"].body.camera
    expects = Conventions(width=body.width, height=body.height, hfov=body.hfov)
    assert as_expected(BENCHMARKS["r2r-ce"], expects) is BENCHMARKS["r2r-navila"]
    assert get_benchmark("r2r-ce@512x512-hfov90") is BENCHMARKS["r2r-navila"]
    assert as_expected(BENCHMARKS["rxr-ce"], expects).name == "rxr-ce@512x512-hfov90", "its languages are others"


def test_the_height_is_that_of_both_cameras_and_the_rest_of_the_body_stays() -> None:
    base = BENCHMARKS["r2r-vlnce"].body
    body = as_expected(BENCHMARKS["r2r-vlnce"], Conventions(camera_height_m=0.5)).body
    assert base.depth_camera is not None
    depth, camera = replace(base.depth_camera, height_m=0.5), replace(base.camera, height_m=0.5)
    assert body == replace(base, camera=camera, depth_camera=depth)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("houses-r2r@", "expected what differs in the body, such as 512x512-"),
        ("houses-r2r@wide", "expected what differs in the body, such as 512x512-"),
        ("houses-r2r@hfov-90", "expected what differs in the body"),
        ("houses-r2r@hfov180", r"camera\.hfov: input should be less than 180"),
        ("houses-r2r@0x10", r"camera\.width: input should be greater"),
        ("houses-r2r@forward0", "forward_m: input should be greater than 0"),
        ("house-r2r@hfov90", "unknown benchmark 'house-r2r'"),
    ],
)
def test_names_that_cannot_be_are_refused(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        get_benchmark(name)


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    here = "tests.data.test_bodies"
    episodes = [replace(episode, instruction_id=episode.episode_id) for episode in nine_episodes()]
    root = write_dataset(tmp_path / "data", "rxr-ce", episodes)
    data = ["--benchmark", "rxr-ce", "--data-root", str(root), "--allow-partial"]
    return ["eval", "--env", f"{here}:Plane", *data, "--envs", "1", "--agent", f"{here}:WideAgent"]


@pytest.mark.slow
def test_an_agent_of_another_body_runs_as_published_and_stays_apart(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--out", "never"]) == 2
    assert f"same episodes with that body are benchmark {NAME!r}" in capsys.readouterr().err
    assert not Path("never").exists()
    assert main([*command, "--as-published", "--out", "own"]) == 0
    assert main([*command, "--as-published", "--out", "own"]) == 0
    assert main([*command, "--benchmark", NAME, "--out", "named"]) == 0
    assert main([*command[:-1], "random", "--out", "plain"]) == 0
    own, named, plain = (load_run(Path(name)) for name in ("own", "named", "plain"))
    noted = Path("bodies.txt").read_text().splitlines()
    assert own.benchmark == get_benchmark(NAME)
    assert str(own.benchmark.body) == noted[0] != noted[-1] == str(plain.benchmark.body)
    assert own.identity == named.identity
    assert {row.fingerprint for row in read_rows(Path("own"))} == {own.benchmark.fingerprint}
    assert own.benchmark.fingerprint != plain.benchmark.fingerprint
    differing = own.identity.differences(plain.identity)
    assert {name for name in SHARED if name in differing} == {"benchmark", "fingerprint"}
    assert remake_plan(own, Path("data")).benchmark == own.benchmark

    Path("results").mkdir()
    shutil.copy(RESULTS / "published.json", "results")
    tables = make_tables(*load(Path("results"), [Path("own"), Path("plain")]))
    ours = [(each.dataset, each.protocol) for each in tables if any(row.evidence == OURS for row in each.rows)]
    assert ours == [("RxR-CE", "rxr-ce"), ("RxR-CE", NAME)]
    capsys.readouterr()
    assert main(["compare", "own", "plain"]) == 2
    assert "benchmark" in capsys.readouterr().err


@pytest.mark.slow
def test_an_agent_that_fits_runs_on_the_benchmark_as_it_is(command: list[str]) -> None:
    assert main([*command[:-1], "random", "--as-published", "--out", "own"]) == 0
    assert load_run(Path("own")).benchmark is BENCHMARKS["rxr-ce"]


def test_what_does_not_fit_is_said_with_the_benchmark_that_does() -> None:
    assert misfit(BENCHMARKS["houses-r2r"], Conventions()) == ""
    said = misfit(BENCHMARKS["houses-r2r"], Conventions(turn_deg=30.0))
    assert (
        said
        == "needs turn_deg 30.0 (it has 15.0); the same episodes with that body are benchmark 'houses-r2r@turn30'"
    )
