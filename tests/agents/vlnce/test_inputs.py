"""What a network was trained to see is in its checkpoint: its agent shows it the same."""

from __future__ import annotations

import random
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from agents.common.prompts.words import TOKENS_PER_INSTRUCTION
from agents.common.sight.options import Views
from agents.vlnce.agent import VLNCEAgent
from agents.vlnce.checkpoint import read, save_folder
from agents.vlnce.network import Policy, Steps
from agents.vlnce.options import FAMILY, PRESETS, VLNCEOptions, VLNCETraining
from tests.agents.vlnce.walks import write_walks
from tests.fakes import make_episode
from tests.families import Whole
from tests.training.driver import run_all
from vlnbench.interfaces import Conventions, Observation

SIZE = (60, 80)
USUAL = PRESETS["cma-tiny"]
WORDS = ("go", "to", "the", "red", "chair", "number", "0", ".")
UNUSUAL: dict[str, dict[str, Any]] = {
    "halved, own words": {
        "views": Views(SIZE, SIZE, (0.5, 5.0), halved=True),
        "network": replace(USUAL.network, vocab_size=len(WORDS) + 2),
        "vocabulary": WORDS,
    },
    "resized and cut, R2R's tokens": {
        "views": Views(SIZE, SIZE, (0.25, 7.0), shortest_edge=40, rgb_crop=(32, 36), depth_crop=(36, 32)),
        "network": replace(USUAL.network, kind="seq2seq", bidirectional=False, normalize_rgb=True),
    },
}
"""Checkpoints whose networks see and read otherwise than those that are made here."""


class Recorded:
    """What a network is given: frames, depth, words without what fills them up, and the action before."""

    def __init__(self, policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rgb, self.depth, self.words, self.previous = (list[Tensor]() for _ in range(4))
        see, decide, encode = policy.see, policy.decide, policy.read

        def seen(rgb: Tensor, depth: Tensor) -> tuple[Tensor, Tensor]:
            self.rgb += rgb
            self.depth += depth
            return see(rgb, depth)

        def read(words: Tensor) -> Tensor:
            self.words += [row[row != 0] for row in words]
            return encode(words)

        def decided(steps: Steps, states: Tensor) -> Any:
            self.previous += steps.previous_index
            return decide(steps, states)

        for name, instead in (("see", seen), ("read", read), ("decide", decided)):
            monkeypatch.setattr(policy, name, instead)


@pytest.mark.slow
@pytest.mark.parametrize("unusual", UNUSUAL.values(), ids=UNUSUAL)
def test_a_checkpoint_is_evaluated_as_it_was_trained(
    unusual: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every tensor that the network has of a walk when it is trained, it has of it as an agent."""
    text, tokens = "Go to the red chair number 0.", [3, 4, 5]
    sets = write_walks(tmp_path / "sets", "R2R", size=SIZE, instructions=[text], tokens=[tokens])
    config = replace(USUAL, expects=Conventions(), **unusual)
    save_folder(Policy(config.network), config, tmp_path / "base")
    chosen: dict[str, Any] = {"trajectories": sets, "out": tmp_path / "run", "steps": 2, "batch": 1, "workers": 0}
    run_all([{"family": "vlnce", "checkpoint": str(tmp_path / "base"), "sets": ["R2R"], **chosen}])
    trained = tmp_path / "run/model"
    assert read(trained).views == unusual["views"] != USUAL.views
    family, options = Whole(FAMILY), VLNCETraining(checkpoint=str(trained), sets=("R2R",), **chosen)
    content = family.read_set(sets / "R2R", options)
    learner = family.load(trained, options, family.placement(options, torch.device("cpu")))
    (samples,) = family.samples([content], learner, trained, options, None)
    of_training = Recorded(learner, monkeypatch)
    family.loss(learner, family.collate([samples.sample(0, random.Random(0))]))
    (walk, *_), filled = content.walks, (*tokens, *[0] * (TOKENS_PER_INSTRUCTION - len(tokens)))
    with closing(VLNCEAgent(VLNCEOptions(checkpoint=trained, device="cpu"))) as agent:
        of_agent = Recorded(agent._model, monkeypatch)
        agent.reset(0, replace(make_episode(1), instruction=text, instruction_tokens=filled), seed=3)
        for step, ((rgb, depth), action) in enumerate(zip(content.files(0), walk.actions, strict=True)):
            colors, meters = np.asarray(Image.open(rgb)), np.asarray(Image.open(depth)) / np.float32(1000)
            agent.act({0: Observation(text, step, rgb=colors, depth=meters)})
            agent.feel(0, action)
    assert len(of_agent.rgb) == len(walk.actions)
    for name, expected in vars(of_training).items():
        found = getattr(of_agent, name)
        assert len(found) == len(expected) > 0
        assert all(map(torch.equal, found, expected)), name
