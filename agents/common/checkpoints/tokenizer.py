"""Tokenizers of the Qwen2 family in checkpoint folders: which folder has one, and loading it."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import tokenizers
from tokenizers import decoders, normalizers, pre_tokenizers

from agents.common.checkpoints.files import read_json
from agents.common.checkpoints.new_tokenizer import END, SPLIT
from agents.common.checkpoints.sentencepiece import MODEL, llama_tokenizer
from vlnbench.errors import UsageError
from vlnbench.util.durable.fields import short
from vlnbench.util.durable.limits import MAX_TABLE, read_bounded

TOKENIZER = ("tokenizer.json", "vocab.json")
"""Either of these makes a folder one with a tokenizer."""
_KNOWN = frozenset(
    [
        "tokenizer_class",
        "additional_special_tokens",
        "bos_token",
        "eos_token",
        "pad_token",
        "unk_token",
        "model_max_length",
        "clean_up_tokenization_spaces",
        "chat_template",
        "errors",
        "padding_side",
    ]
)
"""Fields of tokenizer_config.json that are taken in, or change no ids."""
TOKENIZER_FILES = (
    *TOKENIZER,
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
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
            read_json(path, MAX_TABLE)
    try:
        with _unmarked(folder) as readable:
            tokenizer = _plain(readable) if whole else None
            if tokenizer is None:
                from transformers import Qwen2TokenizerFast  # type: ignore[attr-defined]  # made at run time

                _check_names(folder)
                tokenizer = Qwen2TokenizerFast.from_pretrained(readable, local_files_only=True)
            found = {
                text: tokenizer.encode(text, add_special_tokens=False) for text in tokens
            }  # settings are used
    except BaseException as error:  # the Rust tokenizer raises nothing more specific, and panics
        if isinstance(error, UsageError) or not _is_of_file(error):
            raise
        reason = short(" ".join(f"{type(error).__name__}: {error}".split()))
        raise UsageError(f"{folder}: tokenizer cannot be read ({reason})") from error
    for text, ids in found.items():
        if len(ids) != 1:
            raise UsageError(
                f"{folder}: tokenizer has no token {text!r}; expected the Qwen2 tokenizer of the checkpoint"
            )
    return tokenizer


def _check_names(folder: Path) -> None:
    """Raise UsageError for names that a terminal would obey: the library prints those that it does not know."""
    for path in (folder / "tokenizer_config.json", folder / "special_tokens_map.json"):
        left: list[Any] = [read_json(path)] if path.is_file() else []
        while left:
            value = left.pop()
            left += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
            for name in value if isinstance(value, dict) else ():
                if not name.isprintable():
                    raise UsageError(f"{path}: field {short(name)}: expected a name that can be printed")


@contextmanager
def _unmarked(folder: Path) -> Iterator[Path]:
    """The folder; where files in it begin with byte order marks, which are refused, copies without these."""
    files = {path: read_bounded(path, MAX_TABLE) for name in TOKENIZER_FILES if (path := folder / name).is_file()}
    if not any(content.startswith(BOM_UTF8) for content in files.values()):
        yield folder
        return
    with TemporaryDirectory() as copies:
        for path, content in files.items():
            Path(copies, path.name).write_bytes(content.removeprefix(BOM_UTF8))
        yield Path(copies)


def load_by_file(folder: Path, tokens: Sequence[str], lender: str) -> Tokenizer:
    """The tokenizer that tokenizer.json in `folder` describes, with what it puts around texts, else LLaMA's of
    tokenizer.model.

    tokens: each has to be one. Raises UsageError where the file is missing, broken or another's; `lender` names a
    checkpoint that has it.
    """
    path = next((folder / name for name in ("tokenizer.json", MODEL) if (folder / name).is_file()), None)
    if path is None:
        raise UsageError(f"{folder}: no tokenizer (tokenizer.json is missing); copy that of {lender}")
    try:
        if path.name == MODEL:
            tokenizer = _Plain(llama_tokenizer(folder))
        else:
            read_json(path, MAX_TABLE)
            with _unmarked(folder) as readable:
                tokenizer = _Plain(tokenizers.Tokenizer.from_file(str(readable / path.name)))
        counts = {text: len(tokenizer.encode(text, add_special_tokens=False)) for text in tokens}
        tokenizer.encode("", add_special_tokens=True)  # what it puts around texts is used
    except BaseException as error:  # the Rust tokenizer raises nothing more specific, and panics
        if isinstance(error, UsageError) or not _is_of_file(error):
            raise
        raise UsageError(f"{path}: cannot be read ({short(' '.join(str(error).split()))})") from error
    for text, count in counts.items():
        if count != 1:
            raise UsageError(f"{path}: has no token {text!r}; expected the tokenizer of {lender}")
    return tokenizer


def _is_of_file(error: BaseException) -> bool:
    """Whether a tokenizer's library raised it for what a file holds; its panics are no `Exception`."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


class _Plain:
    """A tokenizer without transformers, which take seconds to import."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool
    ) -> str:
        if clean_up_tokenization_spaces:
            raise ValueError("clean_up_tokenization_spaces is not done here")
        return str(self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def __len__(self) -> int:
        return int(self._backend.get_vocab_size())


def _plain(folder: Path) -> Tokenizer | None:
    """The tokenizer that tokenizer.json alone describes; None where transformers have to say what it is.

    Transformers take vocabulary, merges and added tokens from the file, add the special tokens of
    tokenizer_config.json, and cut and join texts by their own rules: so the file's own must be the same, and all
    special tokens in it.
    """
    if any((folder / name).is_file() for name in ("added_tokens.json", "special_tokens_map.json")):
        return None
    said = read_json(folder / "tokenizer_config.json")
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    rules = (str(backend.pre_tokenizer), str(backend.decoder))
    special = [token.content for token in backend.get_added_tokens_decoder().values() if token.special]
    named = [said.get(name, END) for name in ("unk_token", "eos_token", "pad_token")]
    named += [said.get("bos_token"), *said.get("additional_special_tokens", ())]
    usual = all(each is None or each in special for each in named)
    if said.keys() - _KNOWN or rules != _qwen2_rules() or not usual:
        return None
    backend.normalizer = normalizers.NFC()
    return _Plain(backend)


def _qwen2_rules() -> tuple[str, str]:
    split = pre_tokenizers.Split(tokenizers.Regex(SPLIT), behavior="isolated", invert=False)
    cut = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return str(cut), str(decoders.ByteLevel())


def check_rows(tokenizer: Tokenizer, folder: Path, rows: int) -> None:
    """Raise UsageError where the tokenizer read from `folder` has more entries than the model has embeddings."""
    if len(tokenizer) > rows:
        raise UsageError(f"{folder}: the tokenizer has {len(tokenizer)} entries, the model {rows} (vocab_size)")
