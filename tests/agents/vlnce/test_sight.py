"""Agents of checkpoint folders: what they are shown, what they remember, and that they are told apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agents.vlnce.agent import CMATinyAgent, Seq2SeqTinyAgent, Sight, VLNCEAgent
from agents.vlnce.checkpoint import create, read
from agents.vlnce.options import PRESETS, VLNCEOptions
from tests.agents.vlnce.walks import write_walks
from vlnbench.conformance import AgentConformance
from vlnbench.data.benchmarks import BENCHMARKS
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Agent, Episode, Observation
from vlnbench.training.family.sources import shipped

TEXTS = ["Walk past the sofa and stop at the door."]
VIEWS = PRESETS["cma-tiny"].views


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sight")
    for name in PRESETS:
        create(name, folder / name, TEXTS, seed=0)
    write_walks(folder / "sets", "R2R")
    return folder


def seen(step: int) -> Observation:
    noise = np.random.default_rng(step)
    rgb = noise.integers(0, 256, (480, 640, 3), dtype=np.uint8)
    return Observation(TEXTS[0], step, rgb=rgb, depth=noise.random((480, 640), dtype=np.float32) * 10)


def options(folder: Path, **changes: Any) -> VLNCEOptions:
    return VLNCEOptions(checkpoint=folder / "cma-tiny", device="cpu", **changes)


class Conforming(AgentConformance):
    name: str
    shown: dict[str, Any]

    @pytest.fixture(autouse=True)
    def _folder(self, folder: Path) -> None:
        self.folder = folder

    def make_agent(self) -> Agent:
        more = {"frames_from": self.folder / "sets/R2R"} if self.shown else {}
        return VLNCEAgent(replace(options(self.folder, **self.shown, **more), checkpoint=self.folder / self.name))


class TestCMA(Conforming):
    name, shown = "cma-tiny", {}


@pytest.mark.slow
class TestSeq2Seq(Conforming):
    name, shown = "seq2seq-tiny", {}


class TestOtherFrames(Conforming):
    name, shown = "cma-tiny", {"frames": "other"}


def test_gray_frames_are_the_same_everywhere(folder: Path) -> None:
    gray = Sight(options(folder, frames="gray"), VIEWS)
    rgb, depth = gray.of(seen(0), 1)
    again = gray.of(seen(5), 2)
    assert torch.equal(rgb, again[0])
    assert torch.equal(depth, again[1])
    assert (rgb.shape, depth.shape) == ((48, 64, 3), (48, 64))


def test_frames_of_another_walk_go_with_the_steps_and_are_drawn_by_the_seed(folder: Path) -> None:
    other = Sight(options(folder, frames="other", frames_from=folder / "sets/R2R"), VIEWS)
    first = [other.of(seen(step), 1)[0] for step in range(4)]
    assert torch.equal(other.of(seen(99), 1)[0], other.of(seen(100), 1)[0])  # behind the walk's end, its last
    assert not torch.equal(first[0], first[1])
    drawn = {other.of(seen(0), seed)[0].sum().item() for seed in range(30)}
    assert len(drawn) == 3  # as many as there are walks


def test_identity_says_what_is_shown(folder: Path) -> None:
    own, gray, other = (
        VLNCEAgent(options(folder, **changes)).identity
        for changes in ({}, {"frames": "gray"}, {"frames": "other", "frames_from": folder / "sets/R2R"})
    )
    assert "frames" not in own
    assert {**own, "frames": "gray"} == gray
    assert set(other) - set(own) == {"frames", "frames_from"}


@pytest.mark.parametrize("kind", [CMATinyAgent, Seq2SeqTinyAgent])
def test_the_shipped_checkpoints_are_small_and_act(kind: type[CMATinyAgent | Seq2SeqTinyAgent]) -> None:
    assert sum(path.stat().st_size for path in shipped()[kind.checkpoint].iterdir()) < 10e6
    agent = kind(VLNCEOptions(device="cpu"))
    assert not agent.expects.conflicts(BENCHMARKS["houses-r2r"].body)
    agent.reset(0, Episode("1", "1", "s.glb", (0, 0, 0), (0, 0, 0, 1), TEXTS[0]), 0)
    assert agent.act({0: seen(0)})[0] in Action
    with pytest.raises(UsageError, match=f"'{kind.checkpoint}' has its own checkpoint: use --agent vlnce"):
        kind(VLNCEOptions(checkpoint=Path("other")))


@pytest.mark.parametrize("name", ["cma-tiny-base", "seq2seq-tiny-base"])
def test_the_bases_know_the_words_of_both_speakers(name: str) -> None:
    """The one of EnvDrop says some words that R2R's does not."""
    assert {"entrance", "slight", "u"} <= set(read(shipped()[name]).vocabulary)


@pytest.mark.parametrize("changes", [{"frames": "other"}, {"frames_from": Path("x")}])
def test_frames_from_goes_with_other(folder: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="one needs the other"):
        Sight(options(folder, **changes), VIEWS)


def test_an_agent_feels_what_was_done_instead(folder: Path) -> None:
    episode = Episode("1", "1", "s.glb", (0, 0, 0), (0, 0, 0, 1), TEXTS[0])
    plain, told = (VLNCEAgent(options(folder)) for _ in range(2))
    for agent in (plain, told):
        agent.reset(0, episode, 0)
    said = plain.act({0: seen(0)})[0]
    assert told.act({0: seen(0)})[0] == said
    told.feel(0, Action((said + 1) % 4))
    assert told._slots[0].previous == (said + 1) % 4
    for agent in (plain, told):
        agent.act({0: seen(1)})
    assert not torch.equal(plain._slots[0].state, told._slots[0].state)
