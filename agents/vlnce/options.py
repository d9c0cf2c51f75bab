"""What the command line knows of CMA and Seq2Seq: options, parts, networks to be made. Loads nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from agents.common.checkpoints.model_type import model_type
from agents.common.inputs import STRICT
from agents.common.sight.options import AuxiliaryOptions, FramesOptions, MirrorOptions, Size, Views
from vlnbench.data.sets import CONVERSATIONS, TRAJECTORIES
from vlnbench.errors import UsageError
from vlnbench.interfaces import Conventions
from vlnbench.rollout.agent_options import DeviceOptions
from vlnbench.training.family.spec import FamilySpec
from vlnbench.training.options import PlanOptions, Precision, StepOptions, TrainOptions
from vlnbench.util.bounds import BelowOne, Count, NotNegative, Positive

MODEL_TYPE = "vlnce"
"""What config.json of a checkpoint folder calls itself."""
PTH = ".pth"
"""How the names of released checkpoints end."""


@dataclass(frozen=True, kw_only=True)
class VLNCEOptions(FramesOptions, DeviceOptions):
    """How a checkpoint of VLN-CE is loaded and run. It computes in float32."""

    checkpoint: Path | None = None
    """File of a released checkpoint (.pth), which is read as data, nothing in it is run; a folder that training
    wrote, also on the Hugging Face hub (hf:ORG/NAME@REVISION); or the name of one that comes with vlnbench."""
    text_features: Path | None = None
    """Folder with the BERT features of RxR instructions (RxR_VLNCE_v0/text_features), where a model reads them."""


PARTS = ("instruction_encoder", "rgb_encoder", "depth_encoder", "state_encoder", "cross_modal", "action_head")
"""Tunable parts, by the network's own names. The encoders of images are their convolutions; what joins features of
images and text is `cross_modal`, the layers after the convolutions included."""
INSTRUCTION_ENCODER, RGB_ENCODER, DEPTH_ENCODER, STATE_ENCODER, CROSS_MODAL, ACTION_HEAD = PARTS


@dataclass(frozen=True, kw_only=True)
class VLNCEStep(StepOptions):
    """Options of this family that the memory of a step depends on."""

    PARTS: ClassVar[tuple[str, ...]] = PARTS
    CACHED: ClassVar[str | None] = RGB_ENCODER
    FOLLOWS: ClassVar[bool] = False

    tunable_parts: tuple[str, ...] = PARTS
    batch: int = 5
    """Walks per GPU and forward pass, each from start to end and under all of its instructions."""
    accumulation: int = 1
    zero: int = 0
    gradient_checkpointing: bool = False
    """Not possible here."""

    def check(self, world_size: int = 1) -> None:
        super().check(world_size)
        if self.gradient_checkpointing:
            raise UsageError("--gradient-checkpointing: a recurrent policy has no blocks; leave it out")


@dataclass(frozen=True, kw_only=True)
class VLNCETraining(AuxiliaryOptions, MirrorOptions, VLNCEStep, TrainOptions):
    """Training of a CMA or Seq2Seq. Defaults follow VLN-CE's.

    A set holds walks with depth (`collect --depth`). Walks with labels (`collect --dagger --relabel`) are learned
    as they are labeled.
    """

    RATES: ClassVar[Mapping[str, str]] = {
        INSTRUCTION_ENCODER: "instruction_lr",
        RGB_ENCODER: "rgb_lr",
        DEPTH_ENCODER: "depth_lr",
    }

    learning_rate: Positive = 2.5e-4
    instruction_lr: Positive | None = None
    """Learning rate of the instruction encoder."""
    rgb_lr: Positive | None = None
    """Learning rate of the RGB encoder."""
    depth_lr: Positive | None = None
    """Learning rate of the depth encoder."""
    schedule: Literal["cosine", "linear", "constant"] = "constant"
    warmup: BelowOne = 0.0
    dtype: Literal["auto", "float32", "bfloat16", "mixed"] = "auto"
    """Precision of weights and gradients; auto is float32, and there is no other here."""
    inflection_weight: Positive = 3.2
    """Weight in the loss of a step whose label differs from the one before it (RxR: 1.9)."""
    packed: Path | None = None
    """Folder in which decoded frames are kept, a file per set that all processes read; where neither rgb_encoder
    nor depth_encoder is trained, what they make of frames. A frame takes 12 kB (features: 6) for the small
    networks and 413 kB (CMA's features: 139) for the published ones."""
    progress_weight: NotNegative | None = None
    """Weight of the progress monitor beside the actions, 0 for none; default the checkpoint's."""

    def check(self, world_size: int = 1) -> None:
        super().check(world_size)
        self.check_auxiliary(RGB_ENCODER, self.parts, cached=self.feature_cache is not None)
        self.check_mirror(self.learns_from, cached=self.feature_cache is not None)
        if self.dtype in ("bfloat16", "mixed"):
            raise UsageError(f"--dtype {self.dtype}: these networks compute in float32; leave it out")
        if self.learns_from != "labels" and self.progress_weight is not None:
            raise UsageError("--progress-weight: for --objective supervised; leave it out")

    def _check_cache(self) -> None:
        super()._check_cache()
        if self.packed is not None:
            raise UsageError("--feature-cache --packed: features or frames are kept; leave one of them out")
        if DEPTH_ENCODER in self.parts:
            raise UsageError(
                "--feature-cache: keeps what both encoders make of a frame, and depth_encoder is trained; leave "
                "it out of --tunable-parts"
            )


@dataclass(frozen=True, kw_only=True)
class VLNCEPlanning(VLNCEStep, PlanOptions):
    """Memory planning of a CMA or Seq2Seq."""

    dtype: Precision = "fp32"
    length: Count = 60
    """Steps of a walk."""
    words: Count = 40
    """Words of an instruction."""

    def check(self, world_size: int = 1) -> None:
        super().check(world_size)
        if self.dtype != "fp32":
            raise UsageError(f"--dtype {self.dtype}: these networks compute in float32; leave it out")

    @classmethod
    def settings_of(cls, options: TrainOptions) -> dict[str, object]:
        return {**super().settings_of(options), "dtype": "fp32"}


Kind = Literal["cma", "seq2seq"]
Encoders = Literal["resnet50", "small"]
TOKENS, FEATURES = "instruction", "rxr_instruction"
"""The two sensors for instructions: tokens of R2R's vocabulary, BERT features of RxR."""


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """Sizes and switches of one network.

    `reads` is the sensor of the instruction. `text_size` is the LSTM's hidden size per direction, `state_size`
    that of the recurrent states. `rgb_width` and `depth_planes` are the channels of the first convolutions and
    `num_actions` the width of the action layer: released configs do not have them, the weights do. `encoders` are
    VLN-CE's ResNets, or small networks of our own (`agents.common.towers.grids`).
    """

    kind: Kind = "cma"
    encoders: Encoders = "resnet50"
    reads: str = TOKENS
    vocab_size: Size = 2504
    embedding_size: Size = 50
    text_size: Size = 128
    bidirectional: bool = True
    rgb_size: Size = 256
    depth_size: Size = 128
    state_size: Size = 512
    num_actions: Size = 4
    rgb_width: Size = 64
    depth_planes: Size = 32
    normalize_rgb: bool = False
    ablate_instruction: bool = False
    ablate_depth: bool = False
    ablate_rgb: bool = False
    use_prev_action: bool = False
    progress_monitor: bool = False
    progress_weight: float = 1.0
    tune_embeddings: bool = False
    tune_rgb: bool = False
    tune_depth: bool = False


@dataclass(frozen=True, slots=True)
class Config:
    """A checkpoint's whole config: its network, its views, the body it expects, and whether it samples actions.

    vocabulary: words of its own by number, from 2 on (0 is nothing, 1 an unknown word); empty: it reads the
    dataset's tokens.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    network: NetworkConfig
    views: Views
    expects: Conventions
    samples: bool
    vocabulary: tuple[str, ...] = ()


FRAME = (96, 128)
"""Height and width of what the small networks see before it is halved: every fifth pixel of 640 x 480."""


def _published(kind: Kind) -> Config:
    network = NetworkConfig(kind=kind, bidirectional=kind == "cma", progress_monitor=True)
    views = Views((224, 224), (256, 256), (0.0, 10.0))
    body = Conventions(width=224, height=224, hfov=90.0, camera_height_m=1.25, forward_m=0.25, turn_deg=15.0)
    return Config(network, views, body, samples=False)


def _tiny(kind: Kind) -> Config:
    network = NetworkConfig(
        kind=kind,
        encoders="small",
        embedding_size=64,
        text_size=64,
        bidirectional=kind == "cma",
        rgb_size=96,
        depth_size=64,
        state_size=192,
        rgb_width=32,
        depth_planes=16,
        use_prev_action=True,
    )
    views = Views(FRAME, FRAME, (0.0, 10.0), halved=True)
    body = Conventions(hfov=79.0, camera_height_m=1.25, forward_m=0.25, turn_deg=15.0)
    return Config(network, views, body, samples=False)


SIZES = {"cma": _published("cma"), "seq2seq": _published("seq2seq")}
PRESETS = {"cma-tiny": _tiny("cma"), "seq2seq-tiny": _tiny("seq2seq")}


def recognizes(path: Path) -> bool:
    """Whether a path is a folder with such a config.json, or a released checkpoint by its name."""
    if path.suffix == PTH:
        return path.is_file()
    return model_type(path) == MODEL_TYPE


FAMILY = FamilySpec(
    name="vlnce",
    training=VLNCETraining,
    planning=VLNCEPlanning,
    checkpoints="agents.vlnce.family:VLNCECheckpoints",
    trains="agents.vlnce.family:VLNCETrains",
    plans="agents.vlnce.family:VLNCEPlans",
    recognizes=recognizes,
    agent="vlnce",
    presets=("cma-tiny", "seq2seq-tiny"),
    sizes=("cma", "seq2seq"),
    set_files=(TRAJECTORIES, CONVERSATIONS),
)
