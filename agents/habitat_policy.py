"""A policy of habitat-baselines or VLN-CE as an agent: whoever has trained one evaluates it with a dozen lines.

Both call policies alike: `policy.act(observations, rnn_states, prev_actions, masks, deterministic=...)`, with a
row for every episode. What comes back differs: VLN-CE's `(actions, rnn_states)`, the four of older
habitat-baselines `(values, actions, log_probs, rnn_states)`, and its later object with `actions` and
`rnn_hidden_states`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from agents.common.checkpoints.placement import place
from agents.common.decoders.batches import Batches
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Conventions, Episode, Observation, Scalar, Sensor
from vlnbench.rollout.agent_options import DeviceOptions


@dataclass(slots=True)
class _Running:
    """One episode under way. state: (layers, size). step: actions so far."""

    tokens: Tensor
    seed: int
    state: Tensor
    previous: int = 0
    step: int = 0


class PolicyAgent:
    """Derive from it, say how large the recurrent state is, and make the policy.

    The policy sees what habitat-baselines shows: `rgb` uint8 (N, height, width, 3), `depth` float32 (N, height,
    width, 1) and `instruction` int64 (N, instruction_length), padded with zeros; `transforms` change that
    dictionary as VLN-CE's observation transforms do. rnn_states are (N, *state_size), prev_actions int64 (N, 1),
    masks bool (N, 1), False at the first step of an episode.

    Class attributes say the rest: `sensors`; `state_size`, recurrent layers and hidden size; `depth_range_m`,
    which becomes 0 to 1, None for meters; `deterministic`, otherwise actions are sampled under the episode's
    seed, one episode at a time.
    """

    sensors: frozenset[Sensor] = frozenset({"rgb", "depth"})
    privileged = False
    expects = Conventions()
    options_type = DeviceOptions
    state_size: tuple[int, int]
    instruction_length = 200
    depth_range_m: tuple[float, float] | None = (0.0, 10.0)
    deterministic = True
    transforms: Sequence[Callable[[dict[str, Tensor]], dict[str, Tensor]]] = ()
    identity: Mapping[str, Scalar]

    def __init__(self, options: DeviceOptions) -> None:
        placement = place(options.device, "float32", "eager", torch.float32, options.deterministic)
        self._device = placement.device
        self._policy: Any = self.make_policy()
        self._batches = Batches(options.batch if self.deterministic else 1)
        if isinstance(self._policy, nn.Module):
            self._policy.to(self._device).eval()
        self._slots: dict[int, _Running] = {}
        self.identity = {
            "weights": _digest(self._policy),
            "device": self._device.type,
            **placement.on_gpu(options),
            "actions": "greedy" if self.deterministic else "sampled",
            "torch": torch.__version__,
        }

    def make_policy(self) -> Any:
        """The policy with its trained weights; anything with `act`. A module is moved to the device."""
        raise NotImplementedError

    def tokens(self, episode: Episode) -> Sequence[int]:
        """The instruction as the policy reads it; those of the dataset unless overridden.

        Raises UsageError where the dataset has none.
        """
        if not episode.instruction_tokens:
            raise UsageError(
                f"agent {type(self).__name__!r}: episodes of this dataset have no instruction_tokens; "
                "override tokens(episode), or use the preprocessed R2R-CE files"
            )
        return episode.instruction_tokens

    def reset(self, slot: int, episode: Episode, seed: int) -> None:
        """Begin an episode with an empty state."""
        padded = torch.zeros(self.instruction_length, dtype=torch.int64)
        words = torch.tensor(list(self.tokens(episode))[: self.instruction_length], dtype=torch.int64)
        padded[: len(words)] = words
        self._slots[slot] = _Running(padded, seed, torch.zeros(self.state_size))

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        """The next action of each slot, `max_batch` slots at once at most."""
        pairs = self._batches.run(
            list(observations), lambda some: list(self._act({slot: observations[slot] for slot in some}).items())
        )
        return dict(pairs)

    @torch.no_grad()
    def _act(self, seen: Mapping[int, Observation]) -> dict[int, Action]:
        running = [self._slots[slot] for slot in seen]
        batch = self._batch(running, list(seen.values()))
        for transform in self.transforms:
            batch = transform(batch)
        states = torch.stack([each.state for each in running]).to(self._device)
        previous = torch.tensor([[each.previous] for each in running], device=self._device)
        masks = torch.tensor([[each.step > 0] for each in running], device=self._device)
        cuda = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices=cuda):
            # Of the episode and its step alone, so that a resumed run draws what the whole one would have drawn.
            torch.manual_seed((running[0].seed * 1_000_003 + running[0].step) % 2**63)
            returned = self._policy.act(batch, states, previous, masks, deterministic=self.deterministic)
        chosen, states = _read(returned)
        actions: dict[int, Action] = {}
        for row, (slot, each) in enumerate(zip(seen, running, strict=True)):
            each.previous, each.state, each.step = int(chosen[row]), states[row].cpu(), each.step + 1
            actions[slot] = Action(each.previous)
        return actions

    def _batch(self, running: Sequence[_Running], seen: Sequence[Observation]) -> dict[str, Tensor]:
        batch = {"instruction": torch.stack([each.tokens for each in running])}
        if "rgb" in self.sensors:
            batch["rgb"] = torch.from_numpy(np.stack([_present(each.rgb) for each in seen]))
        if "depth" in self.sensors:
            depth = torch.from_numpy(np.stack([_present(each.depth) for each in seen]))[..., None]
            if self.depth_range_m is not None:
                near, far = self.depth_range_m
                depth = ((depth - near) / (far - near)).clamp(0.0, 1.0)
            batch["depth"] = depth
        return {name: value.to(self._device) for name, value in batch.items()}

    def feel(self, slot: int, action: Action) -> None:
        """Remember `action` as the previous one."""
        self._slots[slot].previous = int(action)

    def close(self) -> None:
        """Forget all episodes and give the policy's memory back to the device."""
        self._slots.clear()
        self._policy = None


def _present(frame: Any) -> Any:
    assert frame is not None, "the sensor was asked for"
    return frame


def _read(returned: Any) -> tuple[list[int], Tensor]:
    """Actions and states of what a policy returned. Raises TypeError for what is none of the known forms."""
    if hasattr(returned, "rnn_hidden_states"):
        actions, states = returned.actions, returned.rnn_hidden_states
    elif isinstance(returned, tuple) and len(returned) in (2, 4):
        actions, states = returned[len(returned) // 2 - 1], returned[-1]  # the first of two, the second of four
    else:
        raise TypeError(f"policy.act returned {type(returned).__name__}; expected (actions, rnn_states)")
    return [int(each) for each in actions.reshape(-1).tolist()], states


def _digest(policy: Any) -> str:
    """Hash of the names and values of a policy's weights; "none" for one without any."""
    if not isinstance(policy, nn.Module):
        return "none"
    found = hashlib.sha256()
    for name, value in sorted(policy.state_dict().items()):
        found.update(f"{name} {value.dtype} {tuple(value.shape)} ".encode())
        found.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]
