"""JanusVLN as a model family: its checkpoints, what trains of it and on what, what that takes of a GPU."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import nn

from agents.common.answers.names import NAMES
from agents.common.checkpoints.files import GENERATION
from agents.common.checkpoints.hashes import content_hash
from agents.common.checkpoints.new_tokenizer import BLOCK_END, BLOCK_START, END, write_tokenizer
from agents.common.checkpoints.placement import place
from agents.common.checkpoints.versions import check_transformers
from agents.common.decoders.placeholders import IGNORED
from agents.common.inputs import filled
from agents.common.language.family import LanguageTrains, LogProbabilities
from agents.common.language.planning import LanguagePlans, operations, part_changes
from agents.common.packing.frames import Frames
from agents.common.qwen2_5_vl import checkpoint
from agents.common.qwen2_5_vl.config import MERGE, PATCH, QWEN_3B, QWEN_7B
from agents.common.qwen2_5_vl.decode import reading
from agents.common.qwen2_5_vl.image import grid_of
from agents.common.qwen2_5_vl.language import expand
from agents.common.qwen2_5_vl.tokens import IMAGE, TOKENS, generation_settings
from agents.common.sets.steps import StepSet, read_steps
from agents.common.towers.geometry_sizes import VGGT_1B, GeometrySizes
from agents.common.towers.vggt import FrameCache
from agents.janusvln.agent import Prompts, fixed_texts
from agents.janusvln.network import JanusVLN, JanusVLNConfig, inputs_of, load, look, parse_config, shapes
from agents.janusvln.options import (
    ARCHITECTURE,
    GEOMETRY_MERGER,
    LLM,
    MLP,
    PRESETS,
    VGGT,
    VISION,
    JanusVLNInference,
    JanusVLNInputs,
    JanusVLNPlanning,
    JanusVLNShown,
    JanusVLNStep,
    JanusVLNTraining,
)
from agents.janusvln.samples import (
    GEOMETRIES,
    JanusVLNPolicy,
    Reader,
    StepSamples,
    StepScorer,
    cached_features,
    collate,
)
from vlnbench.errors import UsageError
from vlnbench.training.family.changes import Change
from vlnbench.training.family.checkpoints import Checkpoints, Placement, Source
from vlnbench.training.family.plans import ALLGATHER_BUCKET, LOGIT_BYTES, OVERLAP, Acting, Kept, Probe, Published
from vlnbench.training.family.policy import Policy, Sampling, Scored
from vlnbench.training.family.trains import Features, Known, PartRule, Samples, Scorer, Stretches

HEAD = "lm_head.weight"
BIASES: Literal["all but biases"] = "all but biases"


SIZES: Mapping[str, Mapping[str, Any]] = {
    name: {**qwen, "architectures": [ARCHITECTURE], "lam": 0.2}
    for name, qwen in (("janusvln-7b", QWEN_7B), ("janusvln-3b", QWEN_3B))
}
"""config.json by name: of the released JanusVLN (Qwen2.5-VL-7B: 9,314,832,390 parameters with VGGT), and of the
same on Qwen2.5-VL-3B, which its code can train (4,770,995,718)."""
SUPERVISED = 6
"""Labels of a sample: the longest action, the block's end and the newline."""
CAMERA = (640, 480)
"""Pixels of the frames that are planned with."""
PUBLISHED = (
    "an evaluation with the published code and the 7 B took 27.3 GB at its peak on an A100 of 40 GB, as a "
    "reproduction of it reports (github.com/CHANGJianshuo/JanusVLN_reproduction)"
)


class Sizes(NamedTuple):
    """A network's sizes: what config.json says, and VGGT's."""

    config: JanusVLNConfig
    geometry: GeometrySizes


Shown = TypeVar("Shown", bound=JanusVLNShown)


class JanusVLNCheckpoints(Checkpoints):
    """Folders of JanusVLN."""

    def config(self, source: Source, options: JanusVLNStep | JanusVLNInference) -> Sizes:
        found = _sizes(source)
        if found.config.tied and isinstance(options, JanusVLNStep) and options.train_head:
            raise UsageError(f"--train-head: the output layer of {source.name} is its embeddings, part of {LLM}")
        return Sizes(found.config.shown(options.image_width, options.history), found.geometry)

    def settled(self, source: Source, options: Shown) -> Shown:
        return filled(options, asdict(inputs_of(_sizes(source).config, source.path, options)))

    def check_files(self, path: Path, options: JanusVLNTraining) -> None:
        found = self.config(Source("checkpoint", str(path), path), options)
        checkpoint.load_tokenizer(path, found.config, options.tokenizer)
        list(checkpoint.read_files(path, options.tokenizer))

    def content_hash(self, path: Path, options: JanusVLNTraining) -> str:
        return content_hash(checkpoint.read_files(path, options.tokenizer))

    def create(self, preset: str, folder: Path, texts: Iterable[str], seed: int) -> None:
        sizes = PRESETS[preset]
        with tempfile.TemporaryDirectory() as made:
            source = Path(made)
            marks = [token for token in TOKENS if token.startswith("<") and token not in (BLOCK_START, BLOCK_END)]
            ids = write_tokenizer(source, texts, sizes.vocabulary, (*NAMES, *fixed_texts()), marks)
            end, rows = ids[BLOCK_END], -(-len(ids) // 64) * 64
            own = {"vocab_size": rows, "bos_token_id": end, "eos_token_id": end, "image_token_id": ids[IMAGE]}
            generation = {"bos_token_id": ids[END], "eos_token_id": [end, ids[END]]}
            (source / GENERATION).write_text(json.dumps(generation, indent=2) + "\n")
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                model = JanusVLN(parse_config({**sizes.config, **own}, "preset"), sizes.geometry)
                for parameter in model.vggt.aggregator.parameters():
                    if not bool(parameter.any()):
                        torch.nn.init.normal_(parameter, std=SPREAD)
            checkpoint.save(model, folder, source=source)

    def placement(self, options: JanusVLNTraining, device: torch.device) -> Placement:
        import transformers

        check_transformers(transformers.__version__)
        attn = "sdpa" if options.attn == "auto" else options.attn
        found = place(str(device), options.dtype, attn, torch.bfloat16)
        return Placement(found.dtype, {"attn": found.attn})

    def load(self, path: Path, options: JanusVLNTraining, placement: Placement) -> JanusVLN:
        model = load(path, dtype=placement.dtype, device=placement.device, attn=placement.notes["attn"])
        inputs = inputs_of(model.config, path, options)
        model.config = model.config.shown(inputs.image_width, inputs.history)
        return model

    def shapes(self, model: JanusVLN) -> JanusVLN:
        with torch.device("meta"):
            return JanusVLN(model.config, model.vggt.aggregator.sizes)

    def save(self, model: JanusVLN, folder: Path, base: Path, options: JanusVLNTraining) -> None:
        inputs = inputs_of(model.config, base, options)
        checkpoint.save(model, folder, inputs, source=base, tokenizer=options.tokenizer)


class JanusVLNTrains(LanguageTrains, LogProbabilities):
    """Qwen2.5-VL with the geometry that a frozen VGGT sees, trained on single steps of walks."""

    def parts(self, model: JanusVLN, options: JanusVLNStep) -> Sequence[PartRule]:
        """RMSNorm's weights decay, too: the published code exempts LayerNorm only."""
        head: Literal["always", "with its part"] = "always" if options.train_head else "with its part"
        return [
            PartRule(r"vggt\.", VGGT, trains="never", decays=BIASES),
            PartRule(r"merger\.", GEOMETRY_MERGER, decays=BIASES),
            PartRule(r"visual\.merger\.", MLP, decays=BIASES),
            PartRule(r"visual\.", VISION, decays=BIASES),
            PartRule("lm_head", LLM, trains=head, decays=BIASES, hidden=False),
            PartRule(".*embed", LLM, decays=BIASES, hidden=False),
            PartRule("", LLM, decays=BIASES),
        ]

    def remark(self, model: JanusVLN, options: JanusVLNStep) -> str:
        untied = HEAD in dict(model.named_parameters())
        if LLM in options.parts or not untied:
            return ""
        if options.train_head:
            return f"{HEAD} trains though {LLM} is frozen, as in the published code (--train-head)"
        return f"{HEAD} is frozen with {LLM}; the published code trains it even then (--train-head)"

    def uneven(self, model: JanusVLN) -> list[nn.Module]:
        return [model.vggt]  # runs once for every frame that a sample has

    def read_set(self, folder: Path, options: JanusVLNTraining) -> StepSet:
        assert options.history is not None  # settled
        every = options.instructions == "all"
        return read_steps(folder, options.history, every_text=every, chronological=options.chronological)

    def samples(
        self, sets: Sequence[Any], model: JanusVLN, base: Path, options: JanusVLNTraining, known: Known | None
    ) -> list[Samples]:
        prompts = _prompts(model, base, options)
        sees = not any(parameter.requires_grad for parameter in model.visual.blocks.parameters())
        reader = Reader(model.config.image_width, known, sees)
        return [StepSamples(each, prompts, model.config, reader) for each in sets]

    def frames(self, content: StepSet) -> int:
        return sum(len(walk.actions) for walk in content.walks)

    def collate(self, samples: Sequence[Any]) -> dict[str, Any]:
        return collate(samples)

    def stretches(self, model: JanusVLN, cached: bool) -> Stretches:
        visual = model.visual
        seen = cached and not any(parameter.requires_grad for parameter in visual.blocks.parameters())
        start = visual.merger if seen else visual.patch_embed
        return Stretches(("vision", "geometry", "language"), start, model.merger, visual.merger)

    def all_features(self, model: JanusVLN, device: torch.device) -> list[Features]:
        return cached_features(model, device)

    def scorer(self, path: Path, device: torch.device) -> Scorer:
        return StepScorer(path, device)

    def policy(self, model: JanusVLN, base: Path, options: JanusVLNTraining, sampling: Sampling) -> Policy:
        prompts = _prompts(model, base, options)
        return JanusVLNPolicy(model, generation_settings(base, prompts.tokenizer), prompts, sampling)

    def log_probabilities(self, model: Any, batch: Mapping[str, Any], temperature: float) -> Scored:
        seen = batch[GEOMETRIES]
        assert isinstance(seen, Frames)
        geometries = [seen.known[places] for places in seen.order]
        return super().log_probabilities(model, {**batch, GEOMETRIES: geometries}, temperature)

    def cache_bytes(self, config: Sizes, options: JanusVLNPlanning) -> int:
        return super().cache_bytes(config.config, options)


def _less_shown(options: JanusVLNShown, prices: tuple[str, str], history: int, cost: int) -> Iterator[Change]:
    """Ways to show less, of earlier frames `history`. prices: of fewer, and of smaller ones at `cost`."""
    if (options.history or JanusVLNInputs.history) > 4:
        yield Change("history", f"--history {history}", 14, (("history", history),), prices[0])
    if options.image_width is None or options.image_width > 448:
        yield Change("width", "--image-width 448", cost, (("image_width", 448),), prices[1])


class JanusVLNPlans(LanguagePlans):
    """Steps late in a walk, which show all the frames they may."""

    def build(self, config: Sizes, options: JanusVLNPlanning) -> JanusVLN:
        return JanusVLN(config.config, config.geometry, options.attn == "eager")

    def probe(self, config: Sizes, options: JanusVLNPlanning, device: str) -> Probe:
        if options.text_tokens <= SUPERVISED:
            raise UsageError(f"--text-tokens {options.text_tokens}: the answer alone takes {SUPERVISED}")
        sizes, count = config.config, options.batch
        images, (height, width) = sizes.num_history + 1, sizes.shown_size(*CAMERA)
        cells = grid_of(height, width).cells
        ids = [0] * (options.text_tokens - SUPERVISED) + [sizes.image_token] * images + [0] * SUPERVISED
        frames = torch.zeros(images, height, width, 3, dtype=torch.uint8, device=device)
        batch: dict[str, Any] = {
            "input_ids": [ids] * count,
            "frames": [frames] * count,
            "labels": [[IGNORED] * (len(ids) - SUPERVISED) + [0] * SUPERVISED] * count,
        }
        if options.learns_from != "labels":
            shape = (count, MERGE**2 * cells, 2 * config.geometry.width)
            batch[GEOMETRIES] = Frames([[i] for i in range(count)], torch.zeros(shape, device=device), [], [])
        tokens = options.text_tokens + images * cells
        return Probe(batch, tokens=tokens, supervised=SUPERVISED, width=sizes.vocab_size)

    def flops(self, config: Sizes, options: JanusVLNStep, parts: Mapping[str, int], tokens: int) -> float:
        """See `operations`; VGGT sees the same patches as Qwen's tower."""
        height, width = config.config.shown_size(*CAMERA)
        patches = (height // PATCH) * (width // PATCH) * (config.config.num_history + 1)
        return operations(options, parts, patches, tokens, (VISION, VGGT), LLM)

    def kept(self, config: Sizes, options: JanusVLNStep) -> Kept:
        patches = MERGE**2 * grid_of(*config.config.shown_size(*CAMERA)).cells
        seen = 0 if VISION in options.parts else patches * config.config.vision.width
        return Kept(frame=seen, window=2 * patches * config.geometry.width)

    def published(self, config: Sizes, options: JanusVLNPlanning) -> Published:
        """Of its ZeRO files the reduce bucket is the width squared, and communication overlaps with work.

        Six of seven samples have all nine images; their texts take 150 to 400 tokens.
        """
        bucket = config.config.hidden_size**2
        gathered = 2 * ALLGATHER_BUCKET if options.zero == 2 else 0
        communication = round(OVERLAP * (2 * bucket + gathered))
        return Published("JanusVLN's train.sh", LOGIT_BYTES, bucket, communication, (0.98, 1.05))

    def changes(self, options: JanusVLNPlanning) -> Iterator[Change]:
        """Changes after which another model is trained."""
        prices = ("less memory of the way: lower SR", "half the tokens of an image")
        yield from _less_shown(options, prices, (options.history or JanusVLNInputs.history) // 2, 14)
        yield from part_changes(options, VISION, LLM, "vision tower frozen, as published")

    def inference_network(self, config: Sizes, options: JanusVLNInference) -> JanusVLN:
        return JanusVLN(config.config, config.geometry)

    def inference(self, network: JanusVLN, config: Sizes, options: JanusVLNInference) -> Acting:
        """A step late in an episode, when all frames are kept and the whole history is shown."""
        own, count = network.config, options.max_batch
        height, width = own.shown_size(*CAMERA)
        kept = options.first_frames + options.recent_frames + 1
        frame = network.vggt.aggregator.frame_bytes(height, width, network.dtype)
        caches = [FrameCache(options.first_frames, options.recent_frames) for _ in range(count)]
        frames = torch.zeros(count, height, width, 3, dtype=torch.uint8)
        sizes = network.vggt.aggregator.sizes
        tokens = 1 + sizes.registers + (height // PATCH) * (width // PATCH)
        one = torch.empty(sizes.heads, tokens, sizes.width // sizes.heads, dtype=network.dtype, device="meta")
        for cache in caches:  # buffers of their full size, made before anything is counted
            cache.seen = kept
            for block in range(sizes.depth - 1):
                cache.put(block, one, one)
        images, grid = own.num_history + 1, grid_of(height, width)
        ids = [0] * options.text_tokens + [own.image_token] * images
        rows = [expand(ids, [grid] * images, own.image_token) for _ in range(count)]
        fused = torch.zeros(count * images * grid.cells, own.hidden_size, dtype=network.dtype, device="meta")
        return Acting(
            caches={f"VGGT's {kept} frames per episode": options.episodes * kept * frame},
            passes={
                "looking at a frame": lambda: look(network, frames, caches),
                "reading a question": lambda: reading(network, rows, fused),
            },
            notes=[PUBLISHED] if options.model == "janusvln-7b" else [],
        )

    def inference_changes(self, options: JanusVLNInference) -> Iterator[Change]:
        """Changes after which other answers are given."""
        yield from super().inference_changes(options)
        for recent, cost in ((24, 12), (8, 16)):
            if recent < options.recent_frames:
                price = "VGGT forgets sooner: other answers"
                yield Change("window", f"--recent-frames {recent}", cost, (("recent_frames", recent),), price)
        width = "half the tokens of an image: other answers, not trained for it"
        yield from _less_shown(options, ("sees less of the way: other answers", width), 4, 18)


SPREAD = 0.02
"""Standard deviation of the tokens and tables that torch leaves at zero."""


def _sizes(source: Source) -> Sizes:
    """A network's sizes as its source has them. Raises UsageError for weights that do not fit them."""
    if source.kind == "sizes":
        return Sizes(parse_config(SIZES[source.name], source.name), VGGT_1B)
    if source.path is None:
        preset = PRESETS[source.name]
        return Sizes(parse_config(preset.config, source.name), preset.geometry)
    model = shapes(source.path)
    return Sizes(model.config, model.vggt.aggregator.sizes)


def _prompts(network: JanusVLN, base: Path, options: JanusVLNTraining) -> Prompts:
    tokenizer = checkpoint.load_tokenizer(base, network.config, options.tokenizer)
    return Prompts(tokenizer, inputs_of(network.config, base, options).wording)
