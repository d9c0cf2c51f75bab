"""What a network was trained to see is in its checkpoint: the agent shows it the same."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from agents.common.decoders.turns import Turn
from agents.streamvln.agent import StreamVLNAgent, named
from agents.streamvln.family import StreamVLNCheckpoints, StreamVLNTrains
from agents.streamvln.network import load
from agents.streamvln.options import (
    PRESETS,
    StreamVLNInference,
    StreamVLNOptions,
    StreamVLNPlanning,
    StreamVLNTraining,
)
from tests.agents.streamvln.test_samples import make_folder
from tests.fakes import make_episode
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Observation
from vlnbench.training.family.checkpoints import Source

ROOT = Path(__file__).parents[3]
UNUSUAL: dict[str, Any] = {
    "frames": 16,
    "history": 4,
    "future_steps": 2,
    "image_size": 48,
    "wording": "evaluation",
}


class Recording:
    """In the place of a decoder: keeps what is asked, and answers what was done."""

    max_new_tokens = 512

    def __init__(self, agent: StreamVLNAgent, done: Sequence[Action]) -> None:
        self._agent, self._done = agent, done
        self.windows: list[list[Turn]] = []
        self.answer: list[int] = []

    def run(self, turns: Sequence[Turn]) -> list[list[int]]:
        (turn,) = turns
        if turn.opens_window:
            self.windows.append([])
        self.windows[-1].append(turn)
        step = self._agent._slots[0].step
        self.answer = self._agent._prompts.block("assistant", named(self._done[step : step + 2]))[:-1]
        return [self.answer]

    def drop(self, slot: int) -> None:
        pass


@pytest.fixture(scope="module")
def walks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("sets") / "R2R", [40])


@pytest.fixture(scope="module")
def trained(walks: Path) -> Path:
    """A checkpoint after two steps with every input other than usual."""
    out = walks.parents[1] / "sets-run"
    said = train(walks, checkpoint="preset:streamvln-tiny", out=out, **UNUSUAL)
    assert "checkpoint's" not in said, "random weights were trained with nothing"
    return out / "model"


def train(walks: Path, **chosen: Any) -> str:
    """Two steps; what was said."""
    chosen |= {
        "trajectories": walks.parent,
        "sets": "R2R",
        "steps": 2,
        "batch": 1,
        "accumulation": 1,
        "workers": 0,
    }
    words = [str(word) for name, value in chosen.items() for word in ("--" + name.replace("_", "-"), value)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "vlnbench", "train", *words, "--no-augment"]
    return subprocess.run(command, env=environment, check=True, cwd=ROOT, capture_output=True, text=True).stderr


@pytest.mark.slow
@pytest.mark.long
def test_a_training_that_goes_on_sees_the_same(trained: Path, walks: Path, tmp_path: Path) -> None:
    """Only what is given is otherwise, and that is said."""
    assert "checkpoint's" not in train(walks, checkpoint=trained, out=tmp_path / "on")
    manifest = json.loads((tmp_path / "on" / "train.json").read_text())
    assert {name: manifest["options"][name] for name in UNUSUAL} == UNUSUAL
    assert json.loads((tmp_path / "on/model/config.json").read_text()) == json.loads(
        (trained / "config.json").read_text()
    )
    said = train(walks, checkpoint=trained, out=tmp_path / "less", history=2, frames=16)
    assert said.count("inputs other than the checkpoint's: --history 2 instead of 4\n") == 1
    manifest = json.loads((tmp_path / "less" / "train.json").read_text())
    assert {name: manifest["options"][name] for name in UNUSUAL} == UNUSUAL | {"history": 2}
    config = json.loads((tmp_path / "less/model/config.json").read_text())
    assert (config["num_history"], config["num_frames"], config["wording"]) == (2, 16, "evaluation")


def test_what_a_checkpoint_says_is_taken_where_nothing_is_given(tmp_path: Path) -> None:
    """In training, and in planning of both kinds; what cannot be cut evenly together is refused."""
    said = {"num_frames": 24, "num_history": 6, "num_future_steps": 3, "wording": "evaluation"}
    config = json.loads((ROOT / "agents/checkpoints/streamvln-tiny/config.json").read_text()) | said
    (tmp_path / "config.json").write_text(json.dumps(config))
    source, settled = Source("checkpoint", "c", tmp_path), StreamVLNCheckpoints().settled
    own = {"frames": 24, "history": 6, "future_steps": 3, "image_size": 96}
    asked = StreamVLNTraining(checkpoint="c", out=Path())
    assert settled(source, asked) == replace(asked, **own, wording="evaluation")
    assert settled(source, replace(asked, **UNUSUAL)) == replace(asked, **UNUSUAL)
    assert settled(source, StreamVLNPlanning()) == StreamVLNPlanning(**own)
    assert settled(source, StreamVLNInference()) == StreamVLNInference(image_size=96)
    base = settled(Source("sizes", "streamvln-8b"), asked)
    assert {name: getattr(base, name) for name in asked.BEFORE} == asked.BEFORE
    with pytest.raises(UsageError, match="num_history 5: expected a divisor of num_frames, 24"):
        settled(source, replace(asked, history=5))


@pytest.mark.slow
def test_a_checkpoint_is_evaluated_as_it_was_trained(trained: Path, walks: Path) -> None:
    """Ids and images of every window of training are those that its agent is shown."""
    usual = StreamVLNTraining.BEFORE | {"image_size": PRESETS["streamvln-tiny"].image_size}
    assert not {name for name, value in UNUSUAL.items() if value == usual[name]}
    options = StreamVLNTraining(
        checkpoint="", out=Path(), trajectories=walks.parent, sets=("R2R",), augment=False, **UNUSUAL
    )
    trains = StreamVLNTrains()
    content: Any = trains.read_set(walks, options)
    (samples,) = trains.samples([content], load(trained), trained, options, None)
    walk = content.trajectories[0]
    with closing(StreamVLNAgent(StreamVLNOptions(checkpoint=trained, device="cpu"))) as agent:
        shown = {
            name: agent.identity[name] for name in ("num_frames", "num_history", "num_future_steps", "image_size")
        }
        assert shown == {"num_frames": 16, "num_history": 4, "num_future_steps": 2, "image_size": 48}
        asked = Recording(agent, walk.actions)
        agent._model = asked  # type: ignore[assignment]  # it is not overruled here
        agent.reset(0, replace(make_episode(1), instruction=walk.instructions[0]), seed=3)
        rng = random.Random(3)  # of the phrases of a whole episode
        for step, file in enumerate(walk.frames()):
            with Image.open(file) as image:
                rgb = np.asarray(image.convert("RGB"))
            (action,) = agent.act({0: Observation(walk.instructions[0], step, rgb=rgb)}).values()
            assert action is walk.actions[step]
    assert [len(window) for window in asked.windows] == [8, 8, 4]
    for number, window in enumerate(asked.windows):
        sample = samples.sample(number, rng)
        ids = [id_ for turn in window for id_ in turn.input_ids]
        assert sample.input_ids[: len(ids)] == ids
        assert max(sample.labels[: len(window[0].input_ids)]) < 0, "the answer begins where the question ends"
        assert torch.equal(sample.images, torch.cat([turn.images for turn in window]))
    assert sample.input_ids == ids + asked.answer


@pytest.mark.slow
def test_what_is_usual_is_not_named_in_the_identity() -> None:
    """Runs of before, whose identities do not name it, go on and are compared."""
    with closing(StreamVLNAgent(StreamVLNOptions(checkpoint=Path("streamvln-tiny"), device="cpu"))) as agent:
        assert not {"num_future_steps", "image_size"} & agent.identity.keys()
