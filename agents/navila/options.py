"""What the command line knows of NaVILA: its inputs, its options, its parts, its sizes. Loads nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from agents.common.checkpoints.model_type import model_type
from agents.common.inputs import Inputs
from agents.common.language.preset import TINY, SeeingSizes
from agents.common.options import LanguageModelOptions, LanguageModelPlanning, SeeingTraining
from agents.common.sight.options import FramesOptions
from vlnbench.data.sets import TRAJECTORIES
from vlnbench.errors import UsageError, unknown
from vlnbench.training.family.spec import FamilySpec
from vlnbench.training.family.trains import PartRule
from vlnbench.training.inference_options import InferenceOptions
from vlnbench.training.options import StepOptions
from vlnbench.util.bounds import Count

PARTS = ("vision_tower", "mm_projector", "language_model")
"""Tunable parts, by the names of the original's flags (tune_vision_tower, and so on)."""
VISION_TOWER, PROJECTOR, LANGUAGE_MODEL = PARTS

MODEL_TYPE = "llava_llama"
FOLDERS = ("llm", "vision_tower", "mm_projector")
"""Where a checkpoint folder has its parts."""

SET_FILES = (TRAJECTORIES, "annotations/ScanQA_v1.0_train_reformat.json")
"""What says what a set holds, the latter in NaVILA's ScanQA."""

HISTORY = 7

Instructions = Literal["published", "raw", "normalized"]


def parts_table(last: int) -> tuple[PartRule, ...]:
    """last: number of the vision tower's last block, which nobody looks at, like all that comes behind it."""
    return (
        PartRule(rf"vision_tower\..*(layers\.{last}\.|post_layernorm|head\.)", VISION_TOWER, trains="never"),
        PartRule(r"vision_tower\..*embed", VISION_TOWER, hidden=False),
        PartRule(r"vision_tower\.", VISION_TOWER),
        PartRule(r"mm_projector\.", PROJECTOR),
        PartRule("lm_head|.*embed", LANGUAGE_MODEL, hidden=False),
        PartRule("", LANGUAGE_MODEL),
    )


@dataclass(frozen=True, kw_only=True)
class NaVILAInputs(Inputs):
    """What a network is told, beside what config.json says of its frames.

    instructions: published trains on instructions in lower case but for the beginnings of sentences, and evaluates
    on them as they are; raw leaves them as they are in both, normalized in neither.
    """

    instructions: Instructions = "published"


@dataclass(frozen=True, kw_only=True)
class NaVILAShown:
    """Options that decide what the network sees. None: as the checkpoint was trained."""

    history: Count | None = None
    """Earlier frames in a question, beside the current one; default the checkpoint's (one less than
    num_video_frames), 7."""
    instructions: Instructions | None = None
    """How instructions are written: published trains with all but the beginnings of sentences in lower case, and
    evaluates with the text as it is; raw: as it is, always; normalized: never. Default as trained, else
    published."""


@dataclass(frozen=True, kw_only=True)
class NaVILAOptions(FramesOptions, NaVILAShown, LanguageModelOptions):
    """How NaVILA is loaded and run."""

    max_new_tokens: Count = 32
    unreadable: Literal["forward", "stop"] = "forward"
    """What an answer is that names no action, where the published code fails: a step ahead, which it means to take
    then, or the end of the episode."""


@dataclass(frozen=True, kw_only=True)
class NaVILAStep(NaVILAShown, StepOptions):
    """Options of this family that the memory of a step depends on."""

    PARTS: ClassVar[tuple[str, ...]] = PARTS
    ADAPTED: ClassVar[str | None] = LANGUAGE_MODEL
    CACHED: ClassVar[str | None] = VISION_TOWER

    tunable_parts: tuple[str, ...] = PARTS


@dataclass(frozen=True, kw_only=True)
class NaVILATraining(NaVILAStep, SeeingTraining):
    """Training of a NaVILA on questions along walks, as they are collected here, or on its own sets of frames and
    videos."""

    INPUTS: ClassVar[tuple[str, ...]] = ("history", "instructions")
    RATES: ClassVar[Mapping[str, str]] = {VISION_TOWER: "vision_tower_lr", PROJECTOR: "projector_lr"}

    describe: tuple[str, ...] = ()
    """Sets of walks that are described: frames of a whole walk are shown, and its instruction is the answer, as
    the published training does with EnvDrop."""

    def check(self, world_size: int = 1) -> None:
        super().check(world_size)
        for name in self.describe:
            if name not in self.mixture:
                raise UsageError(unknown("set of --sets for --describe", name, self.mixture))


@dataclass(frozen=True, kw_only=True)
class NaVILAPlanning(NaVILAStep, LanguageModelPlanning):
    """Memory planning of a NaVILA."""

    model: str = "navila-8b"
    text_tokens: Count = 230
    """Tokens of a question that are not images; long RxR instructions make it about 350."""
    answer_tokens: Count = 12
    """Tokens of an answer."""


@dataclass(frozen=True, kw_only=True)
class NaVILAInference(NaVILAShown, InferenceOptions):
    """Planning what a NaVILA needs while it acts."""

    model: str = "navila-8b"
    max_new_tokens: Count = 32
    """Tokens of one answer at most."""


Part = Mapping[str, Any]

NAVILA_8B: tuple[Part, Part] = (
    {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128257,
        "max_position_embeddings": 8192,
        "tokenizer_model_max_length": 4096,
        "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5,
        "torch_dtype": "bfloat16",
    },
    {
        "model_type": "siglip_vision_model",
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "image_size": 384,
        "patch_size": 14,
    },
)
"""Sizes of the published NaVILA, of its language model (Llama-3 with a token for padding) and of its vision tower
(SigLIP so400m)."""


class Preset(SeeingSizes):
    """Sizes of a small model."""

    def parts(self, vocab_size: int, end: int) -> tuple[Part, Part]:
        """config.json of the language model and of the vision tower."""
        language = {"model_type": "llama", "max_position_embeddings": 4096, **self.language(vocab_size, end, end)}
        return language, {"model_type": "siglip_vision_model", **self.tower()}


SIZES: Mapping[str, tuple[Part, Part]] = {"navila-8b": NAVILA_8B}

PRESETS = {"navila-tiny": Preset(**TINY)}


def recognizes(folder: Path) -> bool:
    """Whether a folder is laid out as NaVILA's: other kinds of LLaVA call themselves the same."""
    return model_type(folder) == MODEL_TYPE and all((folder / name / "config.json").is_file() for name in FOLDERS)


FAMILY = FamilySpec(
    name="navila",
    training=NaVILATraining,
    planning=NaVILAPlanning,
    inference=NaVILAInference,
    checkpoints="agents.navila.family:NaVILACheckpoints",
    trains="agents.navila.family:NaVILATrains",
    plans="agents.navila.family:NaVILAPlans",
    recognizes=recognizes,
    agent="navila",
    presets=tuple(PRESETS),
    sizes=tuple(SIZES),
    set_files=SET_FILES,
    launch_flags={
        "tune_vision_tower": "+vision_tower",
        "tune_mm_projector": "+mm_projector",
        "tune_language_model": "+language_model",
        "num_video_frames": "history",
        "data_mixture": "-names of its own list of data; give --trajectories and --sets",
        "vision_tower": "-the checkpoint holds it",
        **dict.fromkeys(("version", "mm_projector", "mm_vision_select_layer", "mm_vision_select_feature"), ""),
        **dict.fromkeys(("mm_use_im_start_end", "mm_use_im_patch_token", "image_aspect_ratio"), ""),
    },
)
