"""The recordings of VLN-CE's policies in ../shared/goldens/vlnce_cma, and how to run a policy along them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agents.vlnce.checkpoint import load
from agents.vlnce.network import Policy, Steps
from agents.vlnce.options import FEATURES, NetworkConfig
from tests.agents.vlnce import formula

LOOSE = 1e-4
HOOKED = (
    *("instruction_encoder", "depth_encoder", "rgb_encoder", "rgb_linear", "depth_linear"),
    *("prev_action_embedding", "state_encoder", "second_state_compress"),
)
"""Modules whose output was recorded, under their names in the network."""
CONFIGS: dict[str, NetworkConfig] = {
    "cma": NetworkConfig(kind="cma", progress_monitor=True),
    "cma_rxr": NetworkConfig(kind="cma", reads=FEATURES, embedding_size=768, num_actions=6),
    "seq2seq": NetworkConfig(kind="seq2seq", bidirectional=False, progress_monitor=True),
    "seq2seq_prev_action": NetworkConfig(kind="seq2seq", bidirectional=False, use_prev_action=True),
}
FED = ("mask", "prev_action_in")
SWITCHES = ("ablate_instruction", "ablate_depth", "ablate_rgb", "normalize_rgb")


@dataclass
class Seen:
    """What a policy computed in one step of a run; `inside` by the names of the recordings."""

    logits: Tensor
    states: Tensor
    inside: dict[str, Tensor] = field(default_factory=dict)
    attention: list[Tensor] = field(default_factory=list)


@dataclass
class Recordings:
    """One folder of recordings. Models and features of frames are made once."""

    folder: Path
    _models: dict[str, Policy] = field(default_factory=dict)
    _features: dict[tuple[str, str], tuple[Tensor, Tensor]] = field(default_factory=dict)

    @cached_property
    def traces(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "traces.json").read_text()))

    @cached_property
    def arrays(self) -> Mapping[str, NDArray[np.float32]]:
        return dict(np.load(self.folder / "traces.npz"))

    def run(self, name: str) -> dict[str, Any]:
        """One recorded run."""
        return next(run for run in self.traces["runs"] if run["name"] == name)

    def steps(self, name: str) -> list[dict[str, Any]]:
        """The steps of a run with all that was fed: a run with the progress monitor was fed as that without."""
        base = self.run(name.removesuffix("_pm"))["steps"]
        return [self._placed(t, base[t]) | recorded for t, recorded in enumerate(self.run(name)["steps"])]

    def _placed(self, t: int, recorded: dict[str, Any]) -> dict[str, Any]:
        """A step's input, with the frames and instructions of its slots where they are not named."""
        slots = self.traces["meta"]["slots"]
        at = [next((name, t - first) for name, first, end in slot if first <= t < end) for slot in slots]
        told = {"frames": [f"{name}/{k}" for name, k in at], "instructions": [name for name, _ in at]}
        return told | {key: recorded[key] for key in ("frames", "instructions", *FED) if key in recorded}

    def model(self, name: str) -> Policy:
        """The policy of a run, by the run's name."""
        base = next(key for key in (*_TINY, *sorted(CONFIGS, key=len, reverse=True)) if name.startswith(key))
        switches = {switch: True for switch in SWITCHES if name.endswith(switch)}
        known = base + "".join(switches)
        if known not in self._models:
            if base in _TINY:
                policy = load(self.folder / "checkpoints" / f"{base}.pth").policy
            else:
                with torch.device("meta"):
                    policy = Policy(replace(CONFIGS[base], **switches))
                formula.fill(policy, self.traces["meta"]["action_bias_overrides"].get(base))
            self._models[known] = policy
        return self._models[known]

    def features(self, name: str, frames: list[str]) -> tuple[Tensor, Tensor]:
        """What a run's frozen encoders make of frames."""
        policy, kind = self.model(name), self._weights_of(name)
        for frame in frames:
            if (kind, frame) not in self._features:
                rgb, depth = torch.from_numpy(formula.rgb(frame)), torch.from_numpy(formula.depth(frame))
                with torch.no_grad():
                    self._features[kind, frame] = policy.see(rgb[None], depth[None])
        rgbs, depths = zip(*(self._features[kind, frame] for frame in frames), strict=True)
        return torch.cat(rgbs), torch.cat(depths)

    def words(self, name: str, instructions: list[str]) -> Tensor:
        """Tokens or features of instructions."""
        if name == "cma_rxr":
            rows = self.traces["rxr_features"]
            return torch.from_numpy(
                np.stack(
                    [formula.rxr_features(key, rows[key]["rows"]) for key in ("r0", "r1")][: len(instructions)]
                )
            )
        table = self.traces["tiny_instructions" if name in _TINY else "instructions"]
        tokens = [table[key] if name in _TINY else table[key]["tokens"] for key in instructions]
        return torch.tensor(tokens)

    @staticmethod
    def _weights_of(name: str) -> str:
        """Runs whose visual encoders have the same weights and outputs."""
        if name in _TINY or name.endswith("normalize_rgb"):
            return name
        return name.partition("_")[0]


_TINY = ("cma_tiny", "seq2seq_tiny")


@torch.no_grad()
def step(policy: Policy, words: Tensor, features: tuple[Tensor, Tensor], recorded: Any, states: Tensor) -> Seen:
    """One step of a policy, fed what was recorded, with what it computed inside."""
    inside: dict[str, Tensor] = {}
    attention: list[Tensor] = []

    def keep(key: str) -> Callable[..., None]:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            inside[key] = output[0] if isinstance(output, tuple) else output

        return hook

    handles = [
        getattr(policy.net, name).register_forward_hook(keep(name)) for name in HOOKED if hasattr(policy.net, name)
    ]
    handles.append(
        policy.action_distribution.register_forward_pre_hook(lambda _, x: inside.update(x_features=x[0]))
    )
    if hasattr(policy.net, "weigh"):
        weigh = type(policy.net).weigh

        def weighed(*arguments: Any) -> Tensor:
            found = weigh(policy.net, *arguments)
            attention.append(found.squeeze(1))
            return found

        policy.net.weigh = weighed  # type: ignore[method-assign, assignment]
    masks = torch.tensor(recorded["mask"], dtype=torch.bool)
    encoded = policy.read(words)
    decided = policy(
        Steps(encoded, *features, torch.tensor(recorded["prev_action_in"]), masks),
        states,
    )
    if hasattr(policy.net, "weigh"):
        del policy.net.weigh
    for handle in handles:
        handle.remove()
    return Seen(decided.logits, decided.states, inside, attention)


def check_summary(found: Tensor, recorded: Mapping[str, Any], what: str) -> None:
    """Compare a tensor of one slot with its recorded shape, mean, deviation and first numbers."""
    assert list(found.shape) == recorded["shape"], what
    assert abs(found.mean().item() - recorded["mean"]) < LOOSE, what
    assert abs(found.std().item() - recorded["std"]) < LOOSE, what
    np.testing.assert_allclose(found.flatten()[:8].numpy(), recorded["first8"], atol=LOOSE, err_msg=what)


def check_step(seen: Seen, recorded: Mapping[str, Any]) -> None:
    """Compare everything that was recorded of a step."""
    np.testing.assert_allclose(seen.logits.numpy(), recorded["logits"], atol=LOOSE)
    assert seen.logits.argmax(dim=1).tolist() == recorded["greedy_action"]
    if "rnn_states_out" not in recorded:
        return
    for slot in range(len(seen.logits)):
        for layer, summary in enumerate(recorded["rnn_states_out"][slot]):
            check_summary(seen.states[slot, layer], summary, f"state {layer} of slot {slot}")
        for name, found in seen.inside.items():
            if name in recorded:
                check_summary(found[slot], recorded[name][slot], f"{name} of slot {slot}")
        for kind, weights in zip(("attn_text", "attn_rgb", "attn_depth"), seen.attention, strict=False):
            summary = recorded[kind][slot]
            assert weights.shape[1] == summary["n_positions"]
            assert weights[slot].argmax().item() == summary["argmax"]
            assert abs(weights[slot].max().item() - summary["max_weight"]) < LOOSE
            entropy = -torch.xlogy(weights[slot], weights[slot]).sum().item()
            assert abs(entropy - summary["entropy"]) < LOOSE
