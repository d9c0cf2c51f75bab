"""`vlnbench eval --agent janusvln` from command line to run folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agents.janusvln.tiny import write_tiny
from vlnbench.cli import main


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("janusvln") / "checkpoint"
    write_tiny(folder)
    return folder


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_corridor_scenes_with_the_recorded_checkpoint(
    shared: Path, goldens: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps are few, so that the forced STOP is met; batch size and workers change no row."""
    model = [
        "--agent",
        "janusvln",
        "--checkpoint",
        str(goldens / "checkpoint"),
        "--device",
        "cpu",
        "--max-steps",
        "5",
    ]
    data = ["--benchmark", "r2r-ce", "--split", "val_seen", "--data-root", str(shared / "data"), "--episodes", "3"]
    out = tmp_path / "run"
    assert main(["eval", *model, *data, "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert "r2r-ce val_seen: janusvln in " in said.out
    assert "float32 on cpu, sdpa attention" in said.err
    found = rows(out)
    assert [row["status"] for row in found] == ["ok"] * 3
    assert all(1 <= row["scores"]["steps"] <= 6 for row in found)
    identity = json.loads((out / "manifest.json").read_text())["identity"]
    assert identity["agent_identity"]["max_steps"] == 5
    other = tmp_path / "other"
    assert main(["eval", *model, *data, "--out", str(other), "--max-batch", "1"]) == 0

    def told(folder: Path) -> list[tuple[str, dict]]:
        return sorted((row["episode_id"], row["scores"]) for row in rows(folder))

    assert told(other) == told(out)


@pytest.mark.slow
def test_generated_houses(tiny: Path, houses: Path, tmp_path: Path) -> None:
    """The same without anything beside the repository."""
    out = tmp_path / "run"
    command = [
        "eval",
        "--agent",
        "janusvln",
        "--checkpoint",
        str(tiny),
        "--device",
        "cpu",
        "--max-new-tokens",
        "4",
    ]
    data = ["--benchmark", "houses-r2r", "--split", "val_unseen", "--data-root", str(houses), "--episodes", "2"]
    assert main([*command, *data, "--out", str(out)]) == 0
    assert [row["status"] for row in rows(out)] == ["ok"] * 2


def no_checkpoint(folder: Path) -> list[str]:
    return []


def missing_key(folder: Path) -> list[str]:
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | {"num_hidden_layers": 3}))
    return ["--checkpoint", str(folder)]


def cut_weights(folder: Path) -> list[str]:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    return ["--checkpoint", str(folder)]


def no_tokenizer(folder: Path) -> list[str]:
    (folder / "tokenizer.json").unlink()
    return ["--checkpoint", str(folder)]


def another_model(folder: Path) -> list[str]:
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    return ["--checkpoint", str(folder)]


def another_option(folder: Path) -> list[str]:
    return ["--checkpoint", str(folder), "--vision-tower", str(folder)]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (no_checkpoint, "agent 'janusvln' needs a trained model: name its folder with --checkpoint"),
        (missing_key, "12 missing: model.layers.2.self_attn.q_proj.weight"),
        (cut_weights, "model.safetensors is damaged"),
        (no_tokenizer, "has no tokenizer files: give --tokenizer"),
        (another_model, 'model_type: expected "qwen2_5_vl" (a JanusVLN checkpoint), found "qwen2"'),
        (another_option, "--vision-tower"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    spoil: Callable[[Path], list[str]],
    message: str,
) -> None:
    folder, here = tmp_path / "checkpoint", tmp_path / "here"
    here.mkdir()
    shutil.copytree(tiny, folder)
    monkeypatch.chdir(here)
    assert main(["eval", "--agent", "janusvln", "--device", "cpu", *spoil(folder)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("vlnbench: error: ")
    assert len(error.splitlines()) == 1
    assert not list(here.iterdir())


def test_another_body_is_refused(
    shared: Path, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--benchmark", "r2r-vlnce", "--split", "val_seen", "--data-root", str(shared / "data")]
    command = ["eval", "--agent", "janusvln", "--checkpoint", str(tiny), "--device", "cpu", *data]
    assert main([*command, "--out", str(tmp_path / "never")]) == 2
    message = "agent 'janusvln' does not fit benchmark 'r2r-vlnce': needs width 640 (it has 224)"
    assert message in capsys.readouterr().err
    assert not (tmp_path / "never").exists()
