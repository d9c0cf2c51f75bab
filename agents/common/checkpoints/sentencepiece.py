"""Tokenizers of LLaMA's kind from tokenizer.model, the file of sentencepiece, without that package."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
from tokenizers.processors import TemplateProcessing

from agents.common.checkpoints.files import read_json
from vlnbench.errors import UsageError
from vlnbench.util.durable.limits import MAX_TABLE, read_bounded

MODEL, ADDED = "tokenizer.model", "added_tokens.json"
BEGIN, END, UNKNOWN = "<s>", "</s>", "<unk>"
_NORMAL, _BPE = 1, 2


class _Piece(NamedTuple):
    text: str
    score: float
    kind: int


def llama_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of tokenizer.model and added_tokens.json, which puts the begin of a text before every text.

    It cuts as transformers' slow one in its `legacy` way: what follows a special token begins as a word does.
    Raises UsageError for files that are damaged or of another kind.
    """
    path = folder / MODEL
    pieces = _pieces(path)
    ids = {piece.text: number for number, piece in enumerate(pieces)}
    if missing := next((text for text in (BEGIN, END, UNKNOWN) if text not in ids), None):
        raise UsageError(f"{path}: has no token {missing}; expected LLaMA's tokenizer")
    bpe = models.BPE(ids, _merges(pieces), unk_token=UNKNOWN, fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(bpe)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    added = read_json(folder / ADDED) if (folder / ADDED).is_file() else {}
    if sorted(added.values()) != list(range(len(ids), len(ids) + len(added))):
        raise UsageError(f"{folder / ADDED}: expected tokens numbered from {len(ids)} on, where {MODEL} ends")
    special = [UNKNOWN, BEGIN, END, *sorted(added, key=lambda text: int(added[text]))]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    tokenizer.post_processor = TemplateProcessing(single=f"{BEGIN} $A", special_tokens=[(BEGIN, ids[BEGIN])])
    return tokenizer


def _merges(pieces: list[_Piece]) -> list[tuple[str, str]]:
    """Which pairs become one, best first: every cut of a piece into two others, by the score of the whole."""
    ids = {piece.text: number for number, piece in enumerate(pieces) if piece.kind == _NORMAL}
    found: list[tuple[float, int, int, tuple[str, str]]] = []
    for text, number in ids.items():
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in ids and right in ids:
                found.append((-pieces[number].score, ids[left], ids[right], (left, right)))
    return [pair for *_, pair in sorted(found)]


def _pieces(path: Path) -> list[_Piece]:
    try:
        content = read_bounded(path, MAX_TABLE)
        fields = list(_fields(content))
        pieces = [_piece(value) for number, value in fields if number == 1]
        trained = _last(fields, 2)
        normalized = _last(fields, 3)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, IndexError, TypeError, struct.error):
        raise UsageError(f"{path} is damaged: expected a model of sentencepiece; copy it again") from None
    # Of an absent field sentencepiece takes: unigram, no bytes, a blank in front, superfluous blanks removed.
    known = (trained.get(3, 1), trained.get(35, 0), normalized.get(2, b""), normalized.get(3, 1))
    if known != (_BPE, 1, b"", 1) or normalized.get(4, 1):
        raise UsageError(f"{path}: expected LLaMA's kind of tokenizer (BPE with bytes, texts as they are)")
    if len({piece.text for piece in pieces}) != len(pieces):
        raise UsageError(f"{path} is damaged: a piece is there twice; copy it again")
    return pieces


def _last(fields: list[tuple[int, Any]], number: int) -> dict[int, Any]:
    return dict(_fields([value for found, value in fields if found == number][-1]))


def _piece(content: bytes) -> _Piece:
    values = dict(_fields(content))
    (score,) = struct.unpack("<f", values.get(2, bytes(4)))
    return _Piece(values[1].decode(), score, values.get(3, _NORMAL))


def _fields(content: bytes) -> Iterator[tuple[int, Any]]:
    """Numbers and values of a protobuf message's fields: integers, or bytes."""
    place = 0

    def varint() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = content[place]
            place += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise ValueError

    while place < len(content):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            yield number, varint()
            continue
        size = {1: 8, 5: 4}[kind] if kind != 2 else varint()
        if place + size > len(content):
            raise ValueError
        yield number, content[place : place + size]
        place += size
