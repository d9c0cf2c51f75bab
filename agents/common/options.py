"""Options of language models with eyes. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vlnbench.errors import UsageError, check_installed
from vlnbench.interfaces import Scalar
from vlnbench.rollout.agent_options import CheckpointOptions
from vlnbench.training.options import PlanOptions, TrainOptions
from vlnbench.util.bounds import Count, Positive
from vlnbench.util.machine import installed_version


@dataclass(frozen=True, kw_only=True)
class TokenizerOptions:
    """Where words are looked up."""

    tokenizer: Path | None = None
    """Folder with the tokenizer's files, where the checkpoint has none."""


@dataclass(frozen=True, kw_only=True)
class QuantizeOptions(CheckpointOptions):
    """How weights are kept."""

    quantize: Literal["int8", "nf4"] | None = None
    """Bits of the weights in the language model's blocks: eight or four, by bitsandbytes (pip install
    'vlnbench[gpu]'). Less memory (`vlnbench plan --inference --quantize`), other answers: another run."""

    @property
    def added_identity(self) -> dict[str, Scalar]:
        """What of a run's identity these are: nothing where they are at their defaults."""
        if self.quantize is None:
            return {}
        return {"quantize": self.quantize, "bitsandbytes": installed_version("bitsandbytes")}

    def check(self) -> None:
        super().check()
        if self.quantize:
            check_installed("bitsandbytes", "gpu")


@dataclass(frozen=True, kw_only=True)
class GraphsOptions(QuantizeOptions):
    """How often a GPU is told what to do."""

    cuda_graphs: bool = False
    """Passes that generate tokens as CUDA graphs: one launch for each in the place of a thousand. Close choices in
    half precision may differ, which makes another run."""

    @property
    def added_identity(self) -> dict[str, Scalar]:
        return {**super().added_identity, **({"cuda_graphs": True} if self.cuda_graphs else {})}

    def check(self) -> None:
        super().check()
        if self.cuda_graphs and self.quantize:
            raise UsageError(
                "--quantize: passes with weights in few bits are no CUDA graphs; leave --cuda-graphs out"
            )


@dataclass(frozen=True, kw_only=True)
class LanguageModelOptions(GraphsOptions):
    """How a language model is loaded and run."""

    attn: Literal["auto", "eager", "sdpa", "flash_attention_2"] = "auto"
    """Attention of the language model; auto takes flash attention where it is installed, else SDPA."""
    max_new_tokens: Count = 512
    """Tokens of one answer at most."""


@dataclass(frozen=True, kw_only=True)
class SeeingTraining(TrainOptions):
    """Training of a language model behind a vision tower and a projector."""

    vision_tower_lr: Positive | None = None
    """Learning rate of the vision tower."""
    projector_lr: Positive | None = None
    """Learning rate of the projector."""
    attn: Literal["auto", "eager", "sdpa", "flash_attention_2"] = "auto"
    """Attention of the language model."""


@dataclass(frozen=True, kw_only=True)
class LanguageModelPlanning(PlanOptions):
    """Memory planning of a language model."""

    attn: Literal["sdpa", "flash_attention_2", "eager"] = "sdpa"
    """Attention of the language model; the first two need the same memory."""

    @classmethod
    def settings_of(cls, options: TrainOptions) -> dict[str, object]:
        eager = getattr(options, "attn", None) == "eager"
        return {**super().settings_of(options), "attn": "eager" if eager else "sdpa"}
