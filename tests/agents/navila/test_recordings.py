"""Agent and network against what the published code did with a tiny checkpoint; needs the recordings."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from agents.common.checkpoints.tokenizer import load_by_file
from agents.common.decoders.turns import Turn
from agents.common.towers.siglip import network_input, resize
from agents.navila import network
from agents.navila.agent import BLACK, EpisodeLoop, NaVILAAgent, Prompts, actions_of, chosen
from agents.navila.network import MARKS, NaVILA
from agents.navila.options import NaVILAInputs, NaVILAOptions
from tests.agents.navila.recordings import frame
from tests.agents.recorded import arrays, run, traces, whole
from tests.fakes import make_episode
from vlnbench.interfaces import Action, Observation

EXACT = 1e-4
"""Tolerance of logits, features and losses, as the recordings suggest."""


@pytest.fixture(scope="module")
def model(goldens: Path) -> NaVILA:
    """With plain attention, as it was recorded."""
    return network.load(goldens / "checkpoint", dtype=torch.float32, attn="eager")


class Asked:
    """Writes down what a decoder is asked and says."""

    def __init__(self, decoder: Any) -> None:
        self._decoder, self.turns, self.answers = decoder, list[Turn](), list[list[int]]()
        self.drop = decoder.drop

    def run(self, turns: Sequence[Turn]) -> list[list[int]]:
        self.turns += turns
        found: list[list[int]] = self._decoder.run(turns)
        self.answers += found
        return found


def follow(agent: EpisodeLoop, recorded: Any) -> dict[int, list[Action]]:
    """The actions of a run's episodes, all at once, each with as many steps as were recorded."""
    episodes = recorded["episodes"]
    taken: dict[int, list[Action]] = {slot: [] for slot in range(len(episodes))}
    for slot, each in enumerate(episodes):
        agent.reset(slot, replace(make_episode(slot), instruction=each["instruction"]), 0)
    while running := [slot for slot, each in enumerate(episodes) if len(taken[slot]) < each["n_steps"]]:
        seen = {}
        for slot in running:
            step, each = len(taken[slot]), episodes[slot]
            rgb = frame(each["frame_seed"], each["frame_episode"], step)
            seen[slot] = Observation(each["instruction"], step, rgb=rgb)
        for slot, action in agent.act(seen).items():
            taken[slot].append(action)
    return taken


@pytest.mark.slow
@pytest.mark.parametrize("name", ["main", "five_frames", "eot_end"])
def test_every_recorded_step_is_repeated(goldens: Path, name: str) -> None:
    """Ids, frames, answers, texts and actions; several episodes at a time."""
    recorded = run(goldens, name)
    frames = recorded["settings"]["num_video_frames"]
    agent = NaVILAAgent(NaVILAOptions(checkpoint=goldens / "checkpoint", device="cpu", history=frames - 1))
    if name == "eot_end":
        head = agent._answers.model.lm_head.weight
        rows = [traces(goldens)["meta"]["special_ids"][each] for each in ("<|eot_id|>", "<|end_of_text|>")]
        with torch.no_grad():
            head[rows] = head[rows[::-1]]
    asked = agent._answers = Asked(agent._answers)
    taken = follow(agent, recorded)
    assert taken == {slot: each["executed_actions"] for slot, each in enumerate(recorded["episodes"])}
    by_slot: dict[int, list[tuple[Turn, list[int]]]] = {}
    for turn, answer in zip(asked.turns, asked.answers, strict=True):
        by_slot.setdefault(turn.slot, []).append((turn, answer))
    found = [pair for slot in sorted(by_slot) for pair in by_slot[slot]]
    for step, (turn, answer) in zip(recorded["steps"], found, strict=True):
        assert turn.input_ids == whole(step["input_ids_rle"])
        assert answer == step["generated_ids"]
        assert agent._prompts.text(answer) == step["text"]
        each = recorded["episodes"][step["episode"]]
        images = [
            np.zeros((512, 512, 3), np.uint8)
            if index == BLACK
            else frame(each["frame_seed"], each["frame_episode"], index)
            for index in step["frame_indices"]
        ]
        assert torch.equal(turn.images, network_input([resize(image, 384) for image in images]))
    assert agent.unreadable == 0


@pytest.mark.slow
def test_logits_are_those_that_were_recorded(goldens: Path, model: NaVILA) -> None:
    recorded, worst = run(goldens, "main"), 0.0
    for step in recorded["steps"][::6]:
        each = recorded["episodes"][step["episode"]]
        images = [
            np.zeros((384, 384, 3), np.uint8)
            if index == BLACK
            else resize(frame(each["frame_seed"], each["frame_episode"], index), 384)
            for index in step["frame_indices"]
        ]
        ids = [*whole(step["input_ids_rle"]), *step["generated_ids"]]
        labels = [-100] * step["input_len"] + step["generated_ids"]
        with torch.no_grad():
            found = model([ids], [network_input(images)], [labels], at_labels=True).logits
        assert found is not None
        for row, name in ((0, "first"), (-1, "last")):
            wanted = torch.from_numpy(arrays(goldens)[f"main/logits_{name}"][step["npz_row"]])
            worst = max(worst, float((found[row] - wanted).abs().max()))
    assert worst < EXACT


def test_features_are_those_that_were_recorded(goldens: Path, model: NaVILA) -> None:
    for number, each in enumerate(traces(goldens)["vision"]):
        if (each["width"], each["height"]) != (512, 512):
            continue
        rgb = frame(each["frame_seed"], each["frame_episode"], each["step"])
        assert hashlib.sha256(rgb.tobytes()).hexdigest() == each["sha256_rgb"]
        with torch.no_grad():
            tower = model.patch_features(network_input([resize(rgb, 384)]))
            projected = model.project(tower)
        if number == 0:
            for name, found in (("vision0_tower", tower), ("vision0_projected", projected)):
                wanted = torch.from_numpy(arrays(goldens)[name])
                torch.testing.assert_close(found[0], wanted, atol=EXACT, rtol=1e-5)  # some are above 20
        for tokens, found in (("tower_tokens", tower), ("projector_tokens", projected)):
            for place, wanted in each[tokens].items():
                torch.testing.assert_close(found[0, int(place), :8], torch.tensor(wanted), atol=EXACT, rtol=0)


def test_frames_are_chosen_as_published(goldens: Path) -> None:
    for each in traces(goldens)["frame_sampling"]:
        assert chosen(each["length"], each["num_frames"]) == each["indices"]


def test_sentences_are_read_as_published(goldens: Path) -> None:
    for name in ("parser_moves", "parser_stops", "queue_over_episode_end"):
        for step in run(goldens, name)["steps"]:
            wanted = [step["first_action"], *step["queued_actions"]]
            found = actions_of(step["forced_text"])
            assert found is not None
            assert found[: len(wanted)] == wanted  # the last answers of an episode are not done to their end
    for each in traces(goldens)["parser_unparsable"]:
        assert actions_of(each["text"]) is None


def test_both_tokenizers_give_the_recorded_ids(goldens: Path) -> None:
    folders = {"with_bos": goldens / "checkpoint" / "llm"}
    for each in traces(goldens)["tokenizer_variants"]:
        folder = folders.get(each["variant"], goldens / "tokenizer_no_bos")
        prompts = Prompts(load_by_file(folder, MARKS, ""), NaVILAInputs(), 8)
        if "prompt" in each:
            text = traces(goldens)["prompts"][each["prompt"]]
            assert prompts._encode(text) == whole(each["input_ids_rle"]), each["variant"]


def test_an_answer_that_was_cut_is_counted_and_has_a_consequence(goldens: Path) -> None:
    """The published code hands None to the environment, which fails."""
    recorded = run(goldens, "cut_output")
    for unreadable, action in (("forward", Action.MOVE_FORWARD), ("stop", Action.STOP)):
        options: dict[str, Any] = {"unreadable": unreadable, "max_new_tokens": 3, "device": "cpu"}
        agent = NaVILAAgent(NaVILAOptions(checkpoint=goldens / "checkpoint", **options))
        assert follow(agent, recorded) == {0: [action]}
        assert agent.unreadable == 1
        assert agent.remarks == f"1 answers could not be read and counted as {action.name}"


def test_parameters_are_those_of_the_published_network(goldens: Path, model: nn.Module) -> None:
    live = {"llm.": "", "vision_tower.vision_tower.": "vision_tower.", "mm_projector.": "mm_projector."}
    wanted = {}
    for name, shape in traces(goldens)["meta"]["parameters"]:
        prefix = next(each for each in live if name.startswith(each))
        wanted[live[prefix] + name.removeprefix(prefix)] = shape
    assert {name: list(each.shape) for name, each in model.named_parameters()} == wanted
