"""Options of a training run, each defined once. Loads nothing heavy: the command line is made from it."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from vlnbench.errors import UsageError, unknown

PARTS = ("mm_vision_tower", "mm_mlp_adapter", "mm_language_model")
"""Tunable parts, by StreamVLN's (LLaVA-NeXT's) names."""

TRAJECTORIES, CONVERSATIONS = "annotations.json", "conversations.json"
"""The file that says what a set's folder holds."""

LAUNCHER_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun and the deepspeed launcher tell every process."""


Optimizer = Literal["adamw", "adafactor", "adamw8bit", "muon"]


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """What an optimiser step does: all that its memory depends on, shared by training and planning."""

    tunable_parts: str = ",".join(PARTS)
    """Parts that are trained, separated by commas; everything else does not change by a single byte."""
    lora_rank: int = 0
    """Train low-rank adapters of this rank on the language model's linear layers (merged when saving); 0: none."""
    batch: int = 2
    """Windows per GPU and forward pass."""
    accumulation: int = 2
    """Forward passes per optimiser step."""
    optimizer: Optimizer = "adamw"
    """adamw8bit needs bitsandbytes and CUDA. muon learns from scratch in fewer steps (--zero 0)."""
    zero: int = 2
    """DeepSpeed ZeRO stage, 0 to 3."""
    offload_optimizer: bool = False
    """Keep optimiser states in host memory (ZeRO 1 to 3)."""
    offload_parameters: bool = False
    """Keep parameters in host memory (ZeRO 3)."""
    gradient_checkpointing: bool = True
    """Recompute activations in the backward pass."""
    frames: int = 32
    """Steps per window."""
    history: int = 8
    """Memory frames per window."""
    future_steps: int = 4
    """Actions per turn."""
    image_size: int | None = None
    """Width and height in pixels to which images are resized; default the checkpoint's. Another size interpolates
    the vision tower's position table."""


@dataclass(frozen=True, kw_only=True)
class PlanOptions(StepOptions):
    """One training setting whose memory is planned."""

    model: str = "streamvln-8b"
    """streamvln-8b, a preset's name, or a checkpoint, by folder or shipped name (only its config.json is read)."""
    gpus: str = "1x80GB"
    """How many of what size: 8x80GB. GB is the size a card is sold as, GiB what PyTorch reports as its total."""
    text_tokens: int = 450
    """Tokens of a window that are not images; long RxR instructions make it about 750."""
    dtype: Literal["bf16", "fp32"] = "bf16"
    """Precision of weights and gradients."""
    attn: Literal["sdpa", "flash_attention_2", "eager"] = "sdpa"
    """Attention of the language model; the first two need the same memory."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions(StepOptions):
    """What is trained, on what, how and on what machine. Defaults follow StreamVLN's published training.

    Batch sizes count windows of `frames` steps. Learning rates hold for AdamW at the peak of the schedule.
    """

    checkpoint: str
    """Folder of the checkpoint to start from, the name of a preset to make with random weights, or that of a
    checkpoint that comes with vlnbench."""
    out: Path
    """Folder of this run. The trained checkpoint appears in it as model/."""
    trajectories: Path = Path("trajectory_data")
    """Folder of the trajectory sets."""
    sets: tuple[str, ...] = ("R2R",)
    """Sets to train on: folders below --trajectories, each as NAME or NAME:WEIGHT (2 is twice per epoch). Each
    holds trajectories (annotations.json) or questions about images (conversations.json, LLaVA's layout)."""
    envdrop: bool = False
    """Train on the set EnvDrop too."""
    tokenizer: Path | None = None
    """Folder with the tokenizer's files, where the checkpoint has none."""
    vision_tower: Path | None = None
    """Folder with the config.json of the vision tower, where the checkpoint names one of another size."""

    lora_alpha: float = 16.0
    """Scale of the adapters: their product is multiplied by alpha / rank."""
    lora_dropout: float = 0.05
    """Dropout in front of the adapters."""

    epochs: float = 1.0
    """Passes over the data, where neither --steps nor --steps-of is given."""
    steps: int | None = None
    """Optimiser steps."""
    steps_of: tuple[str, ...] = ()
    """As many optimiser steps as --epochs over these sets would take: compares data at equal compute."""
    learning_rate: float = 2e-5
    """Learning rate of the language model, and of the other parts unless they have their own."""
    vision_tower_lr: float | None = None
    """Learning rate of the vision tower."""
    projector_lr: float | None = None
    """Learning rate of the projector."""
    weight_decay: float = 0.0
    """Decoupled weight decay of matrices; biases and norms have none."""
    adam_beta2: float = 0.999
    """Decay of AdamW's second moments (muon: where it is AdamW); short trainings from scratch want less."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """How learning rates fall after the warm-up."""
    warmup: float = 0.03
    """Share of the steps in which learning rates rise from 0."""
    min_lr: float = 0.0
    """Where the schedule ends, as a fraction of each learning rate."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of weights and gradients; auto is bfloat16 on CUDA (with a float32 master copy), else float32."""
    tf32: bool = True
    """Allow TensorFloat-32 in what float32 is left on CUDA."""
    attn: Literal["auto", "eager", "sdpa", "flash_attention_2"] = "auto"
    """Attention of the language model."""
    deepspeed: Path | None = None
    """DeepSpeed JSON whose further settings are taken over; it must not contradict the options here."""
    compile: bool = False
    """Compile the model with torch.compile."""

    wording: Literal["published", "evaluation"] = "published"
    """How windows are written: as the published training does, or as the evaluation, with an empty assistant block
    before each answer, which a model trained from scratch has to have seen."""
    augment: bool = True
    """Jitter brightness, saturation, sharpness, contrast and depth of colour, frame by frame."""
    inflection_weight: float = 1.0
    """Weight in the loss of an action that differs from the one before it (VLN-CE trains with 3.2)."""
    group_by_length: bool = False
    """Batch windows of like length, which saves padding. Each is still seen once per epoch, in another order."""
    feature_cache: Path | None = None
    """Folder in which features of a frozen vision tower are kept; needs --no-augment."""
    feature_cache_gb: float = 20.0
    """Largest size of that folder in GB (1e9 bytes). When it is full, what is in it stays and no more is added."""
    tracker: str = ""
    """Trackers that follow the run, separated by commas: tensorboard, trackio, wandb, or import strings."""

    workers: int = 2
    """Processes that read frames, per GPU."""
    seed: int = 0
    """Seed of the order of windows, of phrases and of jitter."""
    log_every: int = 10
    """Optimiser steps between lines of train_log.jsonl."""
    save_every: int = 500
    """Optimiser steps between resumable states."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The tunable parts in their fixed order."""
        named = {part.strip() for part in self.tunable_parts.split(",")}
        return tuple(part for part in PARTS if part in named)

    @property
    def mixture(self) -> dict[str, float]:
        """Sets and their weights."""
        names = [*self.sets, *(["EnvDrop"] if self.envdrop else [])]
        return dict(parse_set(text) for text in names)

    def check(self, world_size: int = 1) -> None:
        """Raise UsageError for the first option that cannot be. Looks at no file."""
        self._check_parts()
        for name in ("batch", "accumulation", "frames", "history", "future_steps", "log_every", "save_every"):
            _at_least(name, getattr(self, name), 1)
        if self.image_size is not None:
            _at_least("image_size", self.image_size, 1)
        for name in ("workers", "lora_rank", "seed"):
            _at_least(name, getattr(self, name), 0)
        rates = ("learning_rate", "vision_tower_lr", "projector_lr")
        for name in (*rates, "epochs", "clip", "lora_alpha", "inflection_weight"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UsageError(f"{_flag(name)} {value}: expected a number above 0")
        for name in ("warmup", "min_lr", "lora_dropout", "adam_beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise UsageError(f"{_flag(name)} {getattr(self, name)}: expected a fraction from 0 to below 1")
        if not 0 <= self.weight_decay < math.inf:
            raise UsageError(f"--weight-decay {self.weight_decay}: expected 0 or more")
        if self.steps is not None:
            _at_least("steps", self.steps, 1)
            if self.steps_of:
                raise UsageError("--steps and --steps-of both say how long to train: give one")
        if not self.mixture:
            raise UsageError("--sets: expected at least one set")
        self._check_zero(world_size)
        self._check_cache()

    def _check_parts(self) -> None:
        for part in self.tunable_parts.split(","):
            if part.strip() and part.strip() not in PARTS:
                raise UsageError(unknown("tunable part", part.strip(), PARTS))
        if not self.parts and not self.lora_rank:
            raise UsageError("--tunable-parts: nothing would be trained; name a part or give --lora-rank")
        if self.lora_rank and "mm_language_model" in self.parts:
            raise UsageError(
                "--lora-rank: adapters train beside a frozen language model; leave mm_language_model out of "
                "--tunable-parts"
            )
        for name, part in (("vision_tower_lr", "mm_vision_tower"), ("projector_lr", "mm_mlp_adapter")):
            if getattr(self, name) is not None and part not in self.parts:
                raise UsageError(f"{_flag(name)}: {part} is not in --tunable-parts, so nothing would use it")

    def _check_zero(self, world_size: int) -> None:
        if self.zero not in range(4):
            raise UsageError(f"--zero {self.zero}: expected a stage from 0 to 3")
        if self.offload_optimizer and self.zero == 0:
            raise UsageError("--offload-optimizer: needs --zero 1, 2 or 3")
        if self.offload_parameters and self.zero != 3:
            raise UsageError("--offload-parameters: needs --zero 3")
        if self.optimizer in ("adafactor", "muon") and self.zero:
            raise UsageError(
                f"--optimizer {self.optimizer} --zero {self.zero}: ZeRO flattens matrices, and this needs "
                "their shape; use --zero 0 or another optimizer"
            )
        if self.lora_rank and self.zero == 3:
            raise UsageError("--lora-rank --zero 3: not supported; adapters are small, use --zero 2")
        if world_size < 1:
            raise UsageError(f"world size {world_size}: expected at least 1")

    def _check_cache(self) -> None:
        if self.feature_cache is None:
            return
        if "mm_vision_tower" in self.parts:
            raise UsageError(
                "--feature-cache: the vision tower is trained, so its features change with every step; leave "
                "mm_vision_tower out of --tunable-parts"
            )
        if self.augment:
            raise UsageError(
                "--feature-cache: augmented frames differ every time they are read; give --no-augment too"
            )
        if not 0 < self.feature_cache_gb < math.inf:
            raise UsageError(f"--feature-cache-gb {self.feature_cache_gb}: expected a number above 0")


def step_options(options: StepOptions) -> dict[str, Any]:
    """The fields of `StepOptions` by name."""
    return {field.name: getattr(options, field.name) for field in fields(StepOptions)}


def parse_set(text: str) -> tuple[str, float]:
    """`NAME` or `NAME:WEIGHT`."""
    name, colon, weight = text.partition(":")
    try:
        value = float(weight) if colon else 1.0
    except ValueError:
        value = math.nan
    if not name or not 0 < value < math.inf:
        raise UsageError(f"--sets {text}: expected NAME or NAME:WEIGHT with a weight above 0")
    return name, value


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise UsageError(f"{_flag(name)} {value}: expected at least {least}")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
