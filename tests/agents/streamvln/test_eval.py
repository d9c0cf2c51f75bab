"""`vlnbench eval --agent streamvln` from command line to run folder, with the tiny reference checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from vlnbench.cli import main

Files = Callable[[Path], list[str]]

TINY = [
    *("--train-houses", "1", "--train-episodes", "3", "--val-seen-episodes", "3"),
    *("--val-unseen-houses", "1", "--val-unseen-episodes", "6"),
]


@pytest.fixture(scope="module")
def model(goldens: Path) -> list[str]:
    tower = ["--vision-tower", str(goldens / "vision_tower")]
    checkpoint = ["--checkpoint", str(goldens / "checkpoint"), *tower]
    return ["--agent", "streamvln", *checkpoint, "--device", "cpu", "--max-new-tokens", "24"]


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_generated_houses_from_checkpoint_to_table(
    model: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["data", "houses", *TINY]) == 0
    command = ["eval", *model, "--benchmark", "houses-r2r", "--split", "val_unseen", "--episodes", "1"]
    capsys.readouterr()
    assert main(command) == 0
    first = capsys.readouterr()
    assert "houses-r2r val_unseen: streamvln in embedded" in first.out
    assert "float32 on cpu, sdpa attention" in first.err
    (folder,) = (tmp_path / "runs" / "houses-r2r" / "val_unseen").glob("streamvln-*")
    assert [row["status"] for row in rows(folder)] == ["ok"]
    assert all(row["scores"]["steps"] > 1 for row in rows(folder))
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["agent_privileged"] is False
    assert manifest["identity"]["agent_identity"]["dtype"] == "float32"
    before = (folder / "episodes.jsonl").read_bytes()
    assert main([*command, "--max-batch", "3"]) == 0
    assert capsys.readouterr().out == first.out
    assert (folder / "episodes.jsonl").read_bytes() == before


@pytest.mark.slow
def test_real_episodes_on_corridor_scenes(shared: Path, model: list[str], tmp_path: Path) -> None:
    """Answers cut after their header name no action, so that every episode is one turn and a STOP."""
    data = ["--benchmark", "r2r-ce", "--split", "val_seen", "--data-root", str(shared / "data")]
    out = tmp_path / "run"
    assert main(["eval", *model, *data, "--episodes", "3", "--max-new-tokens", "3", "--out", str(out)]) == 0
    assert [(row["status"], row["scores"]["steps"]) for row in rows(out)] == [("ok", 1)] * 3


def no_checkpoint(folder: Path) -> list[str]:
    return []


def no_weights(folder: Path) -> list[str]:
    (folder / "model-00002-of-00003.safetensors").unlink()
    return ["--checkpoint", str(folder)]


def cut_weights(folder: Path) -> list[str]:
    path = folder / "model-00002-of-00003.safetensors"
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[:1000])
    return ["--checkpoint", str(folder)]


def no_tokenizer(folder: Path) -> list[str]:
    for name in ("tokenizer.json", "vocab.json"):
        (folder / name).unlink()
    return ["--checkpoint", str(folder)]


def another_model(folder: Path) -> list[str]:
    (folder / "config.json").unlink()
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    return ["--checkpoint", str(folder)]


def no_flash_attention(folder: Path) -> list[str]:
    return ["--checkpoint", str(folder), "--attn", "flash_attention_2"]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (no_checkpoint, "agent 'streamvln' needs a trained model: name its folder with --checkpoint"),
        (no_weights, "model-00002-of-00003.safetensors"),
        (cut_weights, "model-00002-of-00003.safetensors"),
        (no_tokenizer, "has no tokenizer files: give --tokenizer"),
        (another_model, 'model_type: expected "llava_qwen" (a StreamVLN checkpoint), found "qwen2"'),
        (no_flash_attention, "--attn flash_attention_2: needs a CUDA device"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(
    goldens: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    spoil: Files,
    message: str,
) -> None:
    folder, here = tmp_path / "checkpoint", tmp_path / "here"
    for path in (folder, here):
        path.mkdir()
    for path in (goldens / "checkpoint").iterdir():
        (folder / path.name).symlink_to(path)
    monkeypatch.chdir(here)
    tower = ["--vision-tower", str(goldens / "vision_tower")]
    assert main(["eval", "--agent", "streamvln", "--device", "cpu", *tower, *spoil(folder)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("vlnbench: error: ")
    assert len(error.splitlines()) == 1
    assert not list(here.iterdir())


def test_another_body_is_refused(
    shared: Path, model: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--benchmark", "r2r-vlnce", "--split", "val_seen", "--data-root", str(shared / "data")]
    assert main(["eval", *model, *data, "--out", str(tmp_path / "never")]) == 2
    message = "agent 'streamvln' does not fit benchmark 'r2r-vlnce': needs width 640 (it has 224)"
    assert message in capsys.readouterr().err
    assert not (tmp_path / "never").exists()
