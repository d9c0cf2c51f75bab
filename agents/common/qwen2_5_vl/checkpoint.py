"""Checkpoint folders of networks on Qwen2.5-VL: their tokenizer, their hash, and how they are written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from agents.common.checkpoints import tokenizer as tokenizers
from agents.common.checkpoints import weights
from agents.common.checkpoints.files import CONFIG, DTYPES, GENERATION
from agents.common.checkpoints.tokenizer import TOKENIZER_FILES, Tokenizer
from agents.common.inputs import Inputs
from agents.common.qwen2_5_vl.config import QwenConfig
from agents.common.qwen2_5_vl.network import QwenNetwork
from agents.common.qwen2_5_vl.tokens import IMAGE, PROCESSOR_FILES, TOKENS
from vlnbench.errors import UsageError

LENDER = "Qwen2.5-VL-7B-Instruct"
"""A published checkpoint whose tokenizer all of these have."""


def load_tokenizer(folder: Path, config: QwenConfig, tokenizer: Path | None = None) -> Tokenizer:
    """The tokenizer of a checkpoint folder, or of the folder `tokenizer` where the checkpoint has none.

    Raises UsageError where there is none and where it does not suit the checkpoint.
    """
    source = _tokenizer_folder(folder, tokenizer)
    loaded = tokenizers.load_tokenizer(source, TOKENS, LENDER)
    tokenizers.check_rows(loaded, source, config.vocab_size)
    if (found := loaded.encode(IMAGE, add_special_tokens=False)) != [config.image_token]:
        raise UsageError(
            f"{source}: {IMAGE} is token {found[0]}, in {folder / CONFIG} it is {config.image_token} "
            "(image_token_id): expected the tokenizer of the checkpoint"
        )
    return loaded


def read_files(folder: Path, tokenizer: Path | None = None, trust_pickle: bool = False) -> Iterator[Path]:
    """The files that loading with these arguments reads."""
    return weights.folder_files(folder, _tokenizer_folder(folder, tokenizer), trust_pickle)


def _tokenizer_folder(folder: Path, tokenizer: Path | None) -> Path:
    return tokenizers.tokenizer_folder(folder, tokenizer, "another Qwen2.5-VL checkpoint")


def save(
    model: QwenNetwork,
    folder: Path,
    inputs: Inputs | None = None,
    *,
    source: Path,
    tokenizer: Path | None = None,
    shard_size: str | int = "5GB",
) -> None:
    """Write a checkpoint folder as the published code reads it, with the inputs that the network was trained with.

    config.json is what was read, with the type of the numbers. Generation settings, the processor's files and the
    tokenizer come from `source`, the folder that the network started from (tokenizer: or from the folder given).

    The folder appears at its name only when complete. Raises UsageError if `folder` exists.
    """
    words = _tokenizer_folder(source, tokenizer)
    copied = [source / name for name in (GENERATION, *PROCESSOR_FILES)]
    copied += [words / name for name in TOKENIZER_FILES]
    name = next(name for name, dtype in DTYPES.items() if dtype == model.dtype)
    weights.write_folder(model, folder, dict(model.config.raw) | {"torch_dtype": name}, copied, shard_size, inputs)
