"""Tokenizers of the Qwen2 family in checkpoint folders: which folder has one, and loading it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from transformers import Qwen2TokenizerFast  # type: ignore[attr-defined]  # there, but made at run time

from agents.common.files import read_json
from vlnbench.errors import UsageError

TOKENIZER = ("tokenizer.json", "vocab.json")
"""Either of these makes a folder one with a tokenizer."""
TOKENIZER_FILES = (
    *TOKENIZER,
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that is used here."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Numbers of the text's tokens."""
        ...

    def decode(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool
    ) -> str:
        """The text of tokens."""
        ...

    def __len__(self) -> int: ...


def tokenizer_folder(folder: Path, tokenizer: Path | None, lender: str) -> Path:
    """Which of the two folders the tokenizer is read from; `lender` names checkpoints whose tokenizer would do."""
    for candidate in (folder, tokenizer):
        if candidate is not None and any((candidate / name).is_file() for name in TOKENIZER):
            return candidate
    if tokenizer is not None:
        raise UsageError(
            f"--tokenizer {tokenizer}: expected a folder with tokenizer.json or vocab.json and merges.txt"
        )
    raise UsageError(f"{folder} has no tokenizer files: give --tokenizer, a folder with those of {lender}")


def load_tokenizer(folder: Path, tokens: Sequence[str], lender: str) -> Tokenizer:
    """The Qwen2 tokenizer in `folder`, in which each of `tokens` is one token.

    Raises UsageError if its files are missing, broken or another's; `lender` names a checkpoint that has them.
    """
    whole = (folder / "tokenizer.json").is_file()
    for name in ("tokenizer_config.json", *(["tokenizer.json"] if whole else ["vocab.json", "merges.txt"])):
        path = folder / name
        if not path.is_file():
            raise UsageError(
                f"{folder}: no tokenizer ({name} is missing); name a folder that has one with --tokenizer, such "
                f"as that of {lender}"
            )
        if path.suffix == ".json":
            read_json(path)
    try:
        tokenizer: Tokenizer = Qwen2TokenizerFast.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # the Rust tokenizer raises nothing more specific
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(f"{folder}: tokenizer cannot be read ({reason})") from error
    for text in tokens:
        if len(tokenizer.encode(text, add_special_tokens=False)) != 1:
            raise UsageError(
                f"{folder}: tokenizer has no token {text!r}; expected the Qwen2 tokenizer of the checkpoint"
            )
    return tokenizer


def check_rows(tokenizer: Tokenizer, folder: Path, rows: int) -> None:
    """Raise UsageError where the tokenizer read from `folder` has more entries than the model has embeddings."""
    if len(tokenizer) > rows:
        raise UsageError(f"{folder}: the tokenizer has {len(tokenizer)} entries, the model {rows} (vocab_size)")
