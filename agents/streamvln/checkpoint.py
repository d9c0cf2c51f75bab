"""StreamVLN checkpoint folders: loading, identity and saving, in the layout of the published ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from agents.common.checkpoints import files, weights
from agents.common.checkpoints import tokenizer as tokenizers
from agents.common.checkpoints.files import CONFIG, DTYPES, GENERATION, Fields, read_json
from agents.common.checkpoints.tokenizer import TOKENIZER_FILES, Tokenizer
from agents.streamvln import prompt
from agents.streamvln.config import read_config
from agents.streamvln.network.lean import would_be_lean
from agents.streamvln.network.model import StreamVLN
from vlnbench.errors import UsageError

UNUSED = frozenset({"model.image_newline"})
"""In LLaVA-Video checkpoints, from which StreamVLN is trained: StreamVLN does not lay frames out in rows."""
NEWLINE = 198
"""The newline's token id, which the training labels of StreamVLN count on."""


def load(
    folder: Path,
    *,
    vision_tower: Path | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    attn: str = "sdpa",
    trust_pickle: bool = False,
    image_size: int | None = None,
    lean: bool = False,
) -> StreamVLN:
    """Load a checkpoint folder, in evaluation mode.

    `vision_tower` is a folder with the config.json of the SigLIP model, where the checkpoint's own does not give
    the tower's sizes; `dtype` and `image_size` (pixels) default to the checkpoint's. Tensors go to `device` one
    at a time, so that the model is never held twice. lean: only for `Decoder`: where it would run the model by
    `lean`, only what that needs is there.

    Raises UsageError, before any tensor is read, for a folder or config that is no StreamVLN checkpoint, for
    pickled, damaged or absent weight files and for keys or shapes that do not match the config.
    """
    config = read_config(folder, vision_tower)
    paths = weights.weight_files(folder, trust_pickle)
    entries = weights.read_entries(paths, UNUSED)
    count = sum(math.prod(entry.shape) for entry in entries.values())
    bare = lean and would_be_lean(count, attn, torch.device(device), dtype or config.dtype)
    with torch.device("meta"):
        model = StreamVLN(config, attn, bare)
    weights.check_entries(entries, model, folder)
    weights.fill(model, paths, dtype or config.dtype, torch.device(device))
    model.fill_buffers(device)
    if image_size is not None and image_size != config.vision.image_size:
        model.resize_images(image_size)
    return model.eval()


def load_tokenizer(folder: Path, tokenizer: Path | None = None) -> Tokenizer:
    """The tokenizer of a checkpoint folder, or of the folder `tokenizer` where the checkpoint has none.

    Raises UsageError where there is none and where it does not suit the checkpoint.
    """
    source = _tokenizer_folder(folder, tokenizer)
    loaded = prompt.load_tokenizer(source)
    rows = Fields(read_json(folder / CONFIG), str(folder / CONFIG)).integer("vocab_size")
    tokenizers.check_rows(loaded, source, rows)
    if (newline := loaded.encode("\n", add_special_tokens=False)) != [NEWLINE]:
        raise UsageError(f"{source}: the newline must be token {NEWLINE}, as in Qwen2, not {newline}")
    return loaded


def _tokenizer_folder(folder: Path, tokenizer: Path | None) -> Path:
    return tokenizers.tokenizer_folder(folder, tokenizer, "another StreamVLN or LLaVA-Video checkpoint")


def content_hash(
    folder: Path,
    *,
    tokenizer: Path | None = None,
    vision_tower: Path | None = None,
    trust_pickle: bool = False,
) -> str:
    """SHA-256 (hexadecimal) over names and contents of all files that loading with these arguments reads."""
    return files.content_hash(read_files(folder, tokenizer, vision_tower, trust_pickle))


def read_files(
    folder: Path, tokenizer: Path | None = None, vision_tower: Path | None = None, trust_pickle: bool = False
) -> Iterator[Path]:
    """The files that loading with these arguments reads."""
    needed = vision_tower is not None and "vision_config" not in read_json(folder / CONFIG)
    more = (vision_tower / CONFIG,) if vision_tower is not None and needed else ()
    return weights.folder_files(folder, _tokenizer_folder(folder, tokenizer), trust_pickle, more)


def save(
    model: StreamVLN,
    folder: Path,
    *,
    source: Path,
    tokenizer: Path | None = None,
    shard_size: str | int = "5GB",
) -> None:
    """Write a checkpoint folder that `load` and the original code read.

    Generation settings and tokenizer come from `source`, the folder the model started from (tokenizer: or from the
    folder given). The folder appears at its name only when complete.

    Raises UsageError if `folder` exists.
    """
    words = _tokenizer_folder(source, tokenizer)
    copied = (source / GENERATION, *(words / file for file in TOKENIZER_FILES))
    weights.write_folder(model, folder, config_to_save(model), copied, shard_size)


def config_to_save(model: StreamVLN) -> dict[str, Any]:
    """config.json of a model: what was read, with the tower's sizes, the type of its numbers and its rhythm.

    The original code builds the tower only where the config says that it was trained, and drops its weights
    otherwise; so it always says that.
    """
    config = model.config
    vision = asdict(config.vision) | {"model_type": "siglip_vision_model", "num_channels": 3}
    return dict(config.raw) | {
        "vision_config": vision,
        "unfreeze_mm_vision_tower": True,
        "mm_patch_merge_type": "flat",
        "num_frames": config.num_frames,
        "num_history": config.num_history,
        "num_future_steps": config.num_future_steps,
        "torch_dtype": next(name for name, dtype in DTYPES.items() if dtype == model.dtype),
    }
