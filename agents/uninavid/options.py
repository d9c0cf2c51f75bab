"""What the command line knows of Uni-NaVid: its inputs, its options, its parts, its sizes. Loads nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Interval

from agents.common.checkpoints.model_type import is_network
from agents.common.inputs import Inputs
from agents.common.language.preset import TINY, SeeingSizes
from agents.common.options import LanguageModelOptions, LanguageModelPlanning, SeeingTraining
from agents.common.sight.options import FramesOptions
from vlnbench.data.sets import CONVERSATIONS, TRAJECTORIES
from vlnbench.errors import UsageError
from vlnbench.training.family.spec import FamilySpec
from vlnbench.training.family.trains import PartRule
from vlnbench.training.inference_options import InferenceOptions
from vlnbench.training.options import StepOptions
from vlnbench.util.bounds import Count, Natural, NotNegative

PARTS = ("vision_tower", "mm_projector", "language_model")
"""Tunable parts; the original's flags are tune_vision_encoder, tune_mm_mlp_adapter and freeze_backbone."""
VISION_TOWER, PROJECTOR, LANGUAGE_MODEL = PARTS

PARTS_TABLE = (
    PartRule(r"model\.vision_tower\..*(cls_token|embed)", VISION_TOWER, hidden=False),
    PartRule(r"model\.vision_tower\.", VISION_TOWER),
    PartRule(r"model\.mm_projector\.", PROJECTOR),
    PartRule("lm_head|.*embed", LANGUAGE_MODEL, hidden=False),
    PartRule("", LANGUAGE_MODEL, decays="all but biases"),  # as published: norms decay, too
)

ARCHITECTURE = "LlavaLlamaAttForCausalLM"
PUBLISHED_SET = "open_uninavid_sampled_500.json"
"""The file of the released records, in the layout of `CONVERSATIONS`."""
CURRENT = 8
"""Side of the square of tokens that the current frame has."""


@dataclass(frozen=True, kw_only=True)
class UniNaVidInputs(Inputs):
    """How frames are remembered: the last `window_frames` as they are; of older ones a token each, and one for
    neighbors of which the cosine is above `similarity`."""

    window_frames: int = 64
    similarity: float = 0.985


@dataclass(frozen=True, kw_only=True)
class UniNaVidShown:
    """Options that decide what the network sees. None: as the checkpoint was trained."""

    window_frames: Count | None = None
    """Frames that are remembered whole, the current one among them; default as trained, else 64."""
    similarity: Annotated[float, Interval(ge=-1, le=1)] | None = None
    """Older frames share a token where its cosine with the next frame's is above this; default as trained, else
    0.985."""
    vision_tower: Path | None = None
    """The vision tower's own file, eva_vit_g.pth. The published folder's copy of the tower is not read, as its
    program does not; default the file of that name in the folder or beside it. Checkpoints of vlnbench hold their
    tower."""


@dataclass(frozen=True, kw_only=True)
class UniNaVidOptions(FramesOptions, UniNaVidShown, LanguageModelOptions):
    """How Uni-NaVid is loaded and run."""

    max_new_tokens: Count = 24
    """Tokens of one answer at most. The published 1,024 give the same actions: nobody looks behind the words that
    are executed."""
    temperature: NotNegative = 0.2
    """Of drawing tokens, as published, but by the episode's seed; 0 always takes the likeliest."""
    top_p: Annotated[float, Interval(gt=0, le=1)] | None = None
    """Tokens are drawn from the likeliest with this share of the probability; default what
    generation_config.json says, else 1."""
    top_k: Count = 50
    """Tokens are drawn from so many of the likeliest."""
    executed: Annotated[int, Interval(ge=1, le=4)] = 2
    """Actions of an answer that are done before the next question; the model says four."""
    unreadable: Literal["stop", "forward", "skip"] = "stop"
    """What an answer is with a word that is no action among those to be executed, or without any, where the
    published program ends: the end of the episode, or a step ahead; skip: such words are left out, as the
    published demonstration does, and an answer without others is the end of the episode."""
    still_limit: Natural = 25
    """STOP after more steps than these without getting anywhere, turns or blocked ones, as in the published
    evaluation; 0: never."""
    step_limit: Count | None = None
    """STOP at any later step; default as published: 400, and 500 for RxR's episodes."""
    channels: Literal["rgb", "bgr"] = "rgb"
    """Order of colors; the published demonstration shows bgr to a network that was trained on rgb."""


@dataclass(frozen=True, kw_only=True)
class UniNaVidStep(UniNaVidShown, StepOptions):
    """Options of this family that the memory of a step depends on."""

    PARTS: ClassVar[tuple[str, ...]] = PARTS
    ADAPTED: ClassVar[str | None] = LANGUAGE_MODEL
    CACHED: ClassVar[str | None] = VISION_TOWER

    tunable_parts: tuple[str, ...] = PARTS
    """Parts that are trained; everything else does not change by a single byte. One word may name several,
    separated by commas. Published are mm_projector,language_model."""


@dataclass(frozen=True, kw_only=True)
class UniNaVidTraining(UniNaVidStep, SeeingTraining):
    """Training of a Uni-NaVid: on walks as they are collected here, or on its own records of videos and pictures
    (open_uninavid_sampled_500.json, conversations.json)."""

    INPUTS: ClassVar[tuple[str, ...]] = ("window_frames", "similarity")
    RATES: ClassVar[Mapping[str, str]] = {VISION_TOWER: "vision_tower_lr", PROJECTOR: "projector_lr"}

    every: Count = 2
    """Of walks: steps from one question to the next, as many as the agent executes of an answer."""
    longest_text: Count = 2048
    """Tokens of a sample that are not frames; what is behind them is cut off."""
    augment: bool = True
    """Leave frames of walks out or show them twice at times, and change their colors, as published."""
    trust_pickle: bool = False
    """Read weights from pickle files too (tensors only), which the published folder has."""

    def check(self, world_size: int = 1) -> None:
        super().check(world_size)
        if self.feature_cache is not None and self.augment:
            raise UsageError(
                "--feature-cache: augmented frames differ every time they are read; give --no-augment too"
            )


@dataclass(frozen=True, kw_only=True)
class UniNaVidPlanning(UniNaVidStep, LanguageModelPlanning):
    """Memory planning of a Uni-NaVid."""

    model: str = "uninavid-7b"
    frames: Count = 64
    """Frames of a sample."""
    text_tokens: Count = 150
    """Tokens of a question that are not frames; long RxR instructions make it about 270."""
    answer_tokens: Count = 5
    """Tokens of an answer."""


@dataclass(frozen=True, kw_only=True)
class UniNaVidInference(UniNaVidShown, InferenceOptions):
    """Planning what a Uni-NaVid needs while it acts."""

    model: str = "uninavid-7b"
    max_new_tokens: Count = 24
    """Tokens of one answer at most."""


PUBLISHED: dict[str, Any] = {
    "architectures": [ARCHITECTURE],
    "model_type": "llama",
    "compress_type": "grid:2",
    "run_type": "train",
    "mm_projector_type": "mlp2x_gelu",
    "mm_vision_tower": "./model_zoo/eva_vit_g.pth",
    "image_processor": "./uninavid/processor/clip-patch14-224",
    "mm_vision_select_feature": "patch",
    "mm_vision_select_layer": -2,
    "mm_use_im_start_end": False,
    "mm_use_im_patch_token": False,
    "image_aspect_ratio": "pad",
    "use_mm_proj": True,
    "max_token": 2048,
    "max_position_embeddings": 4096,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
"""Fields of config.json, but for the sizes."""

UNINAVID_7B: Mapping[str, Any] = PUBLISHED | {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32006,
    "rms_norm_eps": 1e-5,
    "mm_hidden_size": 1408,
    "torch_dtype": "bfloat16",
}
"""Vicuna-7B v1.5 with six tokens more."""


class Preset(SeeingSizes):
    """Sizes of a small model."""

    def config(self, vocab_size: int, begin: int, end: int) -> dict[str, Any]:
        """config.json. begin, end: the tokens around a text."""
        tower = {**self.tower(), "hidden_act": "gelu"}
        language = {**self.language(vocab_size, begin, end), "mm_hidden_size": self.vision_width}
        return {**PUBLISHED, **language, "vision_config": tower}


SIZES: Mapping[str, Mapping[str, Any]] = {"uninavid-7b": UNINAVID_7B}

PRESETS = {"uninavid-tiny": Preset(**TINY | {"kv_heads": 4})}


FAMILY = FamilySpec(
    name="uninavid",
    training=UniNaVidTraining,
    planning=UniNaVidPlanning,
    inference=UniNaVidInference,
    checkpoints="agents.uninavid.family:UniNaVidCheckpoints",
    trains="agents.uninavid.family:UniNaVidTrains",
    plans="agents.uninavid.family:UniNaVidPlans",
    recognizes=partial(is_network, architecture=ARCHITECTURE),
    agent="uninavid",
    presets=tuple(PRESETS),
    sizes=tuple(SIZES),
    set_files=(TRAJECTORIES, CONVERSATIONS, PUBLISHED_SET),
    launch_flags={
        # Whatever it says, no gradient reaches the tower in the published program.
        "tune_vision_encoder": f"=tunable_parts {PROJECTOR} {LANGUAGE_MODEL}",
        "freeze_mm_mlp_adapter": f"-give --tunable-parts {LANGUAGE_MODEL}",
        "tune_mm_mlp_adapter": f"-give --tunable-parts {PROJECTOR}",
        "freeze_backbone": f"-give --tunable-parts {PROJECTOR}",
        "model_max_length": "longest_text",
        "vision_tower": "vision_tower",
        "data_path": f"-a file of records; give --trajectories and --sets, folders with {PUBLISHED_SET}",
        **dict.fromkeys(("video_folder", "image_folder"), "-paths in records are those below the set's folder"),
        "lr_multi": "-give --vision-tower-lr and --projector-lr",
        **dict.fromkeys(("version", "compress_type", "video_fps", "image_processor", "mm_projector_type"), ""),
        **dict.fromkeys(("mm_vision_select_layer", "mm_use_im_start_end", "mm_use_im_patch_token"), ""),
        "image_aspect_ratio": "",
    },
)
