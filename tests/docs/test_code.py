"""Code in documents does what is said of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.docs.pages import ROOT, blocks, code, document
from tests.synthetic import r2r_entry, write_split
from vlnbench.cli import main
from vlnbench.data.benchmarks import BENCHMARKS, Benchmark, get_benchmark
from vlnbench.data.episodes import load_split
from vlnbench.interfaces import Action, Observation
from vlnbench.matrix.spec import read_matrix
from vlnbench.training.objectives.grpo.rewards import Rewards, _rehearsal

README, AGENT, PAGE = ROOT / "README.md", document("your_agent.md"), document("contributing.md")


def run(text: str) -> dict[str, Any]:
    """What the code defines."""
    names: dict[str, Any] = {"__name__": "documents"}
    exec(compile(text, "a document", "exec"), names)
    return names


@pytest.mark.parametrize("page", [README, AGENT], ids=lambda page: page.name)
def test_the_agent_of_ten_lines_acts(page: Path) -> None:
    text = code(page, "Mine")
    assert len(text.splitlines()) <= 10
    assert run(text)["Mine"]().act_one(Observation("Go.", 0)) is Action.MOVE_FORWARD


def test_the_agent_to_add_passes_its_test(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("agents.my_agent")
    vars(module).update(run(code(PAGE, "Mine")))
    monkeypatch.setitem(sys.modules, "agents.my_agent", module)
    tests = run(code(PAGE, "TestMine"))["TestMine"]()
    names = [name for name in dir(tests) if name.startswith("test_")]
    assert len(names) >= 5
    for name in names:
        getattr(tests, name)()


def test_the_benchmark_to_add_finds_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PAGE.read_text(encoding="utf-8").split("## Add a benchmark")[1].split("```python\n")[1].split("```")[0]
    made = run(text.replace("\nBenchmark(", "\nmade = Benchmark("))["made"]
    assert isinstance(made, Benchmark)
    monkeypatch.setitem(BENCHMARKS, made.name, made)
    write_split(tmp_path / "datasets" / "my_r2r" / "val_unseen", "val_unseen", [r2r_entry(7)])
    found = load_split(get_benchmark("my-r2r"), "val_unseen", tmp_path, allow_partial=True)
    assert [episode.episode_id for episode in found.episodes] == ["7"]


def test_the_benchmark_in_a_file_reads_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The YAML of the document, with the reader of the document."""
    page = document("plugins.md")
    (text,) = (text for language, text in blocks(page) if language == "yaml")
    (reader,) = (text for language, text in blocks(page) if language == "python" and "def read(" in text)
    (tmp_path / "my_reader.py").write_text(reader, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my.yaml").write_text(text.replace("reader: r2r ", "reader: my_reader:read "), encoding="utf-8")
    made = get_benchmark(str(tmp_path / "my.yaml"))
    assert (made.body.turn_deg, made.body.camera.height_m, made.body.camera.width) == (30.0, 0.88, 640)
    folder = tmp_path / "datasets" / "my_r2r" / "train"
    folder.mkdir(parents=True)
    head = "id,path,scan,x,y,z,goal_x,goal_y,goal_z,text"
    (folder / "train.csv").write_text(f"{head}\n7,3,house,0,0,0,4,0,1,Go on.\n", encoding="utf-8")
    (episode,) = load_split(made, "train", tmp_path).episodes
    assert (episode.scene_id, episode.goals) == ("mp3d/house/house.glb", ((4.0, 0.0, 1.0),))


def test_the_reward_to_add_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = document("post_training.md")
    (text,) = (text for language, text in blocks(page) if language == "python" and "def brief(" in text)
    (tmp_path / "my_rewards.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    rewards = Rewards(["my_rewards:brief", "near:0.2"], "episodes")  # tries them
    right, wrong = _rehearsal("episodes")
    assert rewards.of(right, "a test")[0] == pytest.approx(1 - 0.013)
    assert rewards.of(wrong, "a test")[0] == pytest.approx(1 - 0.002)  # it stops within 3 m, too


@pytest.mark.slow
def test_the_family_to_add_leaves_norms_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_family.py").write_text(code(document("add_model.md"), "FrozenNorms"), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    counts = []
    for family in ("streamvln", "my_family:FAMILY"):
        assert (
            main(["plan", "--family", family, "--model", "streamvln-tiny", "--gpus", "1x8GB", "--format", "json"])
            == 0
        )
        counts.append(json.loads(capsys.readouterr().out)["trainable"])
    assert 0 < counts[1] < counts[0]


def test_matrix_files_are_read(tmp_path: Path) -> None:
    (text,) = (text for language, text in blocks(document("matrix.md")) if language == "yaml")
    (tmp_path / "example.yaml").write_text(text, encoding="utf-8")
    assert len(read_matrix(tmp_path / "example.yaml").settings) == 12
    for name, count in (
        ("laptop_matrix", 2),
        ("navila_laptop_matrix", 6),
        ("navila_matrix", 21),
        ("uninavid_laptop_matrix", 4),
        ("uninavid_matrix", 10),
        ("streamvln_matrix", 78),
        ("janusvln_matrix", 53),
        ("qwen_grpo_matrix", 27),
    ):
        assert len(read_matrix(ROOT / "examples" / f"{name}.yaml").settings) == count


@pytest.mark.slow
def test_the_environment_to_add_is_dim(houses: Path) -> None:
    from envs.habitat_env import HabitatEnv

    benchmark = get_benchmark("houses-r2r")
    split = load_split(benchmark, "val_unseen", houses, allow_partial=True)
    episode, sensors = split.episodes[0], frozenset({"rgb"})
    seen = []
    for kind in (HabitatEnv, run(code(PAGE, "DimEnv"))["DimEnv"]):
        env = kind(benchmark.body, split.scenes_dir, sensors, "embedded")
        seen.append((env.reset(episode).rgb, env.step(Action.TURN_LEFT).rgb, env.simulator))
        env.close()
    (bright, turned, name), (dim, dim_turned, dim_name) = seen
    assert dim_name == f"{name}-dim"
    np.testing.assert_array_equal(dim, bright // 2)
    np.testing.assert_array_equal(dim_turned, turned // 2)
