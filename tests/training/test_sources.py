"""Checkpoints on the Hugging Face hub, by one rule for agents, training and matrices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.vlnce.agent import VLNCEAgent
from agents.vlnce.options import FAMILY as VLNCE
from agents.vlnce.options import VLNCEOptions
from tests.fake_hub import FakeHub, Repository, disconnect, serve_hub, use
from vlnbench.cli import main
from vlnbench.errors import UsageError
from vlnbench.training.family.find import find_family
from vlnbench.training.family.sources import find_checkpoint, find_source, shipped, with_weights
from vlnbench.util.hub import spoken

COMMIT = "c" * 40
NAME = "hf:org/cma@v1"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """Holds the CMA that comes with vlnbench."""
    with serve_hub() as served:
        use(served, tmp_path / "cache", monkeypatch)
        files = {path.name: path.read_bytes() for path in shipped()["cma-tiny"].iterdir()}
        served.repositories["org/cma"] = Repository({COMMIT: files}, {"main": COMMIT, "v1": COMMIT})
        yield served


def test_the_family_is_told_by_a_few_bytes_and_the_commit_is_kept(hub: FakeHub) -> None:
    family, source = find_family("", NAME)
    assert (family.name, source.kind, source.name) == ("vlnce", "checkpoint", f"hf:org/cma@{COMMIT}")
    assert "org/cma/model.safetensors" not in hub.downloads
    path = with_weights(source).path
    assert path is not None
    assert (path / "model.safetensors").is_file()
    assert find_checkpoint(NAME) == find_checkpoint(Path(NAME)) == path
    local = find_source("cma-tiny", [])
    assert with_weights(local) is local


def test_a_name_too_long_for_a_path_is_refused_like_any_other() -> None:
    with pytest.raises(UsageError, match=r"^--checkpoint 0{100}: no such file or folder, and .{1,300}$"):
        find_source("0" * 5000, [])


def test_a_name_like_one_of_the_hub_is_told_how_to_be_typed() -> None:
    with pytest.raises(
        UsageError, match=r"no such file or folder \(on the Hugging Face hub: --model hf:Org/name\)"
    ):
        find_source("Org/name", [], "--model")


def test_adapters_of_the_hub_go_over_a_folder(hub: FakeHub) -> None:
    """Told apart by a few bytes, and refused where they stand alone; the pickle is fetched where it is trusted."""
    low, whole = "adapter_model.safetensors", "non_lora_trainables.bin"
    files = {
        "adapter_config.json": b'{"peft_type": "LORA"}',
        low: b"tensors",
        whole: b"pickle",
        "optimizer.pt": b"-",
    }
    hub.repositories["org/lora"] = Repository({COMMIT: files}, {"main": COMMIT})
    with pytest.raises(
        UsageError, match=r"hf:org/lora: holds no config.json; it holds adapters: name BASE\+hf:org"
    ):
        find_source("hf:org/lora", [])
    base = shipped()["cma-tiny"]
    for name in (f"{base}+hf:org/lora", "cma-tiny+hf:org/lora", f"{NAME}+hf:org/lora"):
        family, source = find_family("", name)
        assert family.name == "vlnce"
        assert source.name.endswith(f"+hf:org/lora@{COMMIT}")
        assert f"org/lora/{low}" not in hub.downloads
    with pytest.raises(UsageError, match=r"its weights are pickles \(non_lora_trainables.bin\)"):
        with_weights(source)
    path = with_weights(source, trust_pickle=True).path
    assert path is not None
    assert (path / ".adapters" / whole).read_bytes() == b"pickle"
    assert (path / "model.safetensors").is_file()
    assert spoken(path) == f"hf:org/cma@{COMMIT}+hf:org/lora@{COMMIT}"
    assert not (path / ".adapters" / "optimizer.pt").exists()
    hub.repositories["org/lora"] = Repository({COMMIT: {**files, "vit.safetensors": b"-"}}, {"main": COMMIT})
    with pytest.raises(UsageError, match=r"org/lora@.*: vit.safetensors is not merged with the adapters"):
        with_weights(find_family("", f"{base}+hf:org/lora")[1], trust_pickle=True)
    for name, line in (
        (f"{base}+nowhere", "nowhere: no adapters"),
        ("cma+hf:org/lora", "is no checkpoint folder"),
    ):
        with pytest.raises(UsageError, match=line):
            find_source(name, [VLNCE])


def test_an_agent_of_the_hub_is_the_one_of_the_folder(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    there = VLNCEAgent(VLNCEOptions(checkpoint=Path(NAME), device="cpu"))
    here = VLNCEAgent(VLNCEOptions(checkpoint=shipped()["cma-tiny"], device="cpu"))
    assert there.identity == here.identity
    assert f"checkpoint hf:org/cma@{COMMIT}: cma" in there.description
    disconnect(monkeypatch)
    again = VLNCEAgent(VLNCEOptions(checkpoint=Path(NAME), device="cpu"))
    assert again.identity == there.identity
    assert f"checkpoint hf:org/cma@{COMMIT}: cma" in again.description
    with pytest.raises(UsageError, match=r"hf:org/other: the hub does not answer"):
        VLNCEAgent(VLNCEOptions(checkpoint=Path("hf:org/other")))


KINDS = {
    "adapter_config.json": "holds adapters, not a model: name what they were trained on before them",
    "zero_to_fp32.py": "holds what DeepSpeed resumes from, not a model: run `python zero_to_fp32.py . NEW`",
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    "command",
    [
        ["eval", "--agent", "qwen_vl", "--checkpoint"],
        ["eval", "--agent", "streamvln", "--checkpoint"],
        ["train", "--out", "run", "--checkpoint"],
    ],
    ids=" ".join,
)
def test_a_folder_that_is_no_model_says_what_makes_one_of_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    command: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / name).write_text("{}")
    assert main([*command, "saved"]) == 2
    (line,) = [each for each in capsys.readouterr().err.splitlines() if "error" in each]
    assert f"saved {KINDS[name]}" in line
    assert not (tmp_path / "run").exists()
