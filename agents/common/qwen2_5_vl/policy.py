"""Networks on Qwen2.5-VL as policies: tokens are drawn by chance, and every answer is a window of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from agents.common.checkpoints.files import GenerationSettings
from agents.common.decoders.generate import Row
from agents.common.decoders.policy import Recorder
from agents.common.qwen2_5_vl.network import undrawn
from vlnbench.interfaces import Action
from vlnbench.training.family.policy import Sampling


class QwenRecorder(Recorder):
    """`prompts.read` gives the actions of an answer, None for one that cannot be read."""

    def __init__(self, model: Any, settings: GenerationSettings, prompts: Any, sampling: Sampling) -> None:
        super().__init__(sampling)
        self._model, self._settings, self._prompts = model, settings, prompts

    def read(self, answer: Sequence[int]) -> tuple[Sequence[Action], bool]:
        actions = self._prompts.read(answer)
        return actions or (Action.STOP,), actions is not None and answer[-1] in self._settings.eos

    def choose(self, rows: Sequence[Row], logits: Tensor) -> list[list[int]]:
        """As `Sampler.choose`, of anything but images."""
        return self._sampler.choose(rows, undrawn(logits, self._model.config.image_token))
