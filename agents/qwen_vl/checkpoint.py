"""Plain Qwen2.5-VL checkpoint folders: loading, identity and saving, in the layout of the released ones."""

from __future__ import annotations

from pathlib import Path

import torch

from agents.common.checkpoints import files, weights
from agents.common.checkpoints import tokenizer as tokenizers
from agents.common.checkpoints.files import DTYPES, GENERATION
from agents.common.checkpoints.tokenizer import TOKENIZER_FILES, Tokenizer
from agents.common.qwen2_5_vl.config import QwenConfig
from agents.common.qwen2_5_vl.tokens import PROCESSOR_FILES, qwen_tokenizer
from agents.qwen_vl.config import read_config
from agents.qwen_vl.network import QwenVL

NESTED = {"model.language_model.": "model.", "model.visual.": "visual."}
"""Beginnings of parameters' names as transformers 5 has them, and as the released folders do."""


def load(
    folder: Path,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    eager: bool = False,
    trust_pickle: bool = False,
) -> QwenVL:
    """Load a checkpoint folder, in evaluation mode; `dtype` defaults to the checkpoint's.

    Tensors go to `device` one at a time, so that the model is never held twice. Raises UsageError, before any
    tensor is read, for a folder or config that is no Qwen2.5-VL checkpoint, for pickled, damaged or absent weight
    files and for keys or shapes that do not match. Keys may be those of the released folders or of transformers 5.
    """
    config = read_config(folder)
    paths = weights.weight_files(folder, trust_pickle)
    with torch.device("meta"):
        model = QwenVL(config, eager)
    weights.check_entries(weights.read_entries(paths, named=_released_name), model, folder)
    weights.fill(model, paths, dtype or config.dtype, torch.device(device), _released_name)
    return model.eval()


def _released_name(name: str) -> str:
    """A parameter's name in the released folders.

    Since 4.52, transformers nests tower and language model below `model.`; whoever saves without turning the names
    back writes them so (`conversion_mapping.py`, `Qwen2VLForConditionalGeneration`, in transformers 5.23).
    """
    for nested, released in NESTED.items():
        if name.startswith(nested):
            return released + name.removeprefix(nested)
    return name


def load_tokenizer(folder: Path, config: QwenConfig, tokenizer: Path | None = None) -> Tokenizer:
    """The tokenizer of a checkpoint folder, or of the folder `tokenizer` where the checkpoint has none.

    Raises UsageError where there is none and where it does not suit the checkpoint.
    """
    source = _tokenizer_folder(folder, tokenizer)
    return qwen_tokenizer(source, folder, config.vocab_size, config.image_token, "Qwen2.5-VL-3B-Instruct")


def content_hash(folder: Path, *, tokenizer: Path | None = None, trust_pickle: bool = False) -> str:
    """SHA-256 (hexadecimal) over names and contents of all files that loading with these arguments reads."""
    return files.content_hash(weights.folder_files(folder, _tokenizer_folder(folder, tokenizer), trust_pickle))


def _tokenizer_folder(folder: Path, tokenizer: Path | None) -> Path:
    return tokenizers.tokenizer_folder(folder, tokenizer, "another Qwen2.5-VL checkpoint")


def save(
    model: QwenVL, folder: Path, *, source: Path, tokenizer: Path | None = None, shard_size: str | int = "5GB"
) -> None:
    """Write a checkpoint folder that `load` reads; what is no weight comes from `source`, where it started from.

    The folder appears at its name only when complete. Raises UsageError if `folder` exists.
    """
    words = _tokenizer_folder(source, tokenizer)
    copied = [source / name for name in (GENERATION, *PROCESSOR_FILES)]
    copied += [words / name for name in TOKENIZER_FILES]
    name = next(name for name, dtype in DTYPES.items() if dtype == model.dtype)
    weights.write_folder(model, folder, dict(model.config.raw) | {"torch_dtype": name}, copied, shard_size)
