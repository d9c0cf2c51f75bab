"""Benchmarks that users write: in YAML, in Python, with episodes in a format of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fakes import PlaneEnv, make_episode
from tests.runs import write_dataset
from vlnbench.cli import main
from vlnbench.data.benchmark_files import recorded_benchmark
from vlnbench.data.benchmarks import BENCHMARKS, VLM_BODY, Benchmark, get_benchmark
from vlnbench.data.episodes import load_split
from vlnbench.errors import UsageError
from vlnbench.evaluation.evaluate import evaluate, make_plan
from vlnbench.evaluation.recorded import load_run, remake_plan
from vlnbench.rollout.agents import load_agent
from vlnbench.rollout.inline import Inline

WHOLE: dict[str, Any] = {
    "name": "my-r2r",
    "version": 2,
    "summary": "our building",
    "reader": "r2r",
    "dataset_folders": ["my_r2r"],
    "splits": {"val_unseen": 1200, "train": None},
    "body": {"like": "r2r-ce", "turn_deg": 30, "camera": {"height_m": 0.88}},
    "metrics": {"success_distance_m": 2, "max_steps": 100},
}

READER = """
import csv

def read(path):
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            x = float(row["goal_x"])
            yield {
                "episode_id": row["id"],
                "trajectory_id": row["id"],
                "scene_id": "a/a.glb",
                "start_position": [0.0, 0.0, 0.0],
                "start_rotation": [0.0, 0.0, 0.0, 1.0],
                "goals": [{"position": [x, 0.0, 0.0]}],
                "instruction": {"instruction_text": row["text"]},
            }
"""


def written(folder: Path, **changes: Any) -> Path:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(WHOLE | changes), encoding="utf-8")
    return path


def test_a_file_is_the_benchmark_that_it_describes(tmp_path: Path) -> None:
    camera = replace(VLM_BODY.camera, height_m=0.88)
    by_hand = Benchmark(
        name="my-r2r",
        version=2,
        summary="our building",
        reader="r2r",
        dataset_folders=("my_r2r",),
        splits={"val_unseen": 1200, "train": None},
        body=replace(BENCHMARKS["r2r-ce"].body, turn_deg=30.0, camera=camera),
        max_steps=100,
        success_distance_m=2.0,
    )
    found = get_benchmark(str(written(tmp_path)))
    assert found == by_hand
    assert found.fingerprint == by_hand.fingerprint


@pytest.mark.parametrize(
    "change",
    [
        {"version": 3},
        {"body": {"like": "r2r-ce"}},
        {"metrics": {"success_distance_m": 3}},
        {"reader": "rxr"},
        {"languages": ["en-US"]},
    ],
)
def test_the_fingerprint_follows_what_can_change_a_score(tmp_path: Path, change: dict[str, Any]) -> None:
    before = get_benchmark(str(written(tmp_path))).fingerprint
    assert get_benchmark(str(written(tmp_path, **change))).fingerprint != before
    cosmetic = {"summary": "?", "dataset_folders": ["elsewhere"], "splits": {"test": None}}
    assert get_benchmark(str(written(tmp_path, **cosmetic))).fingerprint == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "r2r-ce"}, "name 'r2r-ce' is taken"),
        ({"name": "../up"}, "name: string should match pattern"),
        ({"reader": "csv"}, "reader: string should match pattern"),
        ({"splits": {}}, "splits: "),
        ({"splits": {"../up": 1}}, "splits"),
        ({"dataset_folders": ["/etc"]}, "dataset_folders.0: string should match pattern"),
        ({"body": {"like": "r2r-cf"}}, "body.like: unknown benchmark 'r2r-cf': did you mean 'r2r-ce'"),
        ({"body": {"turn_deg": 15}}, "body.camera: field required"),
        ({"body": {"like": "r2r-ce", "turn": 15}}, "body.turn: extra inputs are not permitted"),
        ({"body": {"like": "r2r-ce", "camera": {"width": 10**9}}}, "body.camera.width: input should be less"),
        (
            {"body": {"like": "r2r-ce", "depth_range_m": [5.0, 2.0]}},
            "body.depth_range_m: expected the near end first, below the far one, found",
        ),
        ({"metrics": {"max_steps": 0}}, "metrics.max_steps: input should be greater"),
        ({"metrics": {"success_distance_m": float("nan")}}, "metrics.success_distance_m: "),
        ({"version": None}, "version: input should be a valid integer"),
        ({"stray": 1}, "stray: extra inputs are not permitted"),
    ],
)
def test_what_cannot_be_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], message: str
) -> None:
    path = written(tmp_path, **change)
    assert main(["eval", "--benchmark", str(path), "--agent", "blind"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("vlnbench: error: ")
    assert str(path) in line
    assert message in line


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("no.yaml", None, "cannot be read"),
        ("no.py", None, "there is no such file"),
        ("twice.yaml", "name: a\nname: b\n", "stands twice"),
        ("list.yaml", "[1]", "expected a mapping"),
        ("large.yaml", "#" * 300_000, "more than 262,144 bytes"),
        ("empty.py", "", "expected BENCHMARK"),
        ("other.py", "BENCHMARK = 3", "expected a vlnbench.data.benchmarks.Benchmark"),
    ],
)
def test_files_that_are_none_are_one_line(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=message):
        get_benchmark(str(tmp_path / name))


def test_a_python_file_names_its_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "from vlnbench.data.benchmarks import VLM_BODY, Benchmark\n"
        "BENCHMARK = Benchmark('mine', 1, '', 'r2r', ('mine',), {'val': None}, VLM_BODY)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found = get_benchmark(str(tmp_path / "mine.py"))
    assert found.name == "mine"
    assert get_benchmark("mine:BENCHMARK") == found


class TestOwnReader:
    """Episodes in a table, read by a function beside the benchmark."""

    @pytest.fixture
    def root(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(__import__("sys").modules, "table_reader", raising=False)
        (tmp_path / "table_reader.py").write_text(READER)
        folder = tmp_path / "data" / "datasets" / "my_r2r" / "train"
        folder.mkdir(parents=True)
        (folder / "train.csv").write_text("id,goal_x,text\n1,4.5,Go on.\n2,6,Stop there.\n")
        return tmp_path

    def load(self, root: Path) -> Any:
        benchmark = get_benchmark(str(written(root, reader="table_reader:read")))
        return load_split(benchmark, "train", root / "data")

    def test_its_entries_are_read_and_checked_as_those_of_r2r(self, root: Path) -> None:
        found = self.load(root)
        assert [(each.instruction, each.goals) for each in found.episodes] == [
            ("Go on.", ((4.5, 0.0, 0.0),)),
            ("Stop there.", ((6.0, 0.0, 0.0),)),
        ]
        table = root / "data/datasets/my_r2r/train/train.csv"
        table.write_text("id,goal_x,text\n1,nan,Go on.\n")
        with pytest.raises(UsageError, match=r"train\.csv: episode 1: field 'goals\.position'"):
            self.load(root)

    def test_other_code_makes_another_dataset(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        before = self.load(root).sha256
        assert self.load(root).sha256 == before
        read = __import__("table_reader").read
        halved = lambda path: ({**entry, "start_position": [1.0, 0.0, 0.0]} for entry in read(path))  # noqa: E731
        monkeypatch.setattr("table_reader.read", halved)
        assert self.load(root).sha256 != before

    def test_what_it_raises_is_one_line(self, root: Path) -> None:
        (root / "data/datasets/my_r2r/train/train.csv").write_text("id\n1\n")
        with pytest.raises(
            UsageError, match=r"train\.csv: cannot be read by table_reader:read \(KeyError: 'goal_x'\)"
        ):
            self.load(root)


def test_a_run_is_read_back_without_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, metrics and identity; the file may have gone, and may come back as something else."""
    root = write_dataset(tmp_path, episodes=[make_episode(i, scene="a", distance=4.0 + i) for i in range(3)])
    path = written(tmp_path, dataset_folders=["houses_r2r"], splits={"val_unseen": None})
    benchmark = get_benchmark(str(path))
    plan = make_plan(benchmark, load_split(benchmark, "val_unseen", root), "blind", count=None, seed=0, repeats=1)
    evaluate(plan, Inline(load_agent("stop"), PlaneEnv()), tmp_path / "run")
    path.unlink()
    run = load_run(tmp_path / "run")
    assert run.benchmark == benchmark
    assert run.identity.fingerprint == benchmark.fingerprint
    assert remake_plan(run, root).episodes == plan.episodes
    protocol = run.manifest["protocol"]
    with pytest.raises(UsageError, match="field 'protocol': its fingerprint is"):
        recorded_benchmark(protocol | {"max_steps": 7}, benchmark.fingerprint, "run")
    broken: list[Any] = [None, [], {"name": "x"}, protocol | {"body": None}, protocol | {"max_steps": "x"}]
    for each in broken:
        with pytest.raises(UsageError, match="field 'protocol': expected"):
            recorded_benchmark(each, benchmark.fingerprint, "run")


def test_a_manifest_names_no_code_to_run(tmp_path: Path) -> None:
    """Who reads a run of others imports nothing that its manifest names."""
    root = write_dataset(tmp_path, episodes=[make_episode(1, scene="a", distance=4.0)])
    changes: dict[str, Any] = {"dataset_folders": ["houses_r2r"], "splits": {"val_unseen": None}}
    plain = get_benchmark(str(written(tmp_path, **changes)))
    coded = replace(plain, reader="no_such_module:read", generator="no_such_module")
    split = load_split(plain, "val_unseen", root)
    plan = make_plan(coded, split, "stop", count=None, seed=0, repeats=1)
    evaluate(plan, Inline(load_agent("stop"), PlaneEnv()), tmp_path / "run")
    run = load_run(tmp_path / "run")
    assert (run.benchmark.reader, run.benchmark.generator) == ("no_such_module:read", None)
    with pytest.raises(UsageError, match="unknown benchmark 'my-r2r'"):
        remake_plan(run, root)
