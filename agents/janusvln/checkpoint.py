"""JanusVLN checkpoint folders: loading, identity and saving, in the layout of the released ones."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from agents.common import files, weights
from agents.common import tokenizer as tokenizers
from agents.common.files import CONFIG, DTYPES, GENERATION, GenerationSettings
from agents.common.tokenizer import TOKENIZER_FILES, Tokenizer
from agents.janusvln import prompt
from agents.janusvln.config import JanusVLNConfig, geometry_sizes, read_config
from agents.janusvln.network.model import JanusVLN
from vlnbench.errors import UsageError

PROCESSOR_FILES = ("preprocessor_config.json", "chat_template.json")
"""Read by the original code only: what they say is fixed here, in `image` and `prompt`."""


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
    loaded = tokenizers.load_tokenizer(source, prompt.TOKENS, "Qwen2.5-VL-7B-Instruct")
    tokenizers.check_rows(loaded, source, config.vocab_size)
    if (found := loaded.encode(prompt.IMAGE, add_special_tokens=False)) != [config.image_token]:
        raise UsageError(
            f"{source}: {prompt.IMAGE} is token {found[0]}, in {folder / CONFIG} it is {config.image_token} "
            "(image_token_id): expected the tokenizer of the checkpoint"
        )
    return loaded


def generation_settings(folder: Path, tokenizer: Tokenizer) -> GenerationSettings:
    """How answers are decoded: they end with the end of a chat block only, whatever else the folder's
    generation_config.json names; its repetition penalty holds."""
    (end,) = tokenizer.encode(prompt.BLOCK_END, add_special_tokens=False)
    if not (folder / GENERATION).is_file():
        return GenerationSettings(frozenset({end}))
    return GenerationSettings(frozenset({end}), files.generation_settings(folder).repetition_penalty)


def content_hash(folder: Path, *, tokenizer: Path | None = None, trust_pickle: bool = False) -> str:
    """SHA-256 (hexadecimal) over names and contents of all files that loading with these arguments reads."""
    return files.content_hash(_read_files(folder, tokenizer, trust_pickle))


def _read_files(folder: Path, tokenizer: Path | None, trust_pickle: bool) -> Iterator[Path]:
    source = _tokenizer_folder(folder, tokenizer)
    known = [folder / CONFIG, folder / GENERATION, *(source / name for name in TOKENIZER_FILES)]
    yield from (path for path in known if path.is_file())
    yield from weights.weight_files(folder, trust_pickle)


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
    if folder.exists():
        raise UsageError(f"{folder} exists already: give a new folder for the checkpoint")
    words = _tokenizer_folder(source, tokenizer)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as name:
        made = Path(name, "checkpoint")
        made.mkdir()
        (made / CONFIG).write_text(json.dumps(config_to_save(model), indent=2, sort_keys=True) + "\n")
        copied = [source / name for name in (GENERATION, *PROCESSOR_FILES)]
        for path in (*copied, *(words / name for name in TOKENIZER_FILES)):
            if path.is_file():
                shutil.copyfile(path, made / path.name)
        weights.write(model, made, shard_size)
        os.rename(made, folder)


def config_to_save(model: JanusVLN) -> dict[str, Any]:
    """config.json of a model: what was read, with the type of its numbers."""
    name = next(name for name, dtype in DTYPES.items() if dtype == model.dtype)
    return dict(model.config.raw) | {"torch_dtype": name}
