"""A family of models as somebody new might write it, wrong in one way each time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from agents.common.decoders.placeholders import IGNORED
from agents.common.inputs import INPUTS
from agents.qwen_vl.agent import QwenVLAgent
from agents.qwen_vl.family import QwenVLCheckpoints, QwenVLTrains
from agents.qwen_vl.options import FAMILY
from vlnbench.interfaces import Action, Observation
from vlnbench.training.family.policy import Policy, Sampling, Scored
from vlnbench.training.family.spec import FamilySpec


class Shifted(QwenVLTrains):
    def collate(self, samples: Sequence[Any]) -> dict[str, Any]:
        return super().collate([replace(each, labels=[*each.labels[1:], IGNORED]) for each in samples])


class LearnsPrompt(QwenVLTrains):
    def collate(self, samples: Sequence[Any]) -> dict[str, Any]:
        return super().collate([replace(each, labels=list(each.input_ids)) for each in samples])


class NextAnswer(QwenVLTrains):
    def samples(self, *given: Any) -> list[Any]:
        return [_Later(each) for each in super().samples(*given)]


class _Later:
    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def sample(self, index: int, rng: Any) -> Any:
        this, following = (self.samples.sample(n % len(self), rng) for n in (index, index + 1))
        prompt = [id_ for id_, label in zip(this.input_ids, this.labels, strict=True) if label == IGNORED]
        answer = [label for label in following.labels if label != IGNORED]
        return replace(this, input_ids=prompt + answer, labels=[IGNORED] * len(prompt) + answer)


class Reversed(QwenVLTrains):
    def collate(self, samples: Sequence[Any]) -> dict[str, Any]:
        return super().collate([replace(each, frames=each.frames.flip(0)) for each in samples])


class BlueFirst(QwenVLTrains):
    def collate(self, samples: Sequence[Any]) -> dict[str, Any]:
        return super().collate([replace(each, frames=each.frames.flip(-1)) for each in samples])


class OtherPrompt(QwenVLTrains):
    def collate(self, samples: Sequence[Any]) -> dict[str, Any]:
        other = [replace(each, input_ids=[each.input_ids[0] + 1, *each.input_ids[1:]]) for each in samples]
        return super().collate(other)


class NoTemperature(QwenVLTrains):
    def policy(self, model: nn.Module, base: Path, options: Any, sampling: Sampling) -> Policy:
        return super().policy(model, base, options, replace(sampling, temperature=1.0))

    def log_probabilities(self, model: Any, batch: Mapping[str, Any], temperature: float) -> Scored:
        return super().log_probabilities(model, batch, 1.0)


class Forgets(QwenVLCheckpoints):
    def save(self, model: nn.Module, folder: Path, base: Path, options: Any) -> None:
        super().save(model, folder, base, options)
        (folder / INPUTS).unlink()


class Hasty(QwenVLAgent):
    """Asks again before it has done all of its answer."""

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        for slot in observations:
            self._slots[slot].queue.clear()
        return super().act(observations)


class Backwards(QwenVLAgent):
    """Takes the newest action for the first."""

    def read(self, answer: Sequence[int]) -> list[Action] | None:
        return (super().read(answer) or [])[::-1] or None


def _with(part: str, kind: type) -> FamilySpec:
    return replace(FAMILY, **{part: f"{__name__}:{kind.__name__}"})


WALK = "test_it_is_asked_in_training_as_when_it_acts"
WRONG = [
    (_with("trains", Shifted), WALK, "from every answer"),
    (_with("trains", LearnsPrompt), WALK, "is the prompt learned, too"),
    (_with("trains", NextAnswer), WALK, "answers of another step"),
    (_with("trains", Reversed), WALK, "from every answer"),
    (_with("trains", BlueFirst), WALK, "from every answer"),
    (_with("trains", OtherPrompt), WALK, "from every answer"),
    (_with("agent", Hasty), WALK, "from every answer"),
    (_with("agent", Backwards), WALK, "answers of another step"),
    (_with("checkpoints", Forgets), "test_it_acts_with_the_inputs_that_it_was_trained_with", "from every answer"),
    (_with("trains", NoTemperature), "test_what_is_drawn_by_chance_is_what_is_learned_from", "temperature"),
]
"""Families, the tests that find them, and what these say."""
