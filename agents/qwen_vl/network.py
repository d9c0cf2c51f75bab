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

from agents.common.checkpoints import weights
from agents.common.checkpoints.files import GenerationSettings
from agents.common.decoders.generate import Choose, Row
from agents.common.inputs import INPUTS
from agents.common.language.network import Output
from agents.common.prompts.navigation import checked, read_template
from agents.common.qwen2_5_vl.config import QwenConfig, config_file, qwen_config, released_name
from agents.common.qwen2_5_vl.decode import Decoder
from agents.common.qwen2_5_vl.image import Grid, grid_of
from agents.common.qwen2_5_vl.language import expand
from agents.common.qwen2_5_vl.network import QwenNetwork
from agents.common.upload import upload
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
        """One training step's forward pass; see `output`.

        `input_ids` hold one image token per frame; `frames[i]` is uint8 (k, height, width, 3). Samples are padded
        on the right.
        """
        token = self.config.image_token
        grids = [[grid_of(*seen.shape[1:3])] * len(seen) for seen in frames]
        rows = [expand(ids, grid, token) for ids, grid in zip(input_ids, grids, strict=True)]
        hidden = self.hidden(rows, torch.cat([self.images(seen) for seen in frames]))
        return self.output(hidden, rows, input_ids, labels, want_logits, at_labels)


def load(
    folder: Path,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    attn: str = "sdpa",
    trust_pickle: bool = False,
    quantize: str | None = None,
) -> QwenVL:
    """Load a checkpoint folder, in evaluation mode; `dtype` defaults to the checkpoint's. quantize:
    see `weights.fill`.

    Tensors go to `device` one at a time, so that the model is never held twice. Raises UsageError, before any
    tensor is read, for a folder or config that is no Qwen2.5-VL checkpoint, for pickled, damaged or absent weight
    files and for keys or shapes that do not match. Keys may be those of the released folders or of transformers 5.
    """
    config = read_config(folder)
    paths, named = weights.weight_files(folder, trust_pickle), released_name(config.tied)
    with torch.device("meta"):
        model = QwenVL(config, attn == "eager")
    weights.check_entries(weights.read_entries(paths, named=named), model, folder)
    weights.fill(model, paths, dtype or config.dtype, torch.device(device), named, quantize)
    return model.eval()


@dataclass(frozen=True)
class Question:
    """A request for an answer: ids with a placeholder per image, and the frames, uint8 (k, height, width, 3)."""

    slot: int
    input_ids: list[int]
    frames: Tensor


Allowed = Callable[[Sequence[int]], Sequence[int]]
"""Tokens that may follow an answer so far; none where it is whole."""


class Answerer(Decoder[Question]):
    """See `Decoder`. `allowed`: nothing else is answered."""

    model: QwenVL

    def __init__(
        self,
        model: QwenVL,
        settings: GenerationSettings,
        *,
        max_new_tokens: int = 64,
        max_batch: int = 8,
        choose: Choose | None = None,
        allowed: Allowed | None = None,
        graphs: bool = False,
    ) -> None:
        super().__init__(model, settings, max_new_tokens, max_batch, choose, graphs)
        self._may_follow = allowed

    def grids(self, question: Question) -> list[Grid]:
        return [grid_of(*question.frames.shape[1:3])] * len(question.frames)

    def fused(self, question: Question) -> Tensor:
        return self.model.images(question.frames)

    def _allowed(self, rows: Sequence[Row], logits: Tensor) -> Tensor:
        if self._may_follow is not None:
            for row, (scores,) in zip(rows, logits, strict=True):
                if following := list(self._may_follow(row.output)):
                    places = upload(torch.tensor(following), logits.device)
                    kept = scores[places]
                    scores.fill_(-torch.inf).index_copy_(0, places, kept)
        return logits
