"""CMA and Seq2Seq as policies: they act by chance, in simulators or at steps of walks, and remember it all."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from agents.common.decoders.policy import Recorder, SampledActing, Walk, Window
from agents.common.decoders.sampling import Draws
from agents.vlnce.loop import EpisodeLoop
from agents.vlnce.options import VLNCEOptions
from agents.vlnce.sight import Sight
from agents.vlnce.training.learner import Learner
from agents.vlnce.training.samples import Sample, WalkSamples, WalkSet, collate
from vlnbench.interfaces import Action, Conventions, Episode, Sensor
from vlnbench.training.family.policy import Question, Sampling
from vlnbench.training.family.trains import SetContent

ASKED = ("frames", "words", "walk_of", "previous", "weights", "rows")
"""Of a collated batch, what the scores of drawn actions depend on."""
AT_ONCE = 16
"""Episodes that act, and prompts that are answered, side by side at most."""


@dataclass(frozen=True)
class _Step:
    """A step to be decided by its scores (actions,). shown: words and frames, or a prompt."""

    slot: int
    shown: Any
    logits: Tensor


class VLNCEPolicy(Recorder):
    """A `Policy`; see there. An answer is one action, and there is none that is not in the expected form.

    The whole walk is one window, for its state goes from step to step.
    """

    at_once = AT_ONCE

    def __init__(self, learner: Learner, sampling: Sampling) -> None:
        super().__init__(sampling)
        self.learner = learner

    def decoder(self) -> Learner:
        """The weights are used where they are."""
        return self.learner.eval()

    def agent(self) -> PolicyAgent:
        return PolicyAgent(self)

    def run(self, questions: Sequence[_Step]) -> list[list[int]]:
        return self.drawn(self._draw, questions)

    def _draw(self, steps: Sequence[_Step]) -> list[list[int]]:
        logits = torch.stack([step.logits for step in steps])[:, None]
        return self._sampler.draw([Draws(step.slot, 0, 1) for step in steps], logits)

    @torch.no_grad()
    def asked(self, prompts: Mapping[int, Sample]) -> list[_Step]:
        batch = collate(list(prompts.values()))
        logits = self.learner(**{name: batch[name] for name in ASKED}, at_labels=True).cpu()
        return [_Step(*prompt, row) for prompt, row in zip(prompts.items(), logits, strict=True)]

    def take_in(self, walk: Walk, question: _Step) -> None:
        walk.see((), question.shown, opens=not walk.answers)

    def read(self, answer: Sequence[int]) -> tuple[Sequence[Action], bool]:
        return (Action(answer[0]),), True

    def sample(self, window: Window) -> Sample:
        first, actions = window.shown[0], window.labels
        if isinstance(first, Sample):
            labels = first.labels.clone()
            labels[0, -1] = actions[0]
            return replace(first, labels=labels)
        words, rgb, depth = zip(*window.shown, strict=True)
        return _sample(words[0], (torch.stack(rgb), torch.stack(depth)), [0, *actions[:-1]], actions)

    def asks(self, content: SetContent) -> AskedWalks:
        return AskedWalks(content, self.learner)


class PolicyAgent(SampledActing, EpisodeLoop):
    """CMA or Seq2Seq in simulators, acting by chance and remembered by its policy."""

    sensors: frozenset[Sensor] = frozenset({"rgb", "depth"})

    def __init__(self, policy: VLNCEPolicy) -> None:
        self._recorder, self._heard = policy, dict[int, Tensor]()
        config = policy.learner.whole
        self.expects: Conventions = config.expects
        super().__init__(policy.learner, config, Sight(VLNCEOptions(), config.views), AT_ONCE)

    def reset(self, slot: int, episode: Episode, seed: int) -> None:
        self._heard[slot] = torch.from_numpy(self._words(episode))
        super().reset(slot, episode, seed)

    def _choose(self, slots: Sequence[int], shown: Sequence[tuple[Tensor, Tensor]], logits: Tensor) -> list[int]:
        asked = zip(slots, shown, logits, strict=True)
        steps = [_Step(slot, (self._heard[slot], *frames), row) for slot, frames, row in asked]
        return [action for (action,) in self._recorder.run(steps)]


class AskedWalks:
    """Walks up to one of their steps, what was done before it and under one of their instructions; see `Asks`.

    Steps that are no examples are not asked.
    """

    def __init__(self, content: SetContent, learner: Learner) -> None:
        assert isinstance(content, WalkSet)
        self._samples = WalkSamples(content, learner.whole, inflection_weight=1.0, known=None)
        self.places = [i for i, walk in enumerate(content.walks) if len(walk.strays) < len(walk.actions)]

    def question(self, place: int, rng: random.Random) -> Question:
        whole = self._samples.sample(place, rng)
        (weights,), (labels,), (previous,) = whole.weights, whole.labels.tolist(), whole.previous.tolist()
        step = rng.choice(weights.nonzero()[:, 0].tolist())
        words = rng.choice(whole.words)
        assert isinstance(whole.frames, tuple)
        rgb, depth = (each[: step + 1] for each in whole.frames)
        prompt = _sample(words, (rgb, depth), previous[: step + 1], labels[: step + 1], drawn=1)
        return Question(prompt, (Action(labels[step]),))


def _sample(
    words: Tensor,
    frames: tuple[Tensor, Tensor],
    previous: Sequence[int],
    labels: Sequence[int],
    drawn: int | None = None,
) -> Sample:
    """A walk under one instruction, of whose actions the last `drawn` have been drawn; None: all."""
    weights = torch.ones(1, len(labels))
    if drawn is not None:
        weights[:, :-drawn] = 0
    return Sample(
        words=[words],
        walk_of=torch.zeros(1, dtype=torch.long),
        frames=frames,
        rows=torch.arange(len(labels))[None],
        previous=torch.tensor(previous)[None],
        labels=torch.tensor(labels)[None],
        weights=weights,
        progress=torch.zeros_like(weights),
    )
