"""Plain Qwen2.5-VL checkpoint folders: loading, identity and saving, in the layout of the released ones."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from agents.common import files, weights
from agents.common import tokenizer as tokenizers
from agents.common.files import CONFIG, DTYPES, GENERATION, GenerationSettings
from agents.common.tokenizer import TOKENIZER_FILES, Tokenizer
from agents.janusvln import checkpoint as shared
from agents.janusvln import prompt
from agents.janusvln.checkpoint import PROCESSOR_FILES
from agents.qwen_vl.config import QwenVLConfig, read_config
from agents.qwen_vl.network import QwenVL
from vlnbench.errors import UsageError


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
    files and for keys or shapes that do not match.
    """
    config = read_config(folder)
    paths = weights.weight_files(folder, trust_pickle)
    with torch.device("meta"):
        model = QwenVL(config, eager)
    weights.check_entries(weights.read_entries(paths), model, folder)
    weights.fill(model, paths, dtype or config.dtype, torch.device(device))
    return model.eval()


def load_tokenizer(folder: Path, config: QwenVLConfig, tokenizer: Path | None = None) -> Tokenizer:
    """The tokenizer of a checkpoint folder, or of the folder `tokenizer` where the checkpoint has none.

    Raises UsageError where there is none and where it does not suit the checkpoint.
    """
    source = _tokenizer_folder(folder, tokenizer)
    loaded = tokenizers.load_tokenizer(source, prompt.TOKENS, "Qwen2.5-VL-3B-Instruct")
    tokenizers.check_rows(loaded, source, config.vocab_size)
    if (found := loaded.encode(prompt.IMAGE, add_special_tokens=False)) != [config.image_token]:
        raise UsageError(
            f"{source}: {prompt.IMAGE} is token {found[0]}, in {folder / CONFIG} it is {config.image_token} "
            "(image_token_id): expected the tokenizer of the checkpoint"
        )
    return loaded


def generation_settings(folder: Path, tokenizer: Tokenizer) -> GenerationSettings:
    """As JanusVLN's: answers end with the end of a chat block."""
    return shared.generation_settings(folder, tokenizer)


def content_hash(folder: Path, *, tokenizer: Path | None = None, trust_pickle: bool = False) -> str:
    """SHA-256 (hexadecimal) over names and contents of all files that loading with these arguments reads."""
    return files.content_hash(_read_files(folder, tokenizer, trust_pickle))


def _read_files(folder: Path, tokenizer: Path | None, trust_pickle: bool) -> Iterator[Path]:
    source = _tokenizer_folder(folder, tokenizer)
    known = [folder / CONFIG, folder / GENERATION, *(source / name for name in TOKENIZER_FILES)]
    yield from (path for path in known if path.is_file())
    yield from weights.weight_files(folder, trust_pickle)


def _tokenizer_folder(folder: Path, tokenizer: Path | None) -> Path:
    return tokenizers.tokenizer_folder(folder, tokenizer, "another Qwen2.5-VL checkpoint")


def save(
    model: QwenVL, folder: Path, *, source: Path, tokenizer: Path | None = None, shard_size: str | int = "5GB"
) -> None:
    """Write a checkpoint folder that `load` reads; what is no weight comes from `source`, where it started from.

    The folder appears at its name only when complete. Raises UsageError if `folder` exists.
    """
    if folder.exists():
        raise UsageError(f"{folder} exists already: give a new folder for the checkpoint")
    words = _tokenizer_folder(source, tokenizer)
    name = next(name for name, dtype in DTYPES.items() if dtype == model.dtype)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as part:
        made = Path(part, "checkpoint")
        made.mkdir()
        content = dict(model.config.raw) | {"torch_dtype": name}
        (made / CONFIG).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
        copied = [source / each for each in (GENERATION, *PROCESSOR_FILES)]
        for path in (*copied, *(words / each for each in TOKENIZER_FILES)):
            if path.is_file():
                shutil.copyfile(path, made / path.name)
        weights.write(model, made, shard_size)
        os.rename(made, folder)
