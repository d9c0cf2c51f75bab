"""Options of agents that load a trained model. Imports nothing heavy: the command line is made from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How an agent loads and runs a trained model.

    Passed to agents whose constructor has a parameter `options`; the others refuse what is set here.
    """

    checkpoint: Path | None = None
    """Folder of a trained checkpoint, for agents that load one."""
    tokenizer: Path | None = None
    """Folder with the tokenizer's files, where the checkpoint has none."""
    vision_tower: Path | None = None
    """Folder with the config.json of the vision tower, where the checkpoint names one of another size."""
    device: str = "auto"
    """auto (the first CUDA device, else the CPU), cpu, cuda or cuda:N."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Precision of weights and activations; auto is the checkpoint's on CUDA and float32 on the CPU."""
    attn: Literal["auto", "eager", "sdpa", "flash_attention_2"] = "auto"
    """Attention of the language model; auto takes flash attention where it is installed, else SDPA."""
    max_batch: int = 8
    """Episodes in one forward pass at most."""
    max_new_tokens: int = 512
    """Tokens of one answer at most."""
    compile: bool = False
    """Compile the model with torch.compile."""
    trust_pickle: bool = False
    """Read weights from pickle files too (tensors only)."""
