"""VLN-CE's CMA and Seq2Seq as agents: checkpoints, what they are shown, and the loop over episodes."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from agents.common.batch_times import measured
from agents.common.checkpoints.placement import place
from agents.common.decoders.batches import Batches
from agents.common.prompts.words import TextFeatures, Words
from agents.common.sight.instead import GRAY, Instead
from agents.common.sight.options import FramesOptions, Views
from agents.common.sight.rgbd import check_depth, frame_files, frames, read_frame, share_of
from agents.common.threads import Threads
from agents.vlnce.checkpoint import load
from agents.vlnce.network import Decisions, Policy, Steps
from agents.vlnce.options import FAMILY, FEATURES, PTH, Config, Kind, VLNCEOptions
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Answer, Conventions, Episode, Observation, Scalar, Sensor
from vlnbench.training.family.sources import find_checkpoint, shipped
from vlnbench.util.hub import spoken


class Sight(Instead):
    """Frames, with depth, as a network reads them."""

    def __init__(self, options: FramesOptions, views: Views) -> None:
        """Raises UsageError for a folder of walks that is missing, broken, without depth or not wanted."""
        super().__init__(options)
        self._views = views
        for file in self.files:
            check_depth(file, self.walks)

    def of(self, seen: Observation, seed: int) -> tuple[Tensor, Tensor]:
        """RGB, uint8 (H, W, 3), and depth, float32 (h, w) in [0, 1], of an observation in an episode of a seed."""
        if self.kind == "own":
            return frames(seen, self._views)
        if self.kind == "gray":
            size, depth_size = self._views.inputs
            return torch.full((*size, 3), GRAY, dtype=torch.uint8), torch.full(depth_size, 0.5)
        walk, number = self.frame(seen.step, seed)
        rgb, depth = read_frame(*frame_files(walk)[number], self._views)
        return rgb, share_of(depth)


@dataclass(slots=True)
class Running:
    """One episode under way: its encoded instruction, (1, C, words) or (1, C), and what the last step left."""

    instruction: Tensor
    seed: int
    rng: random.Random
    state: Tensor
    previous: int = 0
    begun: bool = False
    scores: Tensor | None = None
    """The logits of the last step, until they are told."""


class EpisodeLoop:
    """Drives many episodes with one network: a recurrent state per slot, `max_batch` slots in one forward pass at
    most. `words`: what instructions are to the network."""

    def __init__(
        self, policy: Policy, config: Config, sight: Sight, max_batch: int, words: Words | TextFeatures
    ) -> None:
        self._policy: Policy | None = policy
        self._config, self._sight, self._batches, self._words = config, sight, Batches(max_batch), words
        self._slots: dict[int, Running] = {}

    @torch.no_grad()
    def reset(self, slot: int, episode: Episode, seed: int) -> None:
        """Begin an episode: its instruction is encoded once."""
        words = torch.from_numpy(self._words.of(episode))
        encoded = self._model.read(words[None].to(self._model.device))
        self._slots[slot] = Running(encoded, seed, random.Random(seed), self._model.new_states(1))

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        """The next action of each slot."""
        pairs = self._batches.run(
            list(observations), lambda some: list(self._act({slot: observations[slot] for slot in some}).items())
        )
        return dict(pairs)

    @torch.no_grad()
    def _act(self, seen: Mapping[int, Observation]) -> dict[int, Action]:
        running = [self._slots[slot] for slot in seen]
        shown = [self._sight.of(each, one.seed) for each, one in zip(seen.values(), running, strict=True)]
        rgb, depth = zip(*shown, strict=True)
        decided = self._decide(running, torch.stack(rgb), torch.stack(depth))
        logits = decided.logits.cpu()
        chosen = self._choose(list(seen), shown, logits)
        for row, (one, action) in enumerate(zip(running, chosen, strict=True)):
            one.state, one.begun, one.previous = decided.states[row : row + 1], True, action
            one.scores = logits[row]
        return {slot: Action(action) for slot, action in zip(seen, chosen, strict=True)}

    def answered(self, slot: int) -> list[Answer]:
        """How likely the network found the action just given, which it does not put into words."""
        running = self._slots[slot]
        scores, running.scores = running.scores, None
        if scores is None:
            return []
        likely = torch.log_softmax(scores.float(), dim=0)[running.previous]
        return [Answer(actions=(Action(running.previous),), images=1, log_probability=float(likely))]

    def _decide(self, running: Sequence[Running], rgb: Tensor, depth: Tensor) -> Decisions:
        """One step of every episode, whose frames are as `Policy.see` takes them."""
        features = self._model.see(rgb.to(self._model.device), depth.to(self._model.device))
        steps = Steps(
            _joined([one.instruction for one in running]),
            *features,
            torch.tensor([one.previous for one in running], device=self._model.device),
            torch.tensor([one.begun for one in running], device=self._model.device),
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

    @property
    def _model(self) -> Policy:
        if self._policy is None:
            raise RuntimeError("the agent is closed")
        return self._policy


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


NAMES: dict[Kind, str] = {"cma": "vlnce-cma", "seq2seq": "vlnce-seq2seq"}
REHEARSED = 30
"""Words of the instructions with which the network is timed."""


class VLNCEAgent(EpisodeLoop):
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
        placement = place(options.device, "float32", "eager", torch.float32, options.deterministic)
        path = options.checkpoint
        path = path if path.suffix == PTH else find_checkpoint(path, FAMILY)
        loaded = load(path)
        config = loaded.config
        if self.kind not in (None, config.network.kind):
            raise UsageError(f"{options.checkpoint} holds another model: use --agent {NAMES[config.network.kind]}")
        words = _words(options, config)
        sight = Sight(options, config.views)
        super().__init__(loaded.policy.to(placement.device), config, sight, options.batch, words)
        self.files = (*loaded.files, *sight.files)
        self.expects = config.expects
        self.identity = {
            "checkpoint": loaded.sha256,
            "device": placement.device.type,
            **placement.on_gpu(options),
            "actions": "sampled" if config.samples else "greedy",
            "torch": torch.__version__,
            **sight.identity,
        }
        self._threads = Threads(placement.device, self._rehearse)
        timed = placement.device.type == "cpu" and options.max_batch is None
        self.batch_seconds: Mapping[int, float] = measured(self._rehearse) if timed else {}
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

    def _decide(self, running: Sequence[Running], rgb: Tensor, depth: Tensor) -> Decisions:
        with self._threads.acting(len(running)):
            return super()._decide(running, rgb, depth)

    @torch.no_grad()
    def _rehearse(self, episodes: int = 1) -> None:
        """Decide on a step of so many made-up episodes, in which all is black."""
        channels, grid = self._model.net.instruction_encoder.output_size, self._config.network.kind == "cma"
        instruction = torch.zeros(1, channels, *([REHEARSED] if grid else []), device=self._model.device)
        one = Running(instruction, 0, random.Random(0), self._model.new_states(1))
        frame, depth_frame = self._config.views.inputs
        black = torch.zeros(episodes, *frame, 3, dtype=torch.uint8), torch.zeros(episodes, *depth_frame)
        super()._decide([one] * episodes, *black)

    def close(self) -> None:
        """Forget all episodes and give the model's memory back to the device."""
        super().close()
        self._threads.close()
        torch.cuda.empty_cache()


class _ShippedAgent(VLNCEAgent):
    """A small network that comes with vlnbench."""

    checkpoint: str

    def __init__(self, options: VLNCEOptions) -> None:
        if options.checkpoint is not None:
            raise UsageError(f"agent {self.checkpoint!r} has its own checkpoint: use --agent vlnce for another")
        super().__init__(replace(options, checkpoint=shipped()[self.checkpoint]))


class CMATinyAgent(_ShippedAgent):
    """The small CMA."""

    checkpoint = "cma-tiny"


class Seq2SeqTinyAgent(_ShippedAgent):
    """The small Seq2Seq."""

    checkpoint = "seq2seq-tiny"


class CMAAgent(VLNCEAgent):
    """Cross-modal attention."""

    kind: Kind = "cma"


class Seq2SeqAgent(VLNCEAgent):
    """Sequence to sequence."""

    kind: Kind = "seq2seq"


def _words(options: VLNCEOptions, config: Config) -> Words | TextFeatures:
    """What instructions are to the network: RxR's features are read where it reads them."""
    if config.network.reads != FEATURES:
        if options.text_features is not None:
            raise UsageError(f"--text-features: {options.checkpoint} reads tokens of R2R; leave the option out")
        return Words(config.vocabulary, config.network.vocab_size)
    if options.text_features is None:
        raise UsageError(
            f"{options.checkpoint} reads the BERT features of RxR's instructions: name their folder, "
            "RxR_VLNCE_v0/text_features, with --text-features"
        )
    return TextFeatures(options.text_features)
