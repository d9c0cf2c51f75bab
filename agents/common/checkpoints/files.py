"""What a checkpoint folder holds beside weights: JSON fields, checked one by one, and a hash of all files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vlnbench.errors import UsageError
from vlnbench.util.durable.limits import MAX_VALUE, read_bounded
from vlnbench.util.hub import fetched

CONFIG, GENERATION = "config.json", "generation_config.json"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

MAX_SIZE, MAX_LAYERS, MAX_PIXELS = 1 << 24, 1024, 1 << 14
"""Bounds of sizes in a config, of numbers of layers, and of sides of images and patches: a network of such sizes
can be laid out, without memory, in seconds."""


class Fields:
    """Typed look-ups in one JSON object; every complaint names the file, the field and what was expected."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def integer(self, name: str, default: int | None = None, most: int = MAX_SIZE) -> int:
        """A whole number from 1 to `most`. A field that is absent or null takes the default, if there is one."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise self.error(name, f"a whole number from 1 to {most}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A number from 0 to 1e30."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e30:
            raise self.error(name, "a number from 0 to 1e30")
        return float(value)

    def text(self, name: str, default: str | None = None) -> str:
        """A string. A field that is absent or null takes the default, if there is one."""
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self.error(name, "a string")
        return value

    def choice(self, name: str, *allowed: Any, default: Any = None) -> Any:
        """One of the allowed values, which are all booleans or none."""
        value = self._get(name, default)
        if value not in allowed or isinstance(value, bool) != isinstance(allowed[0], bool):
            raise self.error(name, " or ".join(json.dumps(option) for option in allowed))
        return value

    def error(self, name: str, expected: str) -> UsageError:
        """The complaint about a field, to be raised: what was expected there and what was found."""
        found = _shown(self.values[name]) if name in self.values else "nothing"
        return UsageError(f"{self.where}: {name}: expected {expected}, found {found}")

    def _get(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        return default if value is None else value


def _shown(value: Any) -> str:
    try:
        return json.dumps(value)[:80]
    except (RecursionError, TypeError):  # as deep as could just be read, or from a pickle
        return "something nested"


OUTER = ("model_type", "architectures", "tie_word_embeddings")
"""Fields of config.json that mean the whole network, and in `text_config` its language model."""


def flat_fields(raw: Mapping[str, Any], where: str) -> Fields:
    """The fields of a config.json as transformers 4 wrote them, whichever version wrote it.

    Later versions write the language model's sizes under `text_config`, its rotary settings as `rope_parameters`
    and `torch_dtype` as `dtype`, of which the inner one may be left over from what was trained on.
    """
    text = raw.get("text_config")
    flat = {**raw, **(text if isinstance(text, dict) else {})}
    flat |= {name: raw[name] for name in OUTER if name in raw}
    types = (each.get(name) for each in (raw, flat) for name in ("torch_dtype", "dtype"))
    flat["torch_dtype"] = next((each for each in types if each is not None), None)
    if isinstance(rope := flat.get("rope_parameters"), dict):
        flat = {"rope_theta": rope.get("rope_theta"), **flat, "rope_scaling": rope}
    return Fields(flat, where)


def dtype_of(fields: Fields, default: str = "bfloat16") -> torch.dtype:
    """The type of a checkpoint's numbers."""
    return DTYPES[fields.choice("torch_dtype", *DTYPES, default=default)]


@dataclass(frozen=True)
class GenerationSettings:
    """Token ids that end an answer, and the repetition penalty (1: none) on tokens of the same answer.

    top_p: the share of probability that tokens are drawn from where they are drawn as the checkpoint says.
    """

    eos: frozenset[int]
    repetition_penalty: float = 1.0
    top_p: float = 1.0


NEUTRAL = {
    **dict.fromkeys(("num_beams", "encoder_repetition_penalty", "guidance_scale"), 1),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "min_length", "min_new_tokens"), 0),
    **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "sequence_bias")),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id", "exponential_decay_length_penalty")),
}
"""Fields that change greedy answers in transformers and that nothing here follows, with what changes nothing."""


def generation_settings(folder: Path) -> GenerationSettings:
    """What generation_config.json says about greedy decoding; sampling fields do nothing there.

    A checkpoint without the file ends answers with config.json's `eos_token_id`, as transformers has it.
    """
    path = folder / GENERATION if (folder / GENERATION).is_file() else folder / CONFIG
    fields = flat_fields(read_json(path), str(path))
    for name, neutral in NEUTRAL.items():
        if fields.values.get(name) not in (None, [], {}, neutral):
            raise fields.error(name, f"{json.dumps(neutral)}, as answers are decoded here (remove it for that)")
    found = fields.values.get("eos_token_id")
    eos: list[Any] = found if isinstance(found, list) else [found]
    if not eos or not all(isinstance(token, int) and not isinstance(token, bool) for token in eos):
        raise fields.error("eos_token_id", "a token id or a list of them")
    penalty = fields.number("repetition_penalty", default=1.0)
    if penalty == 0:
        raise fields.error("repetition_penalty", "a number above 0")
    top_p = fields.number("top_p", default=1.0)
    if not 0 < top_p <= 1:
        raise fields.error("top_p", "a share above 0, at most 1")
    return GenerationSettings(frozenset(eos), penalty, top_p)


def read_json(path: Path, most: int = MAX_VALUE) -> dict[str, Any]:
    """A JSON object from a file of at most so many bytes. Raises UsageError for anything else."""
    try:
        value = json.loads(read_bounded(fetched(path), most))  # bytes: with or without a byte order mark
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{path}: expected a JSON object")
    return value
