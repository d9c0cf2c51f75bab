"""Tokenizers of Qwen2's kind for models that are trained from scratch, learned from the texts they will read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

END, BLOCK_START, BLOCK_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Where Qwen2's tokenizer cuts text before it looks for merges."""


def write_tokenizer(
    folder: Path, texts: Iterable[str], vocabulary: int, whole: Sequence[str], marks: Sequence[str] = ()
) -> dict[str, int]:
    """Learn a byte-level BPE of Qwen2's kind from texts and write its files; returns the vocabulary.

    `whole` are texts that become one token each; `marks` are such beside those of Qwen2 that answers leave out.
    """
    tokenizer = learned(texts, vocabulary, whole, (END, BLOCK_START, BLOCK_END, *marks))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "Qwen2Tokenizer",
        "additional_special_tokens": [BLOCK_START, BLOCK_END, *marks],
        "bos_token": None,
        "eos_token": BLOCK_END,
        "pad_token": END,
        "unk_token": None,
        "model_max_length": 32768,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    return dict(tokenizer.get_vocab())


def write_with_begin(
    folder: Path, texts: Iterable[str], vocabulary: int, whole: Sequence[str], special: Sequence[str], **named: str
) -> dict[str, int]:
    """Learn a tokenizer that puts the begin of a text in front of every text, as Llama's do, and write its files.

    Returns the vocabulary. `whole`, `special`: see `learned`. named: which special tokens are bos_token and so on.
    """
    from tokenizers.processors import TemplateProcessing

    tokenizer = learned(texts, vocabulary, whole, special)
    begin = named["bos_token"]
    ids: dict[str, int] = tokenizer.get_vocab()
    tokenizer.post_processor = TemplateProcessing(single=f"{begin} $A", special_tokens=[(begin, ids[begin])])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **named, "clean_up_tokenization_spaces": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    return ids


def learned(texts: Iterable[str], vocabulary: int, whole: Sequence[str], special: Sequence[str]) -> Any:
    """A byte-level BPE learned from texts. `whole` and `special` become one token each; answers leave the latter
    out."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    pieces = [
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(pieces)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in whole])
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    return tokenizer
