"""JanusVLN checkpoint folders: loading, identity and saving, in the layout of the released ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from agents.common.checkpoints import files, weights
from agents.common.checkpoints import tokenizer as tokenizers
from agents.common.checkpoints.files import DTYPES, GENERATION
from agents.common.checkpoints.tokenizer import TOKENIZER_FILES, Tokenizer
from agents.common.qwen2_5_vl.tokens import PROCESSOR_FILES, qwen_tokenizer
from agents.janusvln.config import JanusVLNConfig, geometry_sizes, read_config
from agents.janusvln.network.model import JanusVLN


def load(
    folder: Path,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    eager: bool = False,
    trust_pickle: bool = False,
) -> JanusVLN:
    """Load a checkpoint folder, in evaluation mode; `dtype` defaults to the checkpoint's.

    Tensors go to `device` one at a time, so that the model is never held twice. Raises UsageError, before any
    tensor is read, for a folder or config that is no JanusVLN checkpoint, for pickled, damaged or absent weight
    files and for keys or shapes that do not match.
    """
    config = read_config(folder)
    paths = weights.weight_files(folder, trust_pickle)
    entries = weights.read_entries(paths)
    sizes = geometry_sizes({name: entry.shape for name, entry in entries.items()}, str(folder))
    with torch.device("meta"):
        model = JanusVLN(config, sizes, eager)
    weights.check_entries(entries, model, folder)
    weights.fill(model, paths, dtype or config.dtype, torch.device(device))
    model.vggt.requires_grad_(False)
    return model.eval()


def load_tokenizer(folder: Path, config: JanusVLNConfig, tokenizer: Path | None = None) -> Tokenizer:
    """The tokenizer of a checkpoint folder, or of the folder `tokenizer` where the checkpoint has none.

    Raises UsageError where there is none and where it does not suit the checkpoint.
    """
    source = _tokenizer_folder(folder, tokenizer)
    return qwen_tokenizer(source, folder, config.vocab_size, config.image_token, "Qwen2.5-VL-7B-Instruct")


def content_hash(folder: Path, *, tokenizer: Path | None = None, trust_pickle: bool = False) -> str:
    """SHA-256 (hexadecimal) over names and contents of all files that loading with these arguments reads."""
    return files.content_hash(weights.folder_files(folder, _tokenizer_folder(folder, tokenizer), trust_pickle))


def _tokenizer_folder(folder: Path, tokenizer: Path | None) -> Path:
    return tokenizers.tokenizer_folder(folder, tokenizer, "another JanusVLN or Qwen2.5-VL checkpoint")


def save(
    model: JanusVLN, folder: Path, *, source: Path, tokenizer: Path | None = None, shard_size: str | int = "5GB"
) -> None:
    """Write a checkpoint folder that `load` and the original code read.

    Generation settings, the processor's files and the tokenizer come from `source`, the folder the model started
    from (tokenizer: or from the folder given). The folder appears at its name only when complete.

    Raises UsageError if `folder` exists.
    """
    words = _tokenizer_folder(source, tokenizer)
    copied = [source / name for name in (GENERATION, *PROCESSOR_FILES)]
    copied += [words / name for name in TOKENIZER_FILES]
    weights.write_folder(model, folder, config_to_save(model), copied, shard_size)


def config_to_save(model: JanusVLN) -> dict[str, Any]:
    """config.json of a model: what was read, with the type of its numbers."""
    name = next(name for name, dtype in DTYPES.items() if dtype == model.dtype)
    return dict(model.config.raw) | {"torch_dtype": name}
