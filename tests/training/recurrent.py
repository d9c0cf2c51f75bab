"""A family of models as another distribution would bring it: recurrent, no language model, RGB or depth."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from agents.base import EpisodeAgent
from agents.common.sets.trajectories import Trajectory, read_trajectories
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Episode, Observation
from vlnbench.rollout.agent_options import CheckpointOptions
from vlnbench.training.family.checkpoints import Checkpoints, Placement, Source
from vlnbench.training.family.plans import Plans, Probe
from vlnbench.training.family.spec import FamilySpec
from vlnbench.training.family.trains import Known, PartRule, Samples, Stretches, Trains
from vlnbench.training.options import PlanOptions, StepOptions, TrainOptions
from vlnbench.util.bounds import Count

PARTS = ("reader", "eyes", "memory", "head")
SIDE, WORDS = 8, 32
WIDTHS = {"recurrent-small": 16}
Sight = Literal["rgb", "depth"]


@dataclass(frozen=True, kw_only=True)
class RecurrentStep(StepOptions):
    PARTS: ClassVar[tuple[str, ...]] = PARTS

    tunable_parts: tuple[str, ...] = PARTS
    """Parts that are trained."""
    gradient_checkpointing: bool = False
    """Not possible here."""
    length: Count = 6
    """Steps through which the gradient flows."""

    def check(self, world_size: int = 1) -> None:
        super().check(world_size)
        if self.gradient_checkpointing:
            raise UsageError("--gradient-checkpointing: a recurrent policy has no blocks; leave it out")


@dataclass(frozen=True, kw_only=True)
class RecurrentTraining(RecurrentStep, TrainOptions):
    """Training of a recurrent policy."""

    RATES: ClassVar[Mapping[str, str]] = {"memory": "memory_lr"}

    memory_lr: float | None = None
    """Learning rate of the memory."""
    sight: Sight = "rgb"
    """What it sees."""


@dataclass(frozen=True, kw_only=True)
class RecurrentPlanning(RecurrentStep, PlanOptions):
    """Planning of a recurrent policy."""


class Policy(nn.Module):
    """Frames (B, T, 1, SIDE, SIDE), words (B, WORDS) and previous actions (B, T) to scores (B, T, 4)."""

    def __init__(self, width: int, sight: Sight) -> None:
        super().__init__()
        self.width, self.sight = width, sight
        self.reader = nn.Linear(WORDS, width)
        self.eyes = nn.Sequential(nn.Flatten(2), nn.Linear(SIDE * SIDE, width), nn.Tanh())
        self.memory = nn.ModuleDict({"fresh": nn.Linear(3 * width, width), "kept": nn.Linear(width, width)})
        self.head = nn.Linear(width, 4)
        self.register_parameter("unused", nn.Parameter(torch.zeros(3)))

    def forward(self, frames: Tensor, words: Tensor, previous: Tensor, state: Tensor | None = None) -> Any:
        text = self.reader(words)[:, None].expand(-1, frames.shape[1], -1)
        done = functional.one_hot(previous + 1, self.width).to(text.dtype)
        inputs = self.memory["fresh"](torch.cat([self.eyes(frames), text, done], dim=-1))
        state = torch.zeros_like(inputs[:, 0]) if state is None else state
        states = []
        for step in range(frames.shape[1]):
            state = torch.tanh(inputs[:, step] + self.memory["kept"](state))
            states.append(state)
        return self.head(torch.stack(states, dim=1)), state


def words_of(text: str) -> Tensor:
    """How often which word occurs, by hash."""
    counts = torch.zeros(WORDS)
    for word in text.lower().split():
        counts[zlib.crc32(word.encode()) % WORDS] += 1
    return counts


def small(image: Any) -> Tensor:
    """A picture or depth map as (1, SIDE, SIDE)."""
    picture = Image.fromarray(np.asarray(image)).convert("L").resize((SIDE, SIDE))
    return torch.from_numpy(np.asarray(picture, dtype=np.float32) / 255)[None]


@dataclass(frozen=True)
class RecurrentSet:
    file: Path
    trajectories: tuple[Trajectory, ...]
    cut: int

    @property
    def windows(self) -> int:
        return len(self.keys)

    @property
    def keys(self) -> list[tuple[int, int, int]]:
        """Trajectory, instruction and first step of every window."""
        return [
            (number, instruction, start)
            for number, each in enumerate(self.trajectories)
            for instruction in range(len(each.instructions))
            for start in range(0, len(each.actions), self.cut)
        ]

    @property
    def counts(self) -> Mapping[str, int]:
        return {"walks": len(self.trajectories)}

    def texts(self) -> Iterator[str]:
        for each in self.trajectories:
            yield from each.instructions

    def lengths(self) -> list[tuple[int, ...]]:
        return [(min(self.cut, len(self.trajectories[n].actions) - start),) for n, _, start in self.keys]


@dataclass(frozen=True)
class Windows:
    content: RecurrentSet
    sight: Sight

    def __len__(self) -> int:
        return self.content.windows

    def sample(self, index: int, rng: random.Random) -> dict[str, Tensor]:
        number, instruction, start = self.content.keys[index]
        walk = self.content.trajectories[number]
        steps = range(start, min(start + self.content.cut, len(walk.actions)))
        files = walk.frames()
        paths = [files[i] if self.sight == "rgb" else files[i].parents[1] / f"depth/{i:03d}.png" for i in steps]
        actions = torch.tensor([int(action) for action in walk.actions])
        return {
            "frames": torch.stack([small(Image.open(path)) for path in paths]),
            "words": words_of(walk.instructions[instruction]),
            "previous": torch.cat([torch.tensor([-1]), actions])[steps.start : steps.stop],
            "labels": actions[steps.start : steps.stop],
        }


class RecurrentCheckpoints(Checkpoints):
    def config(self, source: Source, options: Any) -> Any:
        if source.path is None:
            return WIDTHS[source.name], getattr(options, "sight", "rgb")
        found = json.loads((source.path / "recurrent.json").read_text())
        return found["width"], found["sight"]

    def content_hash(self, path: Path, options: Any) -> str:
        files = (path / "recurrent.json", path / "weights.safetensors")
        return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()

    def create(self, preset: str, folder: Path, texts: Iterable[str], seed: int) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            write(Policy(WIDTHS[preset], "rgb"), folder)

    def placement(self, options: Any, device: torch.device) -> Placement:
        return Placement(torch.float32, {})

    def load(self, path: Path, options: Any, placement: Placement) -> Policy:
        model = Policy(self.config(Source("checkpoint", str(path), path), options)[0], options.sight)
        model.load_state_dict(load_file(path / "weights.safetensors"))
        return model

    def shapes(self, model: nn.Module) -> nn.Module:
        assert isinstance(model, Policy)
        with torch.device("meta"):
            return Policy(model.width, model.sight)

    def save(self, model: nn.Module, folder: Path, base: Path, options: Any) -> None:
        assert isinstance(model, Policy)
        write(model, folder)


class RecurrentTrains(Trains):
    def parts(self, model: nn.Module, options: Any) -> Sequence[PartRule]:
        return [PartRule("unused", "head", trains="never"), *(PartRule(part, part) for part in PARTS)]

    def read_set(self, folder: Path, options: Any) -> RecurrentSet:
        return RecurrentSet(folder / "annotations.json", tuple(read_trajectories(folder)), options.length)

    def samples(
        self, sets: Sequence[Any], model: nn.Module, base: Path, options: Any, known: Known | None
    ) -> list[Samples]:
        return [Windows(content, options.sight) for content in sets]

    def collate(self, samples: Sequence[Any]) -> dict[str, Any]:
        padding = {"labels": -100}
        return {
            name: torch.stack([each[name] for each in samples])
            if name == "words"
            else nn.utils.rnn.pad_sequence([each[name] for each in samples], True, padding.get(name, 0))
            for name in samples[0]
        }

    def loss(self, model: Any, batch: Mapping[str, Any]) -> Tensor:
        scores, _ = model(batch["frames"], batch["words"], batch["previous"])
        return functional.cross_entropy(scores.flatten(0, 1).float(), batch["labels"].flatten())

    def stretches(self, model: nn.Module, cached: bool) -> Stretches:
        return Stretches(("seeing", "remembering"), model.get_submodule("eyes"), model.get_submodule("eyes"))


class RecurrentPlans(Plans):
    def build(self, config: Any, options: Any) -> nn.Module:
        return Policy(*config)

    def probe(self, config: Any, options: Any, device: str) -> Probe:
        shape = (options.batch, options.length)
        batch = {
            "frames": torch.zeros(*shape, 1, SIDE, SIDE, device=device),
            "words": torch.zeros(options.batch, WORDS, device=device),
            "previous": torch.zeros(shape, dtype=torch.long),
            "labels": torch.zeros(shape, dtype=torch.long),
        }
        return Probe(batch, tokens=options.length, supervised=options.length, width=4)


def write(model: Policy, folder: Path) -> None:
    part = folder.with_name(f".{folder.name}")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    (part / "recurrent.json").write_text(json.dumps({"width": model.width, "sight": model.sight}))
    save_file({name: each.contiguous() for name, each in model.state_dict().items()}, part / "weights.safetensors")
    part.rename(folder)


RECURRENT = FamilySpec(
    name="recurrent",
    training=RecurrentTraining,
    planning=RecurrentPlanning,
    checkpoints="tests.training.recurrent:RecurrentCheckpoints",
    trains="tests.training.recurrent:RecurrentTrains",
    plans="tests.training.recurrent:RecurrentPlans",
    recognizes=lambda path: (path / "recurrent.json").is_file(),
    agent="tests.training.recurrent:RecurrentAgent",
    presets=tuple(WIDTHS),
)


class RecurrentAgent(EpisodeAgent):
    """Acts as a trained policy says."""

    sensors = frozenset({"rgb", "depth"})
    options_type = CheckpointOptions

    def __init__(self, options: CheckpointOptions) -> None:
        super().__init__()
        assert options.checkpoint is not None
        family = RecurrentCheckpoints()
        width, sight = family.config(Source("checkpoint", "", options.checkpoint), options)
        self._policy = Policy(width, sight)
        self._policy.load_state_dict(load_file(options.checkpoint / "weights.safetensors"))
        self.identity = {"checkpoint": family.content_hash(options.checkpoint, options)}

    def begin(self, episode: Episode, seed: int) -> None:
        self._state: Tensor | None = None
        self._previous = -1
        self._words = words_of(episode.instruction)[None]

    def act_one(self, observation: Observation) -> Action:
        assert observation.rgb is not None
        assert observation.depth is not None
        deep = (observation.depth.squeeze() * 25).clip(0, 255).astype(np.uint8)
        frame = small(observation.rgb if self._policy.sight == "rgb" else deep)[None, None]
        with torch.no_grad():
            scores, self._state = self._policy(frame, self._words, torch.tensor([[self._previous]]), self._state)
        self._previous = int(scores[0, -1].argmax())
        return Action(self._previous)
