"""Options of a training run, each defined once. Loads nothing heavy: the command line is made from it.

What only one kind of model knows (frames per window, say) is in that family's options, which derive from these.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from annotated_types import Interval

from vlnbench.errors import UsageError, unknown
from vlnbench.util.bounds import BelowOne, Count, Natural, NotNegative, Positive, check_bounds
from vlnbench.util.names import split_names

LAUNCHER_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun and the deepspeed launcher tell every process."""


Optimizer = Literal["adamw", "adafactor", "adamw8bit", "muon"]
OPTIMIZERS: tuple[str, ...] = get_args(Optimizer)
Precision = Literal["bf16", "fp32"]
PRECISIONS: tuple[str, ...] = get_args(Precision)
LearnsFrom = Literal["labels", "answers", "walks"]
"""What an objective learns from: labels of sets, or what the network itself answers or does in simulators."""


@dataclass(frozen=True)
class Adapters:
    """Low-rank adapters: their product is multiplied by alpha / rank; `seed` draws their first factors."""

    rank: int
    alpha: float = 16.0
    dropout: float = 0.05
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """What an optimizer step does: all that its memory depends on, shared by training and planning.

    The class variables are what a family says about its network: PARTS, the names of its tunable parts in order;
    FROZEN, those of parts that never train; ADAPTED, the part whose layers get low-rank adapters, if any can;
    CACHED, the part whose features can be kept while it is frozen, if there is one; FOLLOWS, whether its agent can
    go on from what somebody else did. EXECUTION is what an objective says: its options that change no result.
    """

    PARTS: ClassVar[tuple[str, ...]] = ()
    FROZEN: ClassVar[tuple[str, ...]] = ()
    ADAPTED: ClassVar[str | None] = None
    CACHED: ClassVar[str | None] = None
    FOLLOWS: ClassVar[bool] = True
    EXECUTION: ClassVar[tuple[str, ...]] = ()

    family: str = ""
    """Kind of model: a name from `vlnbench list` or an import string package.module:OBJECT; default what the
    checkpoint is. It decides which further options there are: give it with --help to see them."""
    tunable_parts: tuple[str, ...] = ()
    """Parts that are trained; everything else does not change by a single byte. One word may name several,
    separated by commas."""
    lora_rank: Natural = 0
    """Train low-rank adapters of this rank on the frozen language model's linear layers (merged when saving); 0:
    none."""
    batch: Count = 2
    """Windows per GPU and forward pass."""
    accumulation: Count = 2
    """Forward passes per optimizer step."""
    optimizer: Optimizer = "adamw"
    """adamw8bit needs bitsandbytes and CUDA. muon learns from scratch in fewer steps (--zero 0)."""
    zero: Annotated[int, Interval(ge=0, le=3)] = 2
    """DeepSpeed ZeRO stage, 0 to 3."""
    offload_optimizer: bool = False
    """Keep optimizer states in host memory (ZeRO 1 to 3)."""
    offload_parameters: bool = False
    """Keep parameters in host memory (ZeRO 3)."""
    deepspeed: Path | None = None
    """DeepSpeed JSON whose further settings are taken over; it must not contradict the options here."""
    gradient_checkpointing: bool = True
    """Recompute activations in the backward pass."""
    objective: str = "supervised"
    """What a step minimizes: supervised (labels of collected sets), grpo (rewards of what the network does by
    chance), or an import string package.module:OBJECT. It decides which further options there are: give it with
    --help to see them."""

    def __post_init__(self) -> None:
        words = [word for text in self.tunable_parts for word in split_names(text)]
        object.__setattr__(self, "tunable_parts", tuple(filter(None, words)))

    @property
    def learns_from(self) -> LearnsFrom:
        """What the objective learns from; objectives say it in the options that they add."""
        return "labels"

    @property
    def parts(self) -> tuple[str, ...]:
        """The tunable parts in the family's order, each once."""
        return tuple(part for part in self.PARTS if part in self.tunable_parts)

    @property
    def adapters(self) -> Adapters | None:
        """The adapters that are trained, None without."""
        return Adapters(self.lora_rank) if self.lora_rank else None

    def check(self, world_size: int = 1) -> None:
        """Raise UsageError for the first option that cannot be. Looks at no file. Families add checks."""
        check_bounds(self)
        self._check_parts()
        self._check_zero(world_size)

    def _check_parts(self) -> None:
        for part in self.tunable_parts:
            if part not in self.PARTS:
                raise UsageError(unknown("tunable part", part, self.PARTS))
        if not self.parts and not self.lora_rank:
            raise UsageError("--tunable-parts: nothing would be trained; name a part or give --lora-rank")
        if self.lora_rank and self.ADAPTED is None:
            raise UsageError("--lora-rank: models of this family have no place for adapters; leave it out")
        if self.lora_rank and self.ADAPTED in self.parts:
            raise UsageError(
                f"--lora-rank: adapters train beside a frozen part; leave {self.ADAPTED} out of --tunable-parts"
            )

    def _check_zero(self, world_size: int) -> None:
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


@dataclass(frozen=True, kw_only=True)
class PlanOptions(StepOptions):
    """One training setting whose memory is planned. GB of `gpus` means GiB less what the driver keeps."""

    model: str
    """What is planned: published sizes by their name, preset:NAME, a checkpoint that comes with vlnbench, by its
    name, or a folder (only its config and the shapes of its tensors are read)."""
    gpus: str = "1x80GB"
    """How many of what size: 8x80GB. GB is the size a card is sold as, GiB what PyTorch reports as its total."""
    dtype: Precision = "bf16"
    """Precision of weights and gradients."""
    as_published: bool = False
    """Plan the program that was published with the model instead of vlnbench's trainer: logits at every position,
    and its buffers."""
    spread: tuple[float, float] = (1.0, 1.0)
    """The shortest and the longest batch as shares of the planned one: blocks of every length are left behind.
    Default batches of one length; of published programs what their samples hold."""

    def check(self, world_size: int = 1) -> None:
        super().check(world_size)
        if self.dtype not in PRECISIONS:
            raise UsageError(f"--dtype {self.dtype}: expected {', '.join(PRECISIONS)}")
        if self.optimizer not in OPTIMIZERS:
            raise UsageError(f"--optimizer {self.optimizer}: expected {', '.join(OPTIMIZERS)}")
        if self.optimizer == "adamw8bit" and self.offload_optimizer:
            raise UsageError("--optimizer adamw8bit --offload-optimizer: 8-bit states work on the GPU only")
        least, most = self.spread
        if not 0 < least <= most < math.inf:
            raise UsageError(f"--spread {least:g} {most:g}: expected two shares above 0, the smaller one first")

    @classmethod
    def settings_of(cls, options: TrainOptions) -> dict[str, Any]:
        """The fields of the setting that the trainer would run on CUDA with these options, but for `gpus`."""
        return {
            **{each.name: getattr(options, each.name) for each in fields(cls) if hasattr(options, each.name)},
            "dtype": "fp32" if options.dtype == "float32" else "bf16",
            "model": options.checkpoint,
        }


@dataclass(frozen=True, kw_only=True)
class TrainOptions(StepOptions):
    """What is trained, on what, how and on what machine.

    Batch sizes count windows of steps. Learning rates hold for AdamW at the peak of the schedule. RATES: the
    option with a part's own learning rate, by part. INPUTS: the options that decide what a network sees and
    says, which are None for what its checkpoint was trained with. BEFORE: of these, what was the default
    in runs of before they could be None.
    """

    RATES: ClassVar[Mapping[str, str]] = {}
    INPUTS: ClassVar[tuple[str, ...]] = ()
    BEFORE: ClassVar[Mapping[str, object]] = {}

    checkpoint: str
    """What to start from: a folder, hf:ORG/NAME@REVISION on the Hugging Face hub, a checkpoint that comes with
    vlnbench, by its name, BASE+ADAPTERS, or preset:NAME for random weights."""
    out: Path
    """Folder of this run. The trained checkpoint appears in it as model/."""
    trajectories: Path = Path("trajectory_data")
    """Folder of the trajectory sets."""
    sets: tuple[str, ...] = ("R2R",)
    """Sets to train on: folders below --trajectories, each as NAME or NAME:WEIGHT (2 is twice per epoch)."""
    envdrop: bool = False
    """Train on the set EnvDrop too."""
    vocabulary_of: tuple[str, ...] = ()
    """Sets whose words a preset:NAME knows beside those of the sets that it is trained on: for trainings that
    go on from it."""

    lora_alpha: Positive = 16.0
    """Scale of the adapters: their product is multiplied by alpha / rank."""
    lora_dropout: BelowOne = 0.05
    """Dropout in front of the adapters."""

    epochs: Positive = 1.0
    """Passes over the data, where neither --steps nor --steps-of is given."""
    steps: Count | None = None
    """Optimizer steps."""
    steps_of: tuple[str, ...] = ()
    """As many optimizer steps as --epochs over these sets would take: compares data at equal compute."""
    learning_rate: Positive = 2e-5
    """Learning rate of the parts that have none of their own."""
    weight_decay: NotNegative = 0.0
    """Decoupled weight decay of matrices; biases and norms have none."""
    adam_beta2: BelowOne = 0.999
    """Decay of AdamW's second moments (muon: where it is AdamW); short trainings from scratch want less."""
    clip: Positive = 1.0
    """Largest norm of the gradient."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """How learning rates fall after the warm-up."""
    warmup: BelowOne = 0.03
    """Share of the steps in which learning rates rise from 0."""
    min_lr: BelowOne = 0.0
    """Where the schedule ends, as a fraction of each learning rate."""

    dtype: Literal["auto", "float32", "bfloat16", "mixed"] = "auto"
    """Precision of weights and gradients; auto is bfloat16 on CUDA (with a float32 master copy), else float32.
    mixed: float32 with products in bfloat16, for CPUs with units for these (AMX): a small model trained 1.1 to
    1.8 x as fast on an Intel Xeon. Without such units it may be slower."""
    tf32: bool = True
    """Allow TensorFloat-32 on CUDA in what float32 is left beside bfloat16; --dtype float32 is float32."""
    deterministic: bool = False
    """On CUDA take kernels that add up in one order, where PyTorch has such (a warning names those without, as
    the gradient of bilinear resizing): slower; a run that is repeated or resumed comes closest to itself."""
    compile: bool = False
    """Compile the model with torch.compile."""

    group_by_length: bool = False
    """Batch windows of like length, which saves padding. Each is still seen once per epoch, in another order."""
    group_ranks: bool = False
    """With --group-by-length: windows of like length on all GPUs at the same time, too, so that none waits for
    another or has a peak of its own."""
    feature_cache: Path | None = None
    """Folder in which features of frames are kept, where the part that makes them is frozen; not for frames that
    are altered every time."""
    feature_cache_gb: Positive = 20.0
    """Largest size of that folder in GB (1e9 bytes). When it is full, what is in it stays and no more is added."""
    tracker: tuple[str, ...] = ()
    """Trackers that follow the run: tensorboard, trackio, wandb, or import strings."""

    workers: Annotated[int, Interval(ge=0, le=1024)] = 2
    """Processes that read frames, per GPU."""
    prefetch: Count = 2
    """Batches that each of these processes reads ahead."""
    pin_memory: bool = False
    """Read batches into pinned memory, from which copies to a GPU are faster."""
    hang_minutes: NotNegative = 20.0
    """Minutes without progress after which every process says in which step, phase and call to the others it is,
    and ends; 0 waits for ever."""
    seed: Natural = 0
    """Seed of the order of windows, of phrases and of jitter."""
    log_every: Count = 10
    """Optimizer steps between lines of train_log.jsonl."""
    save_every: Count = 500
    """Optimizer steps between resumable states."""

    @property
    def adapters(self) -> Adapters | None:
        """The adapters that are trained, None without."""
        return Adapters(self.lora_rank, self.lora_alpha, self.lora_dropout, self.seed) if self.lora_rank else None

    @property
    def mixture(self) -> dict[str, float]:
        """Sets and their weights."""
        names = [*self.sets, *(["EnvDrop"] if self.envdrop else [])]
        return dict(parse_set(text) for text in names)

    def rate_of(self, part: str) -> float:
        """Peak learning rate of a part: its own, or that of all."""
        own: float | None = getattr(self, self.RATES.get(part, ""), None)
        return own or self.learning_rate

    def check(self, world_size: int = 1) -> None:
        super().check(world_size)
        for part, name in self.RATES.items():
            if getattr(self, name) is not None and part not in self.parts:
                raise UsageError(f"{flag(name)}: {part} is not in --tunable-parts, so nothing would use it")
        if not self.mixture:
            raise UsageError("--sets: expected at least one set")
        self._check_named_once("--sets", [*self.sets, *(["EnvDrop"] if self.envdrop else [])])
        self._check_named_once("--steps-of", self.steps_of)
        if self.group_ranks and not self.group_by_length:
            raise UsageError("--group-ranks: needs --group-by-length")
        if self.steps is not None and self.steps_of:
            raise UsageError("--steps and --steps-of both say how long to train: give one")
        if self.feature_cache is not None:
            self._check_cache()

    def _check_named_once(self, option: str, names: Sequence[str]) -> None:
        seen: dict[str, str] = {}
        for text in names:
            folder = os.path.realpath(self.trajectories / parse_set(text)[0])
            if folder in seen:
                beside = " (--envdrop adds EnvDrop)" if option == "--sets" and self.envdrop else ""
                raise UsageError(
                    f"{option} {seen[folder]} {text}: one set twice{beside}; name it once, as NAME:WEIGHT"
                )
            seen[folder] = text

    def _check_cache(self) -> None:
        if self.CACHED is None:
            raise UsageError("--feature-cache: models of this family have no features to keep; leave it out")
        if self.CACHED in self.parts:
            raise UsageError(
                f"--feature-cache: {self.CACHED} is trained, so its features change with every step; leave it out "
                "of --tunable-parts"
            )


def plain(options: StepOptions) -> dict[str, Any]:
    """Options by name as JSON has them: lists stay lists, paths are text."""
    found = asdict(options)
    return {name: _plain(found[name]) for name in found}


def defaults(options: StepOptions) -> dict[str, Any]:
    """Defaults of the options that have one, as JSON has them: what a run meant that does not know an option."""
    return {each.name: _plain(each.default) for each in fields(options) if each.default is not MISSING}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value


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


def flag(name: str) -> str:
    """An option's name on the command line."""
    return "--" + name.replace("_", "-")
