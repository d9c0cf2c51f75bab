"""VLN-CE's CMA and Seq2Seq as agents: a recurrent state per slot, all slots in one forward pass."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from agents.common.paces import measured
from agents.common.placement import place
from agents.common.threads import Threads
from agents.vlnce.config import FEATURES, Kind
from agents.vlnce.encoders import Steps
from agents.vlnce.folder import folder_files, load_folder
from agents.vlnce.options import PTH, VLNCEOptions
from agents.vlnce.policy import Decisions, Policy
from agents.vlnce.pth.checkpoint import Loaded, load
from agents.vlnce.sight import Sight
from agents.vlnce.spec import FAMILY
from agents.vlnce.views import TextFeatures, numbered, tokens, word_numbers
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Conventions, Episode, Observation, Scalar, Sensor
from vlnbench.training.sources import find_checkpoint, shipped
from vlnbench.util.hub import spoken

NAMES: dict[Kind, str] = {"cma": "vlnce-cma", "seq2seq": "vlnce-seq2seq"}
REHEARSED = 30
"""Words of the instructions with which the network is timed."""


@dataclass(slots=True)
class _Running:
    """One episode under way: its encoded instruction, (1, C, words) or (1, C), and what the last step left."""

    instruction: Tensor
    seed: int
    rng: random.Random
    state: Tensor
    previous: int = 0
    begun: bool = False


class VLNCEAgent:
    """A checkpoint: greedy, or sampling with the episode's seed where it says so.

    kind: the only one that is taken, None for both.
    """

    kind: Kind | None = None
    sensors: frozenset[Sensor] = frozenset({"rgb", "depth"})
    privileged = False
    options_type = VLNCEOptions
    expects: Conventions
    identity: Mapping[str, Scalar]

    def __init__(self, options: VLNCEOptions) -> None:
        """Load the checkpoint of `options`. Raises UsageError if that cannot be done as they say."""
        if options.checkpoint is None:
            name = "vlnce" if self.kind is None else NAMES[self.kind]
            raise UsageError(
                f"agent {name!r} needs a trained model: name its file (.pth) or folder with --checkpoint"
            )
        placement = place(options.device, "float32", "eager", torch.float32)
        path = options.checkpoint
        path = path if path.suffix == PTH else find_checkpoint(path, FAMILY)
        loaded = load(path) if path.suffix == PTH else Loaded(*load_folder(path), folder_files(path))
        config = loaded.config
        if self.kind not in (None, config.network.kind):
            raise UsageError(f"{options.checkpoint} holds another model: use --agent {NAMES[config.network.kind]}")
        self._texts = _texts(options, config.network.reads == FEATURES)
        self._policy: Policy | None = loaded.policy.to(placement.device)
        self._device, self._config, self._max_batch = placement.device, config, options.batch
        self._slots: dict[int, _Running] = {}
        self._sight = Sight(options, config.views)
        self.files = (*loaded.files, *self._sight.files)
        self.expects = config.expects
        self.identity = {
            "checkpoint": loaded.sha256,
            "device": placement.device.type,
            "actions": "sampled" if config.samples else "greedy",
            "torch": torch.__version__,
            **self._sight.identity,
        }
        self._numbers = word_numbers(config.vocabulary)
        self._threads = Threads(placement.device, self._rehearse)
        timed = placement.device.type == "cpu" and options.max_batch is None
        self.paces: Mapping[int, float] = measured(self._rehearse) if timed else {}
        count = sum(parameter.numel() for parameter in loaded.policy.parameters())
        self.description = "\n".join(
            (
                f"checkpoint {spoken(path)}: {config.network.kind}, {count / 1e6:,.1f} M parameters, "
                f"{config.network.num_actions} actions, {self.identity['actions']}; float32 on {placement.device}",
                *self._threads.description,
            )
        )

    @property
    def remarks(self) -> str:
        """What a reader of the results should know of the threads; empty if nothing."""
        return "; ".join(self._threads.remarks)

    @torch.no_grad()
    def reset(self, slot: int, episode: Episode, seed: int) -> None:
        """Begin an episode: its instruction is encoded once."""
        if self._texts is not None:
            words: NDArray[Any] = self._texts.of(episode)
        elif self._numbers:
            words = numbered(episode.instruction, self._numbers)
        else:
            words = tokens(episode, self._config.network.vocab_size)
        encoded = self._model.read(torch.from_numpy(words)[None].to(self._device))
        self._slots[slot] = _Running(encoded, seed, random.Random(seed), self._model.new_states(1))

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        """The next action of each slot, `max_batch` slots in one forward pass at most."""
        slots, actions = list(observations), dict[int, Action]()
        for first in range(0, len(slots), self._max_batch):
            batch = slots[first : first + self._max_batch]
            actions |= self._act(
                [self._slots[slot] for slot in batch], {slot: observations[slot] for slot in batch}
            )
        return actions

    @torch.no_grad()
    def _act(self, running: Sequence[_Running], seen: Mapping[int, Observation]) -> dict[int, Action]:
        shown = [self._sight.of(each, one.seed) for each, one in zip(seen.values(), running, strict=True)]
        rgb, depth = zip(*shown, strict=True)
        with self._threads.acting(len(running)):
            decided = self._decide(running, torch.stack(rgb), torch.stack(depth))
        actions: dict[int, Action] = {}
        for row, (slot, one, logits) in enumerate(zip(seen, running, decided.logits.cpu(), strict=True)):
            one.state, one.begun = decided.states[row : row + 1], True
            one.previous = _drawn(logits, one.rng) if self._config.samples else int(logits.argmax())
            actions[slot] = Action(one.previous)
        return actions

    def _decide(self, running: Sequence[_Running], rgb: Tensor, depth: Tensor) -> Decisions:
        """One step of every episode, whose frames are as `Policy.see` takes them."""
        features = self._model.see(rgb.to(self._device), depth.to(self._device))
        steps = Steps(
            _joined([one.instruction for one in running]),
            torch.arange(len(running), device=self._device),
            *features,
            torch.tensor([one.previous for one in running], device=self._device),
            torch.tensor([one.begun for one in running], device=self._device),
        )
        decisions: Decisions = self._model(steps, torch.cat([one.state for one in running]))
        return decisions

    @torch.no_grad()
    def _rehearse(self, episodes: int = 1) -> None:
        """Decide on a step of so many made-up episodes, in which all is black."""
        channels, grid = self._model.net.instruction_encoder.output_size, self._config.network.kind == "cma"
        instruction = torch.zeros(1, channels, *([REHEARSED] if grid else []), device=self._device)
        one = _Running(instruction, 0, random.Random(0), self._model.new_states(1))
        frame, depth_frame = self._config.views.inputs
        black = torch.zeros(episodes, *frame, 3, dtype=torch.uint8), torch.zeros(episodes, *depth_frame)
        self._decide([one] * episodes, *black)

    def feel(self, slot: int, action: Action) -> None:
        """Remember `action` as the previous one."""
        self._slots[slot].previous = int(action)

    def close(self) -> None:
        """Forget all episodes and give the model's memory back to the device."""
        self._slots.clear()
        self._policy = None
        self._threads.close()
        torch.cuda.empty_cache()

    @property
    def _model(self) -> Policy:
        if self._policy is None:
            raise RuntimeError("the agent is closed")
        return self._policy


class CMATinyAgent(VLNCEAgent):
    """The small CMA that comes with vlnbench."""

    def __init__(self, options: VLNCEOptions) -> None:
        if options.checkpoint is not None:
            raise UsageError("agent 'cma-tiny' has its own checkpoint: use --agent vlnce for another")
        super().__init__(replace(options, checkpoint=shipped()["cma-tiny"]))


class CMAAgent(VLNCEAgent):
    """Cross-modal attention."""

    kind: Kind = "cma"


class Seq2SeqAgent(VLNCEAgent):
    """Sequence to sequence."""

    kind: Kind = "seq2seq"


def _texts(options: VLNCEOptions, rxr: bool) -> TextFeatures | None:
    """Where RxR's features are read, for a checkpoint that reads them."""
    if not rxr:
        if options.text_features is not None:
            raise UsageError(f"--text-features: {options.checkpoint} reads tokens of R2R; leave the option out")
        return None
    if options.text_features is None:
        raise UsageError(
            f"{options.checkpoint} reads the BERT features of RxR's instructions: name their folder, "
            "RxR_VLNCE_v0/text_features, with --text-features"
        )
    return TextFeatures(options.text_features)


def _joined(instructions: Sequence[Tensor]) -> Tensor:
    """Encoded instructions in one tensor, with zeros behind the shorter ones."""
    if instructions[0].dim() == 2:
        return torch.cat(list(instructions))
    longest = max(one.shape[2] for one in instructions)
    return torch.cat([functional.pad(one, (0, longest - one.shape[2])) for one in instructions])


def _drawn(logits: Tensor, rng: random.Random) -> int:
    """An action with the probability that the logits give it."""
    chances = torch.softmax(logits.double(), dim=0).tolist()
    return rng.choices(range(len(chances)), chances)[0]
