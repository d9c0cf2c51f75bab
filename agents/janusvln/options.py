"""What the command line knows of JanusVLN: its inputs, its options, its family. Loads nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

from agents.common.checkpoints.model_type import is_network
from agents.common.inputs import Inputs, Wording
from agents.common.language.preset import LanguageSizes
from agents.common.options import GraphsOptions, LanguageModelPlanning, TokenizerOptions
from agents.common.sets.layouts import SET_FILES
from agents.common.towers.geometry_sizes import GeometrySizes
from vlnbench.errors import UsageError
from vlnbench.training.family.spec import FamilySpec
from vlnbench.training.inference_options import InferenceOptions
from vlnbench.training.options import StepOptions, TrainOptions
from vlnbench.util.bounds import Count, NotNegative, Positive

ARCHITECTURE = "Qwen2_5_VLForConditionalGenerationForJanusVLN"
"""What config.json of a published checkpoint calls the network; its model type is Qwen2.5-VL's."""

BLOCK = 28
"""Pixels of an embedding across."""


def image_width(width: int, where: str) -> int:
    """The width itself. Raises UsageError, which begins with `where`, unless it is whole embeddings."""
    if width < BLOCK or width % BLOCK:
        raise UsageError(f"{where}: expected a multiple of {BLOCK} pixels, such as 644, 532, 448 or 392")
    return width


@dataclass(frozen=True, kw_only=True)
class JanusVLNInputs(Inputs):
    """What a JanusVLN sees and how it is asked; `JanusVLNAsked` has the same fields as options."""

    history: int = 8
    image_width: int = 644  # 23 embeddings across
    wording: Wording = "evaluation"


@dataclass(frozen=True, kw_only=True)
class JanusVLNShown:
    """Options that decide what the network sees. None: as the checkpoint was trained."""

    history: Count | None = None
    """Earlier frames shown beside the current one, spread evenly over the episode so far; default as the
    checkpoint was trained, 8 as published."""
    image_width: int | None = None
    """Pixels to which frames are scaled for both encoders, a multiple of 28; default as the checkpoint was
    trained, 644 as published."""


@dataclass(frozen=True, kw_only=True)
class JanusVLNAsked(JanusVLNShown):
    """The same, and how questions are put."""

    wording: Wording | None = None
    """How questions are put: as the published training does, or as its evaluation, which is another text. Default
    as the checkpoint was trained; where it does not say, published in training on labels, else evaluation."""


@dataclass(frozen=True, kw_only=True)
class JanusVLNOptions(JanusVLNAsked, TokenizerOptions, GraphsOptions):
    """How JanusVLN is loaded and run."""

    attn: Literal["auto", "eager", "sdpa"] = "auto"
    """Attention of the language model; auto is SDPA, which has PyTorch's own flash kernels."""
    max_new_tokens: Count = 24
    """Tokens of one answer at most."""
    first_frames: Count = 8
    """Frames from the start of an episode of which VGGT keeps keys and values."""
    recent_frames: Count = 48
    """The same of the latest frames. Fewer need less memory, 0.15 GB each with the published sizes, and answer
    otherwise."""
    max_steps: Count = 400
    """Step from which on every action is STOP; a STOP near the goal succeeds. 400 as published; 500 is the
    benchmarks' own limit."""


PARTS = ("mm_vision", "mm_mlp", "mm_llm", "geometry_merger")
"""Tunable parts. The first three are the published training's switches (tune_mm_vision and so on); what brings
VGGT's features into the language model has none there and always trains."""
VISION, MLP, LLM, GEOMETRY_MERGER = PARTS
VGGT = "vggt"
"""The part that never trains."""


@dataclass(frozen=True, kw_only=True)
class JanusVLNStep(JanusVLNShown, StepOptions):
    """Options of this family that the memory of a step depends on."""

    PARTS: ClassVar[tuple[str, ...]] = PARTS
    FROZEN: ClassVar[tuple[str, ...]] = (VGGT,)
    ADAPTED: ClassVar[str | None] = LLM
    CACHED: ClassVar[str | None] = VGGT

    tunable_parts: tuple[str, ...] = PARTS
    """Parts that are trained; everything else does not change by a single byte. One word may name several,
    separated by commas. The published training: mm_mlp,mm_llm,geometry_merger."""
    train_head: bool = False
    """Train the output layer though mm_llm is frozen, as the published code does whatever its switches say."""
    batch: Count = 1
    """Steps of walks per GPU and forward pass."""
    accumulation: Count = 8

    def check(self, world_size: int = 1) -> None:
        super().check(world_size)
        if self.image_width is not None:
            image_width(self.image_width, f"--image-width {self.image_width}")
        if self.train_head and LLM in self.parts:
            raise UsageError(f"--train-head: the output layer is of {LLM}, which trains anyway; leave it out")


@dataclass(frozen=True, kw_only=True)
class JanusVLNTraining(JanusVLNAsked, JanusVLNStep, TokenizerOptions, TrainOptions):
    """Training of a JanusVLN, on single steps of walks. Defaults follow its published training.

    A set holds episodes with a folder of frames each, step_K_ACTION.png (train.json or train_guide.json beside
    train/ or images/), or trajectories (annotations.json).
    """

    INPUTS: ClassVar[tuple[str, ...]] = ("history", "image_width", "wording")
    RATES: ClassVar[Mapping[str, str]] = {
        VISION: "vision_tower_lr",
        MLP: "projector_lr",
        GEOMETRY_MERGER: "geometry_lr",
    }

    vision_tower_lr: Positive | None = None
    """Learning rate of Qwen's vision tower (published: 1e-6, but it does not train there)."""
    projector_lr: Positive | None = None
    """Learning rate of Qwen's merger (published: 1e-5)."""
    geometry_lr: Positive | None = None
    """Learning rate of the geometry merger (published: 1e-5)."""
    weight_decay: NotNegative = 0.01
    """Decoupled weight decay of everything but biases: of norms, too, as the published training has it."""
    attn: Literal["auto", "eager", "sdpa"] = "auto"
    """Attention of the language model; auto is SDPA."""
    instructions: Literal["first", "all"] = "first"
    """Of a trajectory with several instructions: the first, as published, or one sample for each."""
    chronological: bool = False
    """Sort step_K_ACTION.png by K. The published builder sorts names as text, so that without leading zeros step
    10 comes before step 2."""


@dataclass(frozen=True, kw_only=True)
class JanusVLNPlanning(JanusVLNStep, LanguageModelPlanning):
    """Memory planning of a JanusVLN."""

    model: str = "janusvln-7b"
    text_tokens: Count = 230
    """Tokens of a sample that are not images; long RxR instructions make it about 400."""
    attn: Literal["sdpa", "eager"] = "sdpa"
    """Attention of the language model."""


@dataclass(frozen=True, kw_only=True)
class JanusVLNInference(JanusVLNShown, InferenceOptions):
    """Planning what a JanusVLN needs while it acts."""

    model: str = "janusvln-7b"
    first_frames: Count = 8
    """Frames from the start of an episode of which VGGT keeps keys and values."""
    recent_frames: Count = 48
    """The same of the latest frames."""
    text_tokens: Count = 230
    """Tokens of a question that are not images; long RxR instructions make it about 400."""


class Preset(NamedTuple):
    """A small network to train from scratch: config.json but for its tokens, VGGT's sizes, and how many tokens are
    learned from instructions at most."""

    config: Mapping[str, Any]
    geometry: GeometrySizes
    vocabulary: int


PRESETS = {
    "janusvln-tiny": Preset(
        {
            "architectures": [ARCHITECTURE],
            "model_type": "qwen2_5_vl",
            **LanguageSizes(128, 384, layers=4, heads=4, kv_heads=2, vocabulary=1000).language(1024, 0, 0),
            "rope_scaling": {"type": "mrope", "mrope_section": [6, 5, 5]},
            "image_token_id": 1,
            "lam": 0.2,
            "vggt_merger_hidden_dim": 128,
            "image_width": 112,
            "vision_config": {
                "hidden_size": 128,
                "intermediate_size": 256,
                "depth": 2,
                "num_heads": 4,
                "window_size": 112,
                "fullatt_block_indexes": [1],
                "out_hidden_size": 128,
            },
        },
        GeometrySizes(
            width=32,
            intermediate_size=64,
            depth=2,
            heads=2,
            registers=2,
            dino_intermediate_size=64,
            dino_depth=1,
            dino_registers=2,
            position_side=8,
            head_width=4,
            head_channels=(4, 4, 4, 4),
        ),
        vocabulary=1000,
    ),
}


FAMILY = FamilySpec(
    name="janusvln",
    training=JanusVLNTraining,
    planning=JanusVLNPlanning,
    inference=JanusVLNInference,
    checkpoints="agents.janusvln.family:JanusVLNCheckpoints",
    trains="agents.janusvln.family:JanusVLNTrains",
    plans="agents.janusvln.family:JanusVLNPlans",
    recognizes=partial(is_network, architecture=ARCHITECTURE),
    agent="janusvln",
    presets=tuple(PRESETS),
    sizes=("janusvln-7b", "janusvln-3b"),
    set_files=SET_FILES,
    launch_flags={
        "tune_mm_llm": "+mm_llm",
        "tune_mm_vision": "+mm_vision",
        "tune_mm_mlp": "+mm_mlp",
        "video_max_frames": "history",
        "dataset_use": "-names of its own list of data; give --trajectories and --sets",
        "vggt_model_path": "-the checkpoint holds it",
        "data_flatten": "-questions are packed where that saves memory",
        **dict.fromkeys(("max_pixels", "min_pixels"), "-resized as published; --image-width makes less"),
        **dict.fromkeys(("video_min_frames", "video_max_frame_pixels", "video_min_frame_pixels"), ""),
        **dict.fromkeys(("base_interval", "reference_frame"), ""),
    },
)
