"""Options of training CMA and Seq2Seq and of planning their memory, and the names of their parts. Loads nothing
heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from agents.common.sight.options import AuxiliaryOptions, MirrorOptions
from vlnbench.errors import UsageError
from vlnbench.training.options import PlanOptions, Precision, StepOptions, TrainOptions, above_zero, at_least

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
    """Parts that are trained; everything else does not change by a single byte. One word may name several,
    separated by commas."""
    batch: int = 5
    """Walks per GPU and forward pass, each from start to end and under all of its instructions."""
    accumulation: int = 1
    """Forward passes per optimizer step."""
    zero: int = 0
    """DeepSpeed ZeRO stage, 0 to 3."""
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

    learning_rate: float = 2.5e-4
    """Learning rate of the parts that have none of their own."""
    instruction_lr: float | None = None
    """Learning rate of the instruction encoder."""
    rgb_lr: float | None = None
    """Learning rate of the RGB encoder."""
    depth_lr: float | None = None
    """Learning rate of the depth encoder."""
    schedule: Literal["cosine", "linear", "constant"] = "constant"
    """How learning rates fall after the warm-up."""
    warmup: float = 0.0
    """Share of the steps in which learning rates rise from 0."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of weights and gradients; auto is float32, and there is no other here."""
    inflection_weight: float = 3.2
    """Weight in the loss of a step whose label differs from the one before it (RxR: 1.9)."""
    packed: Path | None = None
    """Folder in which decoded frames are kept, a file per set that all processes read; where neither rgb_encoder
    nor depth_encoder is trained, what they make of frames. A frame takes 12 kB (features: 6) for the small
    networks and 413 kB (CMA's features: 139) for the published ones."""
    progress_weight: float | None = None
    """Weight of the progress monitor beside the actions, 0 for none; default the checkpoint's."""

    def check(self, world_size: int = 1) -> None:
        super().check(world_size)
        above_zero("inflection_weight", self.inflection_weight)
        if self.progress_weight is not None and not 0 <= self.progress_weight < 1e9:
            raise UsageError(f"--progress-weight {self.progress_weight}: expected 0 or more")
        self.check_auxiliary(RGB_ENCODER, self.parts, cached=self.feature_cache is not None)
        self.check_mirror(self.learns_from, cached=self.feature_cache is not None)
        if self.dtype == "bfloat16":
            raise UsageError("--dtype bfloat16: these networks compute in float32; leave it out")
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
    """Precision of weights and gradients: fp32."""
    length: int = 60
    """Steps of a walk."""
    words: int = 40
    """Words of an instruction."""

    def check(self, world_size: int = 1) -> None:
        super().check(world_size)
        for name in ("length", "words"):
            at_least(name, getattr(self, name), 1)
        if self.dtype != "fp32":
            raise UsageError(f"--dtype {self.dtype}: these networks compute in float32; leave it out")

    @classmethod
    def settings_of(cls, options: TrainOptions) -> dict[str, object]:
        return {**super().settings_of(options), "dtype": "fp32"}
