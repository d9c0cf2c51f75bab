"""A family with its own network, trained on walks and evaluated, in 100 lines: docs/how-to/add_model.md."""

import zlib
from dataclasses import dataclass

import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

from agents.base import EpisodeAgent
from agents.common.checkpoints.hashes import content_hash
from agents.common.checkpoints.model_type import model_type
from agents.common.checkpoints.weights import write_folder
from agents.common.sets.trajectories import read_trajectories
from vlnbench.interfaces import Action
from vlnbench.rollout.agent_options import CheckpointOptions
from vlnbench.training.family.checkpoints import Checkpoints, Placement
from vlnbench.training.family.spec import FamilySpec
from vlnbench.training.family.trains import PartRule, Stretches, Trains
from vlnbench.training.options import TrainOptions

PARTS, SIDE, WORDS = ("eyes", "reader", "head"), 8, 64


class Small(nn.Module):
    """From a small frame and the words of an instruction to scores of the four actions."""

    def __init__(self):
        super().__init__()
        self.eyes, self.reader, self.head = nn.Linear(3 * SIDE**2, 32), nn.Linear(WORDS, 32), nn.Linear(32, 4)

    def forward(self, frames, words):
        return self.head(torch.tanh(self.eyes(frames) + self.reader(words)))


def seen(image, instruction):
    """What the network is shown: made by one function, so that training and agent cannot differ."""
    pixels = torch.tensor(list(image.convert("RGB").resize((SIDE, SIDE)).tobytes())) / 255
    places = torch.tensor([zlib.crc32(word.encode()) % WORDS for word in instruction.lower().split()])
    return pixels, torch.bincount(places, minlength=WORDS).float()


@dataclass(frozen=True, kw_only=True)
class SmallTraining(TrainOptions):
    PARTS = PARTS
    tunable_parts: tuple[str, ...] = PARTS
    """Parts that are trained."""


class Steps:
    """A set of walks, of which every step under every instruction is a sample."""

    def __init__(self, folder):
        self.file, self.walks = folder / "annotations.json", read_trajectories(folder)
        self.counts = {"walks": len(self.walks)}
        self.keys = [(w, text, i) for w in self.walks for text in w.instructions for i in range(len(w.actions))]
        self.windows = len(self.keys)

    def texts(self):
        return (text for walk in self.walks for text in walk.instructions)

    def lengths(self):
        return [(1,)] * self.windows

    def __len__(self):
        return self.windows

    def sample(self, index, rng):
        walk, text, step = self.keys[index]
        (path,) = walk.frames_at([step])
        return *seen(Image.open(path), text), torch.tensor(int(walk.taught[step]))


class SmallCheckpoints(Checkpoints):
    def create(self, preset, folder, texts, seed):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.save(Small(), folder, None, None)

    def save(self, model, folder, base, options):
        write_folder(model, folder, {"model_type": "small"}, [], "5GB")

    def load(self, path, options, placement):
        model = Small()
        model.load_state_dict(load_file(path / "model.safetensors"))
        return model

    def content_hash(self, path, options):
        return content_hash([path / "model.safetensors"])

    def placement(self, options, device):
        return Placement(torch.float32, {})

    def shapes(self, model):
        return Small().to("meta")


class SmallTrains(Trains):
    def parts(self, model, options):
        return [PartRule(part, part) for part in PARTS]

    def enable_checkpointing(self, model):
        """There is nothing worth computing twice."""

    def read_set(self, folder, options):
        return Steps(folder)

    def samples(self, sets, model, base, options, known):
        return list(sets)

    def collate(self, samples):
        return dict(zip(("frames", "words", "actions"), map(torch.stack, zip(*samples, strict=True)), strict=True))

    def loss(self, model, batch):
        frames, words, actions = (each.to(next(model.parameters()).device) for each in batch.values())
        return nn.functional.cross_entropy(model(frames, words), actions)

    def stretches(self, model, cached):
        return Stretches(("seeing", "deciding"), model.eyes, model.eyes)


class SmallAgent(EpisodeAgent):
    sensors = frozenset({"rgb"})
    options_type = CheckpointOptions

    def __init__(self, options):
        self.model = SmallCheckpoints().load(options.checkpoint, options, None)
        self.identity = {"checkpoint": SmallCheckpoints().content_hash(options.checkpoint, options)}

    @torch.no_grad()
    def act_one(self, observation):
        frame, words = seen(Image.fromarray(observation.rgb), observation.instruction)
        return Action(int(self.model(frame[None], words[None]).argmax()))


FAMILY = FamilySpec(
    name="small",
    agent="small_family:SmallAgent",
    recognizes=lambda folder: model_type(folder) == "small",
    checkpoints="small_family:SmallCheckpoints",
    trains="small_family:SmallTrains",
    training=SmallTraining,
    unplanned="it is too small to be planned",
    presets=("small",),
)
