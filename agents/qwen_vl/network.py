"""The Qwen2.5-VL network (arXiv 2502.13923), its checkpoint folders, and its answers to many questions at once.

Every question is asked anew: which frames it shows changes from one to the next, so nothing of the language
model's work on one can be used in another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from agents.common.checkpoints import files, weights
from agents.common.checkpoints import tokenizer as tokenizers
from agents.common.checkpoints.files import DTYPES, GENERATION, GenerationSettings
from agents.common.checkpoints.tokenizer import TOKENIZER_FILES, Tokenizer
from agents.common.inputs import INPUTS
from agents.common.prompts.navigation import checked, read_template
from agents.common.qwen2_5_vl.config import QwenConfig, config_file, qwen_config
from agents.common.qwen2_5_vl.decode import Row, decode, in_batches, penalized
from agents.common.qwen2_5_vl.image import grid_of
from agents.common.qwen2_5_vl.language import expand
from agents.common.qwen2_5_vl.network import Output, QwenNetwork, spread_labels, undrawn
from agents.common.qwen2_5_vl.tokens import PROCESSOR_FILES, qwen_tokenizer
from agents.qwen_vl.options import ARCHITECTURE, QwenVLAsked, QwenVLInputs, QwenVLShown


def read_config(folder: Path) -> QwenConfig:
    """Read config.json of a checkpoint folder.

    Raises UsageError for a folder that holds no Qwen2.5-VL checkpoint and for the first field that does not fit.
    """
    return parse_config(*config_file(folder))


def parse_config(raw: Mapping[str, Any], where: str) -> QwenConfig:
    """The same from a config.json's content; `where` is its name in messages."""
    return qwen_config(raw, where, ARCHITECTURE, "plain Qwen2.5-VL")


def inputs_of(folder: Path | None, given: QwenVLShown) -> QwenVLInputs:
    """What a checkpoint's network sees and says, and options over it. folder: None for random weights."""
    saved = folder and QwenVLInputs.read(folder)
    path = given.prompt if isinstance(given, QwenVLAsked) else None
    found = (saved or QwenVLInputs()).over(given, prompt=path and read_template(path))
    return replace(found, prompt=checked(found.prompt, f"{folder}: {INPUTS}: prompt") or read_template(None))


class QwenVL(QwenNetwork):
    """The network as it was published; see `QwenNetwork`."""

    def images(self, frames: Tensor) -> Tensor:
        """Embeddings (N * embeddings, hidden) of frames of one size, uint8 (N, height, width, 3)."""
        found: Tensor = self.visual.merger(self.tower_features(frames))
        return found.flatten(0, 1)

    def forward(
        self,
        input_ids: Sequence[Sequence[int]],
        frames: Sequence[Tensor],
        labels: Sequence[Sequence[int]] | None = None,
        *,
        want_logits: bool = True,
        at_labels: bool = False,
    ) -> Output:
        """One training step's forward pass.

        `input_ids` hold one image token per frame, `labels` one label per id; `frames[i]` is uint8 (k, height,
        width, 3). Samples are padded on the right. The loss is the mean float32 cross entropy of each next label
        that is not ignored. Without `want_logits` (labels needed) only supervised positions meet the vocabulary.
        `at_labels`: there is no loss, and logits are float32 (labels, vocabulary), of answers that were drawn.
        """
        token = self.config.image_token
        grids = [[grid_of(*seen.shape[1:3])] * len(seen) for seen in frames]
        rows = [expand(ids, grid, token) for ids, grid in zip(input_ids, grids, strict=True)]
        hidden = self.hidden(rows, torch.cat([self.images(seen) for seen in frames]))
        if labels is None:
            return Output(self.logits(hidden), None)
        spread = [
            spread_labels(own, ids, row, token) for own, ids, (row, _) in zip(labels, input_ids, rows, strict=True)
        ]
        scores, targets = self.supervised(hidden, spread)
        if at_labels:
            return Output(undrawn(scores, token), None)
        loss = functional.cross_entropy(scores, targets)
        return Output(self.logits(hidden) if want_logits else None, loss)


NESTED = {"model.language_model.": "model.", "model.visual.": "visual."}
"""Beginnings of parameters' names as transformers 5 has them, and as the released folders do."""


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
    files and for keys or shapes that do not match. Keys may be those of the released folders or of transformers 5.
    """
    config = read_config(folder)
    paths = weights.weight_files(folder, trust_pickle)
    with torch.device("meta"):
        model = QwenVL(config, eager)
    weights.check_entries(weights.read_entries(paths, named=_released_name), model, folder)
    weights.fill(model, paths, dtype or config.dtype, torch.device(device), _released_name)
    return model.eval()


def _released_name(name: str) -> str:
    """A parameter's name in the released folders.

    Since 4.52, transformers nests tower and language model below `model.`; whoever saves without turning the names
    back writes them so (`conversion_mapping.py`, `Qwen2VLForConditionalGeneration`, in transformers 5.23).
    """
    for nested, released in NESTED.items():
        if name.startswith(nested):
            return released + name.removeprefix(nested)
    return name


def load_tokenizer(folder: Path, config: QwenConfig, tokenizer: Path | None = None) -> Tokenizer:
    """The tokenizer of a checkpoint folder, or of the folder `tokenizer` where the checkpoint has none.

    Raises UsageError where there is none and where it does not suit the checkpoint.
    """
    source = _tokenizer_folder(folder, tokenizer)
    return qwen_tokenizer(source, folder, config.vocab_size, config.image_token, "Qwen2.5-VL-3B-Instruct")


def content_hash(folder: Path, *, tokenizer: Path | None = None, trust_pickle: bool = False) -> str:
    """SHA-256 (hexadecimal) over names and contents of all files that loading with these arguments reads."""
    return files.content_hash(weights.folder_files(folder, _tokenizer_folder(folder, tokenizer), trust_pickle))


def _tokenizer_folder(folder: Path, tokenizer: Path | None) -> Path:
    return tokenizers.tokenizer_folder(folder, tokenizer, "another Qwen2.5-VL checkpoint")


def save(
    model: QwenVL,
    folder: Path,
    inputs: QwenVLInputs,
    *,
    source: Path,
    tokenizer: Path | None = None,
    shard_size: str | int = "5GB",
) -> None:
    """Write a checkpoint folder that `load` reads, with the inputs that the network was trained with.

    What is neither weight nor inputs comes from `source`, where it started from.

    The folder appears at its name only when complete. Raises UsageError if `folder` exists.
    """
    words = _tokenizer_folder(source, tokenizer)
    copied = [source / name for name in (GENERATION, *PROCESSOR_FILES)]
    copied += [words / name for name in TOKENIZER_FILES]
    name = next(name for name, dtype in DTYPES.items() if dtype == model.dtype)
    weights.write_folder(model, folder, dict(model.config.raw) | {"torch_dtype": name}, copied, shard_size, inputs)


@dataclass(frozen=True)
class Question:
    """A request for an answer: ids with a placeholder per image, and the frames, uint8 (k, height, width, 3)."""

    slot: int
    input_ids: list[int]
    frames: Tensor


Choose = Callable[[Sequence[Question], Sequence[Sequence[int]], Tensor], list[int]]
"""The next token of every answer; answers so far, logits float32 (rows, vocabulary)."""


Allowed = Callable[[Sequence[int]], Sequence[int]]
"""Tokens that may follow an answer so far; none where it is whole."""


class Answerer:
    """Answers questions, at most `max_batch` in one pass.

    The repetition penalty sees the question and the answer so far. An answer ends with an end token, included, or
    after `max_new_tokens`. `choose` takes the place of greedy decoding, without the penalty then. `allowed`:
    nothing else is answered.
    """

    def __init__(
        self,
        model: QwenVL,
        settings: GenerationSettings,
        *,
        max_new_tokens: int = 64,
        max_batch: int = 8,
        choose: Choose | None = None,
        allowed: Allowed | None = None,
    ) -> None:
        self.model = model.eval()
        self.settings = settings
        self.max_new_tokens, self.max_batch = max_new_tokens, max_batch
        self._choose, self._allowed = choose, allowed

    @torch.inference_mode()
    def run(self, questions: Sequence[Question]) -> list[list[int]]:
        """The answers to `questions`, in their order.

        Raises ValueError, before any is answered, where placeholders and images do not match.
        """
        token = self.model.config.image_token
        rows = [
            expand(each.input_ids, [grid_of(*each.frames.shape[1:3])] * len(each.frames), token)
            for each in questions
        ]
        return in_batches(rows, self.max_batch, lambda batch: self._answer(batch, questions, rows))

    def _answer(self, batch: list[int], questions: Sequence[Question], rows: Sequence[Row]) -> list[list[int]]:
        """The answers to a batch of all questions, by their positions."""
        asked = [questions[i] for i in batch]
        return decode(
            self.model,
            [rows[i] for i in batch],
            torch.cat([self.model.images(question.frames) for question in asked]),
            self.settings,
            self.max_new_tokens,
            lambda answers, logits, seen: self._next(asked, answers, logits, seen),
        )

    def _next(
        self, questions: Sequence[Question], answers: Sequence[Sequence[int]], logits: Tensor, seen: Tensor
    ) -> list[int]:
        if self._choose is not None:
            return self._choose(questions, answers, logits)
        scores = penalized(logits, seen, self.settings.repetition_penalty)
        if self._allowed is not None:
            for row, answer in zip(scores, answers, strict=True):
                if following := list(self._allowed(answer)):
                    kept = row[following].clone()
                    row.fill_(-torch.inf)
                    row[following] = kept
        found: list[int] = scores.argmax(-1).tolist()
        return found
