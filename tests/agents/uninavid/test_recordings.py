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
from numpy.typing import NDArray
from torch import Tensor

from agents.common.decoders.generate import Row
from agents.common.decoders.placeholders import IMAGE, MEMORY, lay_out
from agents.common.decoders.sampling import Sampler
from agents.common.remembering import Answers, Question
from agents.common.towers.eva import crop, network_input, pooled
from agents.uninavid import network
from agents.uninavid.agent import UniNaVidAgent, actions_of
from agents.uninavid.network import UniNaVid
from agents.uninavid.options import UniNaVidOptions
from tests.agents.recorded import arrays, run, traces, whole
from tests.agents.streamvln.frames import frame
from tests.agents.uninavid.recordings import TOWER
from tests.fakes import make_episode
from vlnbench.interfaces import Action, Observation

EXACT = 1e-4
"""Tolerance of logits and projected features, as the recordings suggest; 1e-3 of the tower's, which are larger."""


@pytest.fixture(scope="module")
def model(goldens: Path, folder: Path) -> UniNaVid:
    return network.load(folder, vision_tower=goldens / TOWER, attn="eager", trust_pickle=True)


class Asked(Answers):
    """Writes down what is asked, remembered and said, and the logits that it was said by."""

    def __init__(self, answers: Answers) -> None:
        vars(self).update(vars(answers))
        self.calls: dict[int, list[dict[str, Any]]] = {}
        self.scores: dict[int, list[Tensor]] = {}
        chosen = self._decoder._chosen

        def choose(rows: Sequence[Row], logits: Tensor) -> list[list[int]]:
            for row, found in zip(rows, logits, strict=True):
                of_slot = self.scores.setdefault(row.turn.slot, [])
                del of_slot[len(row.output) :]
                of_slot += list(found[: 1 + len(row.guess)])
            return chosen(rows, logits)

        self._decoder._chosen = choose

    def run(self, questions: Sequence[Question]) -> list[list[int]]:
        self.scores.clear()
        answers = super().run(questions)
        for question, answer in zip(questions, answers, strict=True):
            memory = self.memories[question.slot]
            self.calls.setdefault(question.slot, []).append(
                {
                    "ids": question.ids,
                    "frames": len(question.frames),
                    "answer": answer,
                    "weights": list(memory.weights),
                    "window": len(memory.recent),
                    "last": torch.stack(memory.long).flatten()[-64:] if memory.long else None,
                    "tokens": memory.recent[-1],
                    "logits": self.scores[question.slot],
                }
            )
        return answers


def agent_of(goldens: Path, folder: Path, **more: Any) -> UniNaVidAgent:
    options: dict[str, Any] = {"device": "cpu", "temperature": 0.0, "trust_pickle": True, **more}
    return UniNaVidAgent(UniNaVidOptions(checkpoint=folder, vision_tower=goldens / TOWER, **options))


def shown(episode: Any, step: int) -> NDArray[np.uint8]:
    steps = episode["frame_steps"]
    return frame(episode["frame_seed"], episode["frame_episode"], steps[min(step, len(steps) - 1)])


def follow(agent: UniNaVidAgent, recorded: Any) -> dict[int, list[Action]]:
    """The actions of a run's episodes, all at once, each with as many steps as were recorded."""
    episodes = recorded["episodes"]
    taken: dict[int, list[Action]] = {slot: [] for slot in range(len(episodes))}
    for slot, each in enumerate(episodes):
        agent.reset(slot, replace(make_episode(slot), instruction=each["instruction"]), 0)
    while running := [slot for slot, each in enumerate(episodes) if len(taken[slot]) < each["n_steps"]]:
        seen = {
            slot: Observation(
                episodes[slot]["instruction"], len(taken[slot]), rgb=shown(episodes[slot], len(taken[slot]))
            )
            for slot in running
        }
        for slot, action in agent.act(seen).items():
            taken[slot].append(action)
    return taken


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("main", {}),
        ("rotation_stop", {}),
        ("step_limit", {"step_limit": 15}),
        ("odd_answers", {}),
        ("cut_answer", {"max_new_tokens": 1}),
    ],
)
def test_every_recorded_step_is_repeated(goldens: Path, folder: Path, name: str, more: Any) -> None:
    """Ids, answers, texts, actions, sizes of the memory, logits; several episodes at a time."""
    recorded = run(goldens, name)
    agent = agent_of(goldens, folder, **more)
    asked = agent._answers = Asked(agent._answers)
    taken = follow(agent, recorded)
    assert taken == {slot: each["executed_actions"] for slot, each in enumerate(recorded["episodes"])}
    found = [call for slot in sorted(asked.calls) for call in asked.calls[slot]]
    for row, (step, call) in enumerate(zip(recorded["calls"], found, strict=True)):
        ids = [IMAGE if id_ == MEMORY else id_ for id_ in call["ids"] if id_ != IMAGE]
        assert ids == whole(step["input_ids_rle"])
        assert call["answer"] == step["generated_ids"]
        assert agent._prompts.text(call["answer"]) == step["text"]
        assert actions_of(step["text"], 2) == step["parsed_actions"]
        memory = step["memory"]
        assert call["frames"] == step["new_frames"]
        assert call["weights"] == memory["long_weights"]
        assert call["window"] == memory["window_frames"]
        wanted = torch.tensor(step["history_tokens_last"]["first4"])
        torch.testing.assert_close(call["tokens"][:, :4], wanted, atol=EXACT, rtol=0)
        if call["last"] is not None:
            wanted = torch.tensor(memory["long_last_first4"])
            torch.testing.assert_close(call["last"][:4], wanted, atol=EXACT, rtol=0)
        for place, which in ((0, "first"), (len(call["answer"]) - 1, "last")):
            logits = torch.from_numpy(arrays(goldens)[f"{name}/logits_{which}"][row])
            torch.testing.assert_close(call["logits"][place], logits, atol=EXACT, rtol=0)
    assert agent.unreadable == 0


@pytest.mark.slow
@pytest.mark.parametrize(("name", "episode"), [("bad_word", 1), ("empty_answer", 0)])
def test_what_cannot_be_read_has_a_stated_consequence(
    goldens: Path, folder: Path, name: str, episode: int
) -> None:
    """There the published program ends."""
    recorded = run(goldens, name)
    assert recorded["exception"]["episode"] == episode
    each = recorded["episodes"][episode] | {"n_steps": 1}
    for unreadable, action in (("stop", Action.STOP), ("forward", Action.MOVE_FORWARD), ("skip", Action.STOP)):
        agent = agent_of(goldens, folder, unreadable=unreadable)
        assert follow(agent, {"episodes": [each]}) == {0: [action]}
        assert agent.unreadable == 1
        assert agent.remarks == f"1 answers could not be read and counted as {action.name}"


@pytest.mark.slow
def test_all_words_of_a_demonstration_are_read(goldens: Path, folder: Path) -> None:
    """A frame for every call, and all four words of its answer."""
    agent = agent_of(goldens, folder)
    asked = Asked(agent._answers)
    recorded = run(goldens, "offline")
    asked.begin(0, 0)
    for row, step in enumerate(recorded["calls"]):
        each = recorded["episodes"][step["episode"]]
        (number,) = step["new_frame_numbers"]
        seen = crop(frame(each["frame_seed"], each["frame_episode"], number), 224)
        (answer,) = asked.run([Question(0, agent._prompts.question(each["instruction"]), [seen])])
        assert answer == step["generated_ids"]
        words = [action.name.split("_")[-1].lower() for action in actions_of(agent._prompts.text(answer), 4) or ()]
        assert words == step["actions"]
        assert asked.memories[0].weights == step["memory"]["long_weights"]
        logits = torch.from_numpy(arrays(goldens)["offline/logits_first"][row])
        torch.testing.assert_close(asked.calls[0][-1]["logits"][0], logits, atol=EXACT, rtol=0)


def test_features_are_those_that_were_recorded(goldens: Path, model: UniNaVid) -> None:
    for number, each in enumerate(traces(goldens)["vision"]):
        rgb = frame(each["frame_seed"], each["frame_episode"], each["frame_step"])
        assert hashlib.sha256(rgb.tobytes()).hexdigest() == each["sha256_rgb"]
        if number:
            continue
        with torch.no_grad():
            tower = model.eyes(network_input([crop(rgb, 224)]))
            found = {
                "tower": tower,
                "projected_2x2": model.project(pooled(tower, 2)),
                "projected_8x8": model.project(pooled(tower, 8)),
            }
        for name, tensor in found.items():
            wanted = torch.from_numpy(arrays(goldens)[f"vision0/{name}"]).reshape(tensor.shape)
            torch.testing.assert_close(tensor, wanted, atol=1e-3 if name == "tower" else EXACT, rtol=0)


def test_frames_of_all_sizes_are_cropped_as_recorded(goldens: Path) -> None:
    rgb = frame(*(traces(goldens)["vision"][0][name] for name in ("frame_seed", "frame_episode", "frame_step")))
    for each in traces(goldens)["preprocess_sizes"]:
        seen = rgb.transpose(1, 0, 2) if "transposed" in each["camera"] else rgb
        step = 2 if "2nd" in each["camera"] else 4 if "4th" in each["camera"] else 1
        width, height = map(int, each["camera"].split()[0].split("x"))
        seen = np.ascontiguousarray(seen[::step, ::step][:height, :width])
        found = network_input([crop(seen, 224)])[0]
        wanted = torch.tensor(each["per_channel_mean"])
        torch.testing.assert_close(found.mean(dim=(1, 2)), wanted, atol=1e-5, rtol=0, msg=each["camera"])
        torch.testing.assert_close(found[:, 100, 200], torch.tensor(each["at_100_200"]), atol=1e-6, rtol=0)


def test_what_is_drawn_is_drawn_from_as_many_tokens_as_recorded(goldens: Path, model: UniNaVid) -> None:
    """Temperature 0.2, the likeliest 50, of these 60 percent; the numbers of torch's generator are not ours."""
    recorded = run(goldens, "sampled")
    checked = 0
    for row, step in enumerate(recorded["calls"]):
        logits = torch.from_numpy(arrays(goldens)["sampled/logits_first"][row])
        sampler = Sampler(0.2, 0.6, 50)
        drawn = set()
        for seed in range(40):
            sampler.begin(0, str(seed))
            drawn.add(sampler.draw([(0, 0, 1)], logits[None, None])[0][0])  # type: ignore[list-item]
        assert step["generated_ids"][0] in drawn
        assert len(drawn) <= step["kept_candidates"][0]
        checked += len(drawn) == step["kept_candidates"][0]
    assert checked == len(recorded["calls"])


def test_parameters_are_those_of_the_published_network(goldens: Path, model: UniNaVid) -> None:
    names, sizes = (traces(goldens)["training"][f"parameter_{what}"] for what in ("names", "numel"))
    wanted = dict(zip(names, sizes, strict=True))
    assert {name: each.numel() for name, each in model.named_parameters()} == wanted


def test_memory_is_the_same_however_frames_come(goldens: Path, model: UniNaVid) -> None:
    """All 120 frames of an episode, and the tokens that the published code kept."""
    kept = torch.from_numpy(arrays(goldens)["main/ep0_feat_cache"])
    memory = model.memory()
    for tokens in kept:
        memory.add(tokens)
    wanted = torch.from_numpy(arrays(goldens)["main/ep0_long"])
    torch.testing.assert_close(torch.stack(memory.long), wanted, atol=EXACT, rtol=0)
    ids, rows, _ = lay_out([1, MEMORY, 2, IMAGE], memory.chunks(), torch.zeros(64, 64), 9)
    assert len(ids) == 2 + len(rows) + len(memory.chunks()) - 1
