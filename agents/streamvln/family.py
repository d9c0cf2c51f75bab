"""StreamVLN as a model family: its checkpoints, what trains of it and on what, what that takes of a GPU."""

from __future__ import annotations

import json
import random
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from agents.common.checkpoints.files import GENERATION
from agents.common.checkpoints.hashes import content_hash
from agents.common.checkpoints.new_tokenizer import BLOCK_END, END, write_tokenizer
from agents.common.checkpoints.placement import place
from agents.common.decoders.placeholders import IGNORED, IMAGE, MEMORY
from agents.common.decoders.planning import acting
from agents.common.decoders.scores import score_windows
from agents.common.decoders.windows import Windows
from agents.common.inputs import filled
from agents.common.language.family import LanguageCheckpoints, LanguageTrains, LogProbabilities
from agents.common.language.planning import LanguagePlans, operations, part_changes
from agents.common.packing.loss import WindowWeights, pack
from agents.common.sets.conversations import SYMBOLS, Conversation, read_conversations
from agents.common.sets.trajectories import Trajectory, read_trajectories
from agents.common.sight.pictures import check_there
from agents.common.sight.reader import FrameReader
from agents.common.sight.semantics import AuxiliaryLoss, Semantics, agreed, make_auxiliary_loss, read_semantics
from agents.common.sight.shown import Shown
from agents.common.towers import siglip
from agents.streamvln import network
from agents.streamvln.agent import Prompts, fixed_texts
from agents.streamvln.network import StreamVLN, StreamVLNConfig, parse_config, read_config
from agents.streamvln.options import (
    LANGUAGE_MODEL,
    PRESETS,
    SIZES,
    TABLE,
    VISION_TOWER,
    Preset,
    StreamVLNInference,
    StreamVLNPlanning,
    StreamVLNStep,
    StreamVLNTraining,
)
from agents.streamvln.samples import (
    SEMANTIC,
    ConversationDataset,
    StreamVLNPolicy,
    StreamVLNSet,
    WindowDataset,
    collate,
    fingerprint,
    samples_of,
    window_lengths,
)
from vlnbench.data.sets import CONVERSATIONS, TRAJECTORIES, holds_questions
from vlnbench.errors import UsageError
from vlnbench.training.family.changes import Change
from vlnbench.training.family.checkpoints import Placement, Source
from vlnbench.training.family.plans import LOGIT_BYTES, Acting, Kept, Probe, Published
from vlnbench.training.family.policy import Policy, Sampling
from vlnbench.training.family.trains import (
    Answer,
    Features,
    Known,
    PartRule,
    Samples,
    Scorer,
    Stretches,
    Weighting,
)


def create(preset: Preset, folder: Path, texts: Iterable[str], seed: int) -> None:
    """Write a checkpoint folder with random weights and a tokenizer learned from instructions.

    The same arguments give the same bytes. Raises UsageError if `folder` exists.
    """
    with tempfile.TemporaryDirectory() as made:
        source = Path(made)
        ids = write_tokenizer(source, texts, preset.vocabulary, (*SYMBOLS, *fixed_texts()))
        rows = -(-len(ids) // 64) * 64
        config = preset.config(rows, ids[END], ids[BLOCK_END])
        generation = {
            "bos_token_id": ids[END],
            "eos_token_id": [ids[BLOCK_END], ids[END]],
            "pad_token_id": ids[END],
        }
        (source / GENERATION).write_text(json.dumps(generation, indent=2) + "\n")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = StreamVLN(parse_config(config, "preset"))
        network.save(model, folder, source=source)


Settled = TypeVar("Settled", "StreamVLNStep", "StreamVLNInference")

SUPERVISED_PER_TURN, SUPERVISED_ONCE = 13, 4
"""Labels of one turn (the answer's block of nine tokens, four marks of the question's) and of the system block."""


_WAY = re.compile("[←→]+|↑")
"""An answer that says which way something is: turns, or a step if it is ahead."""


class WindowScorer:
    """Scores windows as the agent would be asked in them, with the expert's earlier answers, and questions alone.

    The phrases it draws depend on the window only.
    """

    def __init__(self, path: Path, device: torch.device) -> None:
        found = place(str(device), "auto", "auto", torch.bfloat16)
        self._model = network.load(path, dtype=found.dtype, attn=found.attn).to(device).eval()
        self._windows = Windows.of(self._model.config, path)
        self._prompts = Prompts(network.load_tokenizer(path))
        self._actions = self._prompts.action_ids()

    def __call__(self, folder: Path, batch: int) -> Iterator[Answer]:
        """The answers of every window of a set's folder, windows of like length together."""
        return (self._asked if holds_questions(folder) else self._walked)(folder, batch)

    def _asked(self, folder: Path, batch: int) -> Iterator[Answer]:
        """The first action of every answer that says which way. Raises UsageError where none does."""
        questions = [
            each
            for conversation in read_conversations(folder)
            for each in conversation.alone()
            if _WAY.fullmatch(each.turns[0][1])
        ]
        if not questions:
            raise UsageError(f"{folder / CONVERSATIONS}: none of its answers is a way to turn; nothing to score")
        reader = FrameReader(self._model.config.vision.image_size)
        dataset = ConversationDataset(questions, self._prompts, reader, wording="evaluation")
        for first in range(0, len(questions), batch):
            chosen = questions[first : first + batch]
            samples = [dataset.sample(first + index, random.Random(0)) for index in range(len(chosen))]
            scored = score_windows(self._model, samples, self._actions)
            for question, ((predicted, loss), *_) in zip(chosen, scored, strict=True):
                scene = question.images[0].parent.name
                expected = SYMBOLS[question.turns[0][1][0]]
                yield Answer(f"{scene}_questions_{first}", 0, expected, None, predicted, loss)

    def _walked(self, folder: Path, batch: int) -> Iterator[Answer]:
        trajectories = read_trajectories(folder)
        reader = FrameReader(self._model.config.vision.image_size)
        dataset = WindowDataset(trajectories, self._prompts, self._windows, reader, wording="evaluation")
        lengths = window_lengths(trajectories, self._windows)
        order = sorted(range(len(dataset)), key=lambda index: lengths[index])
        for first in range(0, len(order), batch):
            chosen = order[first : first + batch]
            samples = [dataset.sample(index, random.Random(f"score/{index}")) for index in chosen]
            scored = score_windows(self._model, samples, self._actions)
            for index, sample, pairs in zip(chosen, samples, scored, strict=True):
                walked = trajectories[dataset.keys[index].trajectory]
                steps = [step for step in sample.time_ids if step not in walked.strays]
                for step, (predicted, loss) in zip(steps, pairs, strict=True):
                    before = walked.taught[step - 1] if step else None
                    name = walked.frames_dir.parent.name
                    yield Answer(name, step, walked.taught[step], before, predicted, loss)


class StreamVLNCheckpoints(LanguageCheckpoints):
    """Folders of StreamVLN."""

    def config(self, source: Source, options: StreamVLNStep | StreamVLNInference) -> StreamVLNConfig:
        if source.kind == "sizes":
            config = parse_config(SIZES[source.name], source.name)
        elif source.path is None:
            preset = PRESETS[source.name]
            config = parse_config(preset.config(preset.vocabulary, 0, 1), source.name)
        else:
            config = read_config(source.path, options.vision_tower)
        return config if options.image_size is None else config.with_image_size(options.image_size)

    def settled(self, source: Source, options: Settled) -> Settled:
        config = self.config(source, options)
        own = {
            "frames": config.num_frames,
            "history": config.num_history,
            "future_steps": config.num_future_steps,
            "image_size": config.vision.image_size,
            "wording": config.wording,
        }
        found = filled(options, own)
        if isinstance(found, StreamVLNStep):
            _ = found.windows  # are refused here where they are not even
        return found

    def check_files(self, path: Path, options: StreamVLNTraining) -> None:
        network.load_tokenizer(path, options.tokenizer)
        list(network.read_files(path, options.tokenizer, options.vision_tower))

    def content_hash(self, path: Path, options: StreamVLNTraining) -> str:
        return content_hash(network.read_files(path, options.tokenizer, options.vision_tower))

    def create(self, preset: str, folder: Path, texts: Iterable[str], seed: int) -> None:
        create(PRESETS[preset], folder, texts, seed)

    def load(self, path: Path, options: StreamVLNTraining, placement: Placement) -> StreamVLN:
        model = network.load(
            path,
            vision_tower=options.vision_tower,
            dtype=placement.dtype,
            device=placement.device,
            attn=placement.notes["attn"],
            image_size=options.image_size,
        )
        wording = options.wording or model.config.wording
        model.config = replace(model.config, **asdict(options.windows), wording=wording)  # which the agent acts by
        return model

    def shapes(self, model: StreamVLN) -> StreamVLN:
        with torch.device("meta"):
            whole = StreamVLN(model.config)
            if isinstance(model.auxiliary, AuxiliaryLoss):
                whole.auxiliary = AuxiliaryLoss(model.auxiliary.channels, model.auxiliary.names)
        return whole

    def save(self, model: StreamVLN, folder: Path, base: Path, options: StreamVLNTraining) -> None:
        auxiliary, model.auxiliary = model.auxiliary, None  # works while training and is not kept
        network.save(model, folder, source=base, tokenizer=options.tokenizer)
        model.auxiliary = auxiliary


class StreamVLNTrains(LanguageTrains, LogProbabilities):
    """SigLIP vision tower, projector and Qwen2 language model, trained on windows of trajectories."""

    def parts(self, model: StreamVLN, options: StreamVLNStep) -> Sequence[PartRule]:
        return TABLE

    def weighting(self, model: StreamVLN) -> Weighting | None:
        packed = model.packed_loss is not None  # else windows of unlike length would be padded
        return WindowWeights() if packed else None

    _semantics: Semantics | None = None
    """What the sets that were read know of what their frames show."""

    def fitted(self, model: StreamVLN, options: StreamVLNTraining) -> StreamVLN:
        pack(model, options)
        if options.semantic_weight:
            auxiliary = make_auxiliary_loss(self._semantics, [model.config.vision.hidden_size], options.seed)
            model.auxiliary, model.auxiliary_weight = auxiliary.to(model.dtype), options.semantic_weight
        return model

    def read_set(self, folder: Path, options: StreamVLNTraining) -> StreamVLNSet:
        trajectories: list[Trajectory] = []
        conversations: list[Conversation] = []
        semantics: Semantics | None = None
        if holds_questions(folder):
            if options.learns_from == "answers":
                raise UsageError(
                    f"{folder / CONVERSATIONS}: questions have no actions that answers could be compared with; "
                    "name sets of walks, or use --objective supervised"
                )
            conversations = read_conversations(folder)
            semantics = read_semantics(folder) if options.semantic_weight else None
        else:
            trajectories = read_trajectories(folder)
            if options.learns_from == "answers" and any(each.labels for each in trajectories):
                raise UsageError(
                    f"{folder / TRAJECTORIES}: has labels of single steps (collect --relabel), and answers for "
                    "several steps are compared with what was done; name other sets, or use --objective supervised"
                )
        file = folder / (CONVERSATIONS if conversations else TRAJECTORIES)
        walks, talks = tuple(trajectories), tuple(conversations)
        found = StreamVLNSet(file, walks, talks, options.windows, semantics, options.questions_at_once)
        if semantics is not None:
            self._semantics = agreed(self._semantics, semantics)
            check_there(file, SEMANTIC, [path for each in found.semantic_images() for path in each])
        return found

    def samples(
        self, sets: Sequence[Any], model: StreamVLN, base: Path, options: StreamVLNTraining, known: Known | None
    ) -> list[Samples]:
        prompts = Prompts(network.load_tokenizer(base, options.tokenizer))
        vision = model.config.vision
        reader = FrameReader(vision.image_size, options.augment, known)
        made: list[Samples] = []
        for each in sets:
            shown = Shown(each.semantics, each.semantic_images(), vision.grid) if each.semantics else None
            own = reader
            if options.packed is not None:
                own = reader.keeping(options.packed, each.file, each.images())
                shown = shown and shown.keeping(options.packed, each.file)
            made.append(samples_of(each, prompts, options, own, shown))
        return made

    def frames(self, content: StreamVLNSet) -> int:
        walks = sum(len(each.actions) for each in content.trajectories)
        return walks + sum(len(each.images) for each in content.conversations)

    def collate(self, samples: Sequence[Any]) -> dict[str, Any]:
        return collate(samples)

    def stretches(self, model: StreamVLN, cached: bool) -> Stretches:
        projector = model.model.mm_projector
        start = projector if cached else model.tower.get_submodule("embeddings")
        return Stretches(("vision", "language"), start, projector)

    def features(self, model: StreamVLN, device: torch.device) -> Features:
        return Features(
            tower=model.tower,
            encode=siglip.patch_features,
            shape=(model.config.vision.grid**2, model.config.vision.hidden_size),
            dtype=model.dtype,
            fingerprint=fingerprint(model, device),
            entry="images",
        )

    def policy(self, model: StreamVLN, base: Path, options: StreamVLNTraining, sampling: Sampling) -> Policy:
        return StreamVLNPolicy(model, base, options, sampling)

    def scorer(self, path: Path, device: torch.device) -> Scorer:
        return WindowScorer(path, device)


class StreamVLNPlans(LanguagePlans):
    """Windows of full length."""

    def build(self, config: StreamVLNConfig, options: StreamVLNPlanning) -> StreamVLN:
        # The flash kernels of both kinds allocate alike.
        return StreamVLN(config, "eager" if options.attn == "eager" else "sdpa")

    def probe(self, config: StreamVLNConfig, options: StreamVLNPlanning, device: str) -> Probe:
        """Samples of equal length with as many labels as real ones have."""
        turns = options.windows.turns
        supervised = SUPERVISED_ONCE + SUPERVISED_PER_TURN * turns
        if options.text_tokens < supervised:
            raise UsageError(f"--text-tokens {options.text_tokens}: {turns} turns need at least {supervised}")
        plain = options.text_tokens - supervised
        ids = [1] * plain + [MEMORY] + [IMAGE] * turns + [1] * supervised
        labels = [IGNORED] * (len(ids) - supervised) + [1] * supervised
        count, size = options.windows.images, config.vision.image_size
        images = torch.zeros(count, 3, size, size, device=device)
        batch = {
            "input_ids": [ids] * options.batch,
            "images": [images] * options.batch,
            "labels": [labels] * options.batch,
        }
        return Probe(
            batch,
            tokens=sum(token >= 0 for token in ids) + count * config.image_tokens,
            supervised=sum(label >= 0 for label in labels[1:]),
            width=config.vocab_size,
        )

    def flops(
        self, config: StreamVLNConfig, options: StreamVLNStep, parts: Mapping[str, int], tokens: int
    ) -> float:
        patches = (config.vision.image_size // config.vision.patch_size) ** 2 * options.windows.images
        return operations(options, parts, patches, tokens, (VISION_TOWER,), LANGUAGE_MODEL)

    def kept(self, config: StreamVLNConfig, options: StreamVLNStep) -> Kept:
        return Kept(frame=config.vision.grid**2 * config.vision.hidden_size)

    def published(self, config: StreamVLNConfig, options: StreamVLNPlanning) -> Published:
        """Windows at the ends of walks are short."""
        program = "StreamVLN's streamvln_train.py with zero2.json"
        return Published(program, LOGIT_BYTES, 200_000_000, spread=(0.2, 1.0))

    def changes(self, options: StreamVLNPlanning) -> Iterator[Change]:
        """Changes after which another model is trained."""
        windows = options.windows
        if windows.num_history > 4:
            half = windows.num_history // 2
            price = "less memory of the way: lower SR"
            yield Change("history", f"--history {half}", 14, (("history", half),), price)
        if windows.num_frames > 16:
            half = windows.num_frames // 2
            yield Change("frames", f"--frames {half}", 14, (("frames", half),), "shorter windows: lower SR")
        yield from part_changes(options, VISION_TOWER, LANGUAGE_MODEL, "vision tower frozen")

    def inference_network(self, config: StreamVLNConfig, options: StreamVLNInference) -> StreamVLN:
        return StreamVLN(config, "sdpa")

    def inference(self, network: StreamVLN, config: StreamVLNConfig, options: StreamVLNInference) -> Acting:
        return acting(network, options.max_batch, options.max_new_tokens, kept=options.episodes)

    def inference_changes(self, options: StreamVLNInference) -> Iterator[Change]:
        """Changes after which other answers are given."""
        yield from super().inference_changes(options)
        if options.image_size is None or options.image_size > 224:
            price = "fewer tokens of an image: other answers, not trained for it"
            yield Change("image", "a checkpoint trained with --image-size 224", 18, (("image_size", 224),), price)
