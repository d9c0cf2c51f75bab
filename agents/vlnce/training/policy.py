"""CMA and Seq2Seq as policies: they act by chance, in simulators or at steps of walks, and remember it all."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from agents.common.decoders.sampling import Draws, Sampler
from agents.vlnce.loop import EpisodeLoop
from agents.vlnce.options import VLNCEOptions
from agents.vlnce.sight import Sight
from agents.vlnce.training.learner import Learner
from agents.vlnce.training.samples import Sample, WalkSamples, WalkSet, collate
from vlnbench.interfaces import Action, Conventions, Episode, Observation, Scalar, Sensor
from vlnbench.training.family.policy import Question, Recorded, Sampling
from vlnbench.training.family.trains import SetContent

ASKED = ("frames", "words", "walk_of", "previous", "weights", "rows")
"""Of a collated batch, what the scores of drawn actions depend on."""
AT_ONCE = 16
"""Episodes that act, and prompts that are answered, side by side at most."""


@dataclass
class _Walk:
    """What is recorded of an episode: the frames seen and what was done there, every action an answer."""

    seed: int
    words: Tensor
    frames: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    actions: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    cut: bool = False

    def recorded(self) -> Recorded:
        """The whole walk is one window, for its state goes from step to step."""
        rgb, depth = (torch.stack(each) for each in zip(*self.frames, strict=True))
        sample = _sample(self.words, (rgb, depth), [0, *self.actions[:-1]], self.actions)
        count = len(self.actions)
        return Recorded((sample,), (count,), tuple(self.chances), count, count, cut=self.cut)


class VLNCEPolicy:
    """A `Policy`; see there. An answer is one action, and there is none that is not in the expected form."""

    def __init__(self, learner: Learner, sampling: Sampling) -> None:
        self.learner, self._sampling = learner, sampling
        self._sampler = Sampler(sampling.temperature, sampling.top_p)
        self._walks: dict[int, _Walk] = {}
        self._done: dict[tuple[str, int], _Walk] = {}

    def renew(self) -> None:
        """The weights are used where they are: only what was recorded goes."""
        self.learner.eval()
        self._walks.clear()
        self._done.clear()

    def agent(self) -> PolicyAgent:
        return PolicyAgent(self)

    def begin(self, slot: int, episode: Episode, seed: int, words: Tensor) -> None:
        """Remember what is done in a slot from now on; words: (L,) int64."""
        self._walks[slot] = self._done[episode.episode_id, seed] = _Walk(seed, words)

    def recorded(self, episode_id: str, seed: int) -> Recorded:
        walk = self._done.pop((episode_id, seed))
        if not walk.actions:
            raise KeyError(episode_id)
        return walk.recorded()

    def is_used_up(self, slot: int) -> bool:
        """Whether the walk has had all answers that it may have; it counts as cut then."""
        walk, cap = self._walks[slot], self._sampling.turn_cap
        walk.cut = cap is not None and len(walk.actions) >= cap
        return walk.cut

    def act(self, slots: Sequence[int], shown: Sequence[tuple[Tensor, Tensor]], logits: Tensor) -> list[int]:
        """Draw the action of each slot by its row of logits (slots, actions); record it with what was shown."""
        walks = [self._walks[slot] for slot in slots]
        seeds = [f"{walk.seed}/{len(walk.actions)}" for walk in walks]
        drawn = self._drawn(slots, seeds, logits)
        for walk, frames, (action, chance) in zip(walks, shown, drawn, strict=True):
            walk.frames.append(frames)
            walk.actions.append(action)
            walk.chances.append(chance)
        return [action for action, _ in drawn]

    def questions(self, sets: Sequence[SetContent]) -> WalkQuestions:
        return WalkQuestions(sets, self.learner)

    def answer(self, prompts: Sequence[Any], seeds: Sequence[int]) -> list[Recorded]:
        asked = list(zip(prompts, seeds, strict=True))
        chunks = (asked[first : first + AT_ONCE] for first in range(0, len(asked), AT_ONCE))
        return [recorded for chunk in chunks for recorded in self._answer(chunk)]

    @torch.no_grad()
    def _answer(self, asked: Sequence[tuple[Sample, int]]) -> list[Recorded]:
        batch = collate([prompt for prompt, _ in asked])
        logits = self.learner(**{name: batch[name] for name in ASKED}, at_labels=True).cpu()
        drawn = self._drawn(range(len(asked)), [f"{seed}/0" for _, seed in asked], logits)
        found = []
        for (prompt, _), (action, chance) in zip(asked, drawn, strict=True):
            labels = prompt.labels.clone()
            labels[0, -1] = action
            sample = replace(prompt, labels=labels)
            found.append(Recorded((sample,), (1,), (chance,), 1, 1, actions=(Action(action),)))
        return found

    def _drawn(self, slots: Sequence[int], seeds: Sequence[str], logits: Tensor) -> list[tuple[int, float]]:
        """An action and its log-probability for each row of logits (rows, actions)."""
        for slot, seed in zip(slots, seeds, strict=True):
            self._sampler.begin(slot, seed)
        rows = self._sampler.draw([Draws(slot, 0, 1) for slot in slots], logits[:, None])
        return [(row[0], self._sampler.end(slot, 1)[0]) for slot, row in zip(slots, rows, strict=True)]


class PolicyAgent(EpisodeLoop):
    """CMA or Seq2Seq in simulators, acting by chance and remembered by its policy."""

    sensors: frozenset[Sensor] = frozenset({"rgb", "depth"})
    privileged = False
    identity: Mapping[str, Scalar] = {}

    def __init__(self, policy: VLNCEPolicy) -> None:
        self._remembers = policy
        config = policy.learner.whole
        self.expects: Conventions = config.expects
        super().__init__(policy.learner, config, Sight(VLNCEOptions(), config.views), AT_ONCE)

    def reset(self, slot: int, episode: Episode, seed: int) -> None:
        self._remembers.begin(slot, episode, seed, torch.from_numpy(self._words(episode)))
        super().reset(slot, episode, seed)

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        """As `EpisodeLoop.act`; a walk that has had all of its answers stops."""
        ended = {slot: Action.STOP for slot in observations if self._remembers.is_used_up(slot)}
        left = {slot: seen for slot, seen in observations.items() if slot not in ended}
        return ended | (super().act(left) if left else {})

    def _choose(self, slots: Sequence[int], shown: Sequence[tuple[Tensor, Tensor]], logits: Tensor) -> list[int]:
        return self._remembers.act(slots, shown, logits)


class WalkQuestions:
    """Walks up to one of their steps, what was done before it and under one of their instructions; a `Questions`.

    Steps that are no examples are not asked.
    """

    def __init__(self, sets: Sequence[SetContent], learner: Learner) -> None:
        self._places: list[tuple[WalkSamples, int]] = []
        for content in sets:
            assert isinstance(content, WalkSet)
            samples = WalkSamples(content, learner.whole, inflection_weight=1.0, known=None)
            asked = [i for i, walk in enumerate(content.walks) if len(walk.strays) < len(walk.actions)]
            self._places += [(samples, index) for index in asked]

    def __len__(self) -> int:
        return len(self._places)

    def question(self, index: int, seed: str) -> Question:
        rng = random.Random(seed)
        samples, walk = self._places[index]
        whole = samples.sample(walk, rng)
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
