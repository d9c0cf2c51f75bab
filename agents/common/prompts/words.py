"""Instructions as networks without a tokenizer read them: numbered words, R2R's tokens, RxR's BERT features."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vlnbench.errors import UsageError
from vlnbench.interfaces import Episode
from vlnbench.util.durable.limits import regular

FEATURE_SIZE = 768
TOKENS_PER_INSTRUCTION = 200
"""Instructions of the preprocessed datasets are filled up with zeros to this length."""
LONGEST_FEATURES = 512


_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?|[.,;!?]")


def words_of(text: str) -> list[str]:
    """The words and marks of a text, for networks with a vocabulary of their own."""
    return _WORD.findall(text.lower())


class Words:
    """Numbers of words: by a vocabulary, from 2 on (0 is nothing, 1 unknown), or without one R2R's tokens."""

    def __init__(self, vocabulary: Sequence[str], size: int) -> None:
        """size: all numbers lie below."""
        self.numbers = {word: number for number, word in enumerate(vocabulary, start=2)}
        self.size = size

    def numbered(self, text: str) -> NDArray[np.int64]:
        """A text's words by number, 1 for those without one. Raises UsageError for a text without words."""
        found = [self.numbers.get(word, 1) for word in words_of(text)]
        if not found:
            raise UsageError(f"instruction {text!r}: has no words")
        return np.array(found, dtype=np.int64)

    def of(self, episode: Episode) -> NDArray[np.int64]:
        """An instruction. Raises UsageError for one without words, and for tokens of another vocabulary."""
        if self.numbers:
            return self.numbered(episode.instruction)
        found = np.asarray(episode.instruction_tokens, dtype=np.int64)
        if len(found) != TOKENS_PER_INSTRUCTION or found.max() >= self.size:
            what = f"{len(found)} tokens" + (f" up to {found.max()}" if len(found) else "")
            raise UsageError(
                f"episode {episode.episode_id}: instruction_tokens: expected {TOKENS_PER_INSTRUCTION} numbers "
                f"below {self.size}, as in R2R_VLNCE_v1-3_preprocessed, found {what}; others number words "
                "differently"
            )
        return found


class TextFeatures:
    """RxR's BERT features in their published layout, `rxr_{split}/{id:06}_{language}_text_features.npz`."""

    def __init__(self, folder: Path) -> None:
        """`folder` holds the files, or the folders `rxr_*` with them. Raises UsageError where there is neither."""
        if not folder.is_dir():
            raise UsageError(f"--text-features {folder}: no such folder; expected RxR_VLNCE_v0/text_features")
        self._folder = folder
        self._folders = [folder, *sorted(path for path in folder.glob("rxr_*") if path.is_dir())]

    def of(self, episode: Episode) -> NDArray[np.float32]:
        """Features of an episode's instruction, (words, 768). Raises UsageError for missing or damaged files."""
        if episode.instruction_id is None or not episode.instruction_id.isdecimal():
            raise UsageError(
                f"episode {episode.episode_id} has no instruction_id: the checkpoint reads RxR's BERT features, "
                "so it needs a benchmark with RxR's episodes"
            )
        language = episode.language.split("-")[0]
        name = f"{int(episode.instruction_id):06}_{language}_text_features.npz"
        for folder in self._folders:
            if (folder / name).is_file():
                return _features(folder / name)
        raise UsageError(f"--text-features {self._folder}: {name} is missing there and in its folders rxr_*")


def _features(path: Path) -> NDArray[np.float32]:
    """The array `features` of one file; its header is checked before memory is set aside."""
    try:
        with zipfile.ZipFile(regular(path)) as archive, archive.open("features.npy") as member:
            version = np.lib.format.read_magic(member)  # type: ignore[no-untyped-call]
            if version != (1, 0):
                raise ValueError(f"npy version {version}")
            header = np.lib.format.read_array_header_1_0(member)  # type: ignore[no-untyped-call]
            shape, fortran, dtype = header
            if len(shape) != 2 or not 1 <= shape[0] <= LONGEST_FEATURES or shape[1] != FEATURE_SIZE:
                raise ValueError(f"expected 1 to {LONGEST_FEATURES} rows of {FEATURE_SIZE}, found {list(shape)}")
            if fortran or dtype.kind != "f":
                raise ValueError("expected floating-point numbers, row by row")
            count = shape[0] * shape[1]
            numbers = np.frombuffer(member.read(count * dtype.itemsize), dtype, count).astype(np.float32)
    except (
        zipfile.BadZipFile,
        KeyError,
        ValueError,
        OSError,
        EOFError,
        NotImplementedError,
        RuntimeError,
    ) as error:
        raise UsageError(f"{path}: features: cannot be read ({error}); copy the file again") from None
    if not np.isfinite(numbers).all():
        raise UsageError(f"{path}: features: holds numbers that are not finite")
    return numbers.reshape(shape)
