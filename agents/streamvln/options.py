"""What the command line knows of StreamVLN: its options, its parts, its family. Loads nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from agents.common.checkpoints.model_type import model_type
from agents.common.decoders.windows import Windows
from agents.common.inputs import Wording
from agents.common.language.preset import TINY, SeeingSizes
from agents.common.options import LanguageModelOptions, LanguageModelPlanning, SeeingTraining, TokenizerOptions
from agents.common.sight.options import AuxiliaryOptions, FramesOptions, MirrorOptions
from vlnbench.data.sets import CONVERSATIONS, TRAJECTORIES
from vlnbench.errors import UsageError
from vlnbench.training.family.spec import FamilySpec
from vlnbench.training.family.trains import PartRule, rule_of
from vlnbench.training.inference_options import InferenceOptions
from vlnbench.training.options import StepOptions
from vlnbench.util.bounds import Count, Positive

PARTS = ("mm_vision_tower", "mm_mlp_adapter", "mm_language_model")
"""Tunable parts, by the names of LLaVA-NeXT, which StreamVLN's training has kept."""
VISION_TOWER, PROJECTOR, LANGUAGE_MODEL = PARTS

TABLE = (
    PartRule("auxiliary", VISION_TOWER),
    PartRule(".*vision_tower.*post_layernorm", VISION_TOWER, trains="never"),  # the last layer norm is never used
    PartRule(".*vision_tower.*embed", VISION_TOWER, hidden=False),
    PartRule(".*vision_tower", VISION_TOWER),
    PartRule(".*mm_projector", PROJECTOR),
    PartRule("lm_head|.*embed", LANGUAGE_MODEL, hidden=False),
    PartRule("", LANGUAGE_MODEL),
)
"""By the name rules of the original training code."""


def part_of(name: str) -> str:
    """Which tunable part a parameter belongs to."""
    return rule_of(TABLE, name).part


@dataclass(frozen=True, kw_only=True)
class StreamVLNShown:
    """Options that decide what the network sees. None: as the checkpoint was trained."""

    frames: Count | None = None
    """Steps per window; default as the checkpoint was trained, 32 where it does not say."""
    history: Count | None = None
    """Memory frames per window; default as trained, else 8."""
    future_steps: Count | None = None
    """Actions per turn; default as trained, else 4."""
    image_size: Count | None = None
    """Width and height in pixels to which images are resized; default the checkpoint's. Another size interpolates
    the vision tower's position table."""


@dataclass(frozen=True, kw_only=True)
class StreamVLNStep(StreamVLNShown, StepOptions):
    """Options of this family that the memory of a step depends on."""

    PARTS: ClassVar[tuple[str, ...]] = PARTS
    ADAPTED: ClassVar[str | None] = LANGUAGE_MODEL
    CACHED: ClassVar[str | None] = VISION_TOWER

    tunable_parts: tuple[str, ...] = PARTS
    vision_tower: Path | None = None
    """Folder with the config.json of the vision tower, where the checkpoint names one of another size."""

    def check(self, world_size: int = 1) -> None:
        super().check(world_size)
        if None not in (self.frames, self.history, self.future_steps):  # else later, when they are settled
            _ = self.windows

    @property
    def windows(self) -> Windows:
        """How trajectories are cut, of options that are settled. Raises UsageError where that is not evenly."""
        assert self.frames is not None
        assert self.history is not None
        assert self.future_steps is not None
        return Windows(self.frames, self.history, self.future_steps)


@dataclass(frozen=True, kw_only=True)
class StreamVLNTraining(AuxiliaryOptions, MirrorOptions, StreamVLNStep, TokenizerOptions, SeeingTraining):
    """Training of a StreamVLN. Defaults follow its published training.

    A set holds trajectories (annotations.json) or questions about images (conversations.json, LLaVA's layout).
    """

    RATES: ClassVar[Mapping[str, str]] = {VISION_TOWER: "vision_tower_lr", PROJECTOR: "projector_lr"}
    INPUTS: ClassVar[tuple[str, ...]] = ("frames", "history", "future_steps", "image_size", "wording")
    BEFORE: ClassVar[Mapping[str, object]] = {
        "frames": 32,
        "history": 8,
        "future_steps": 4,
        "wording": "published",
    }

    wording: Wording | None = None
    """How windows are written: as the published training does, or as the evaluation, with an empty assistant block
    before each answer, which a model trained from scratch has to have seen. Default as trained, else published."""
    augment: bool = True
    """Jitter brightness, saturation, sharpness, contrast and depth of color, frame by frame."""
    inflection_weight: Positive = 1.0
    """Weight in the loss of an action that differs from the one before it (VLN-CE trains with 3.2)."""
    questions_at_once: Count | None = None
    """Of the questions about an image a window asks so many, drawn anew every epoch, in any order: where all are
    asked in order, later answers can be read off earlier ones. Default all, as published data want it."""
    packed: Path | None = None
    """Folder in which resized frames are kept, a file per set that all processes read. A frame takes 28 kB for the
    small model and 442 kB for images of 384 pixels."""

    def check(self, world_size: int = 1) -> None:
        super().check(world_size)
        self.check_auxiliary(VISION_TOWER, self.parts, cached=self.feature_cache is not None)
        self.check_mirror(self.learns_from, cached=self.feature_cache is not None)
        if self.feature_cache is not None and self.augment:
            raise UsageError(
                "--feature-cache: augmented frames differ every time they are read; give --no-augment too"
            )
        if self.packed is not None and (self.augment or self.feature_cache is not None):
            instead = "leave --feature-cache out" if self.feature_cache is not None else "give --no-augment too"
            raise UsageError(f"--packed: keeps frames that are read, and read alike every time; {instead}")


@dataclass(frozen=True, kw_only=True)
class StreamVLNPlanning(StreamVLNStep, LanguageModelPlanning):
    """Memory planning of a StreamVLN."""

    model: str = "streamvln-8b"
    text_tokens: Count = 450
    """Tokens of a window that are not images; long RxR instructions make it about 750."""


@dataclass(frozen=True, kw_only=True)
class StreamVLNInference(InferenceOptions):
    """Planning what a StreamVLN needs while it acts."""

    model: str = "streamvln-8b"
    image_size: Count | None = None
    """Width and height in pixels of images; default the checkpoint's."""
    vision_tower: Path | None = None
    """Folder with the config.json of the vision tower, where the checkpoint names one of another size."""
    max_new_tokens: Count = 512
    """Tokens of one answer at most."""


@dataclass(frozen=True, kw_only=True)
class StreamVLNOptions(FramesOptions, TokenizerOptions, LanguageModelOptions):
    """How StreamVLN is loaded and run."""

    vision_tower: Path | None = None
    """Folder with the config.json of the vision tower, where the checkpoint names one of another size."""
    compile: bool = False
    """Compile the model with torch.compile."""

    def check(self) -> None:
        super().check()
        if self.compile and (self.quantize or self.cuda_graphs):
            name = "--quantize" if self.quantize else "--cuda-graphs"
            raise UsageError(f"{name}: not for a model that is compiled; leave --compile out")


MODEL_TYPE = "llava_qwen"
"""What config.json of a published checkpoint calls itself."""


STREAMVLN_8B: Mapping[str, Any] = {
    "model_type": "llava_qwen",
    "mm_projector_type": "mlp2x_gelu",
    "mm_spatial_pool_mode": "bilinear",
    "mm_vision_tower": "google/siglip-so400m-patch14-384",
    "mm_hidden_size": 1152,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "bfloat16",
}
"""Sizes of the published StreamVLN (LLaVA-Video-7B-Qwen2 with SigLIP so400m): 8,030,345,248 parameters."""

SIZES: Mapping[str, Mapping[str, Any]] = {"streamvln-8b": STREAMVLN_8B}


class Preset(SeeingSizes):
    """Sizes of a small model."""

    def config(self, vocab_size: int, end: int, block_end: int) -> dict[str, Any]:
        """config.json of a model of these sizes, in the fields of the published checkpoints."""
        tower = f"siglip-{self.vision_width}-patch{self.patch_size}-{self.image_size}"
        return {
            "architectures": ["StreamVLNForCausalLM"],
            "model_type": MODEL_TYPE,
            **self.language(vocab_size, end, block_end),
            "max_position_embeddings": 4096,
            "mm_hidden_size": self.vision_width,
            "mm_projector_type": "mlp2x_gelu",
            "mm_spatial_pool_mode": "bilinear",
            "mm_vision_tower": tower,
            "mm_vision_select_feature": "patch",
            "mm_vision_select_layer": -2,
            "num_history": 8,
            "num_future_steps": 4,
            "vision_config": self.tower(),
        }


PRESETS = {"streamvln-tiny": Preset(**TINY)}


def recognizes(folder: Path) -> bool:
    """Whether a folder's config.json is that of a StreamVLN."""
    return model_type(folder) == MODEL_TYPE


FAMILY = FamilySpec(
    name="streamvln",
    training=StreamVLNTraining,
    planning=StreamVLNPlanning,
    inference=StreamVLNInference,
    checkpoints="agents.streamvln.family:StreamVLNCheckpoints",
    trains="agents.streamvln.family:StreamVLNTrains",
    plans="agents.streamvln.family:StreamVLNPlans",
    recognizes=recognizes,
    agent="streamvln",
    presets=tuple(PRESETS),
    sizes=tuple(SIZES),
    set_files=(TRAJECTORIES, CONVERSATIONS),
    launch_flags={
        "video_folder": "@folders",
        "num_history": "history",
        "num_future_steps": "future_steps",
        "num_frames": "frames",
        "data_augmentation": "augment",
        "vision_tower": "-the checkpoint's; another one is --vision-tower FOLDER",
        "group_by_task": "-tasks are mixed",
        **dict.fromkeys(("version", "mm_projector_type", "mm_vision_select_layer", "mm_use_im_start_end"), ""),
        **dict.fromkeys(("mm_use_im_patch_token", "image_aspect_ratio", "image_grid_pinpoints"), ""),
    },
)
