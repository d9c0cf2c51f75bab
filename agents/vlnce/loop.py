"""The loop of CMA and Seq2Seq over episodes: a recurrent state per slot, all slots in one forward pass."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from agents.vlnce.config import Config
from agents.vlnce.encoders import Steps
from agents.vlnce.policy import Decisions, Policy
from agents.vlnce.sight import Sight
from agents.vlnce.views import TextFeatures, numbered, tokens, word_numbers
from vlnbench.interfaces import Action, Episode, Observation


@dataclass(slots=True)
class Running:
    """One episode under way: its encoded instruction, (1, C, words) or (1, C), and what the last step left."""

    instruction: Tensor
    seed: int
    rng: random.Random
    state: Tensor
    previous: int = 0
    begun: bool = False


class EpisodeLoop:
    """Drives many episodes with one network: a recurrent state per slot, `max_batch` slots in one forward pass at
    most. `texts`: where instructions' features are read, None for networks that read words."""

    def __init__(
        self, policy: Policy, config: Config, sight: Sight, max_batch: int, texts: TextFeatures | None = None
    ) -> None:
        self._policy: Policy | None = policy
        self._config, self._sight, self._max_batch, self._texts = config, sight, max_batch, texts
        self._slots: dict[int, Running] = {}
        self._numbers = word_numbers(config.vocabulary)

    @torch.no_grad()
    def reset(self, slot: int, episode: Episode, seed: int) -> None:
        """Begin an episode: its instruction is encoded once."""
        words = torch.from_numpy(self._words(episode))
        encoded = self._model.read(words[None].to(self._device))
        self._slots[slot] = Running(encoded, seed, random.Random(seed), self._model.new_states(1))

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        """The next action of each slot."""
        slots, actions = list(observations), dict[int, Action]()
        for first in range(0, len(slots), self._max_batch):
            batch = slots[first : first + self._max_batch]
            actions |= self._act({slot: observations[slot] for slot in batch})
        return actions

    @torch.no_grad()
    def _act(self, seen: Mapping[int, Observation]) -> dict[int, Action]:
        running = [self._slots[slot] for slot in seen]
        shown = [self._sight.of(each, one.seed) for each, one in zip(seen.values(), running, strict=True)]
        rgb, depth = zip(*shown, strict=True)
        decided = self._decide(running, torch.stack(rgb), torch.stack(depth))
        chosen = self._choose(list(seen), shown, decided.logits.cpu())
        for row, (one, action) in enumerate(zip(running, chosen, strict=True)):
            one.state, one.begun, one.previous = decided.states[row : row + 1], True, action
        return {slot: Action(action) for slot, action in zip(seen, chosen, strict=True)}

    def _decide(self, running: Sequence[Running], rgb: Tensor, depth: Tensor) -> Decisions:
        """One step of every episode, whose frames are as `Policy.see` takes them."""
        features = self._model.see(rgb.to(self._device), depth.to(self._device))
        steps = Steps(
            _joined([one.instruction for one in running]),
            *features,
            torch.tensor([one.previous for one in running], device=self._device),
            torch.tensor([one.begun for one in running], device=self._device),
        )
        return self._model.decide(steps, torch.cat([one.state for one in running]))

    def _choose(self, slots: Sequence[int], shown: Sequence[tuple[Tensor, Tensor]], logits: Tensor) -> list[int]:
        """The action of each slot by its row of logits (slots, actions); shown: what the network saw."""
        if not self._config.samples:
            return [int(row.argmax()) for row in logits]
        return [_drawn(row, self._slots[slot].rng) for slot, row in zip(slots, logits, strict=True)]

    def feel(self, slot: int, action: Action) -> None:
        """Remember `action` as the previous one."""
        self._slots[slot].previous = int(action)

    def close(self) -> None:
        """Forget all episodes and let go of the network."""
        self._slots.clear()
        self._policy = None

    def _words(self, episode: Episode) -> NDArray[Any]:
        """An instruction as the network reads it."""
        if self._texts is not None:
            return self._texts.of(episode)
        if self._numbers:
            return numbered(episode.instruction, self._numbers)
        return tokens(episode, self._config.network.vocab_size)

    @property
    def _model(self) -> Policy:
        if self._policy is None:
            raise RuntimeError("the agent is closed")
        return self._policy

    @property
    def _device(self) -> torch.device:
        return self._model.action_distribution.linear.weight.device


def _joined(instructions: Sequence[Tensor]) -> Tensor:
    """Encoded instructions in one tensor, with zeros behind the shorter ones."""
    if instructions[0].dim() == 2:
        return torch.cat(list(instructions))
    longest = max(one.shape[2] for one in instructions)
    return torch.cat([functional.pad(one, (0, longest - one.shape[2])) for one in instructions])


def _drawn(logits: Tensor, rng: random.Random) -> int:
    """An action with the probability that the logits give it."""
    log_probabilities = torch.softmax(logits.double(), dim=0).tolist()
    return rng.choices(range(len(log_probabilities)), log_probabilities)[0]
