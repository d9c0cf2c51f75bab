"""Networks on Qwen2.5-VL as policies: tokens are drawn by chance, and every answer is a window of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from agents.common.checkpoints.files import GenerationSettings
from agents.common.decoders.policy import Recorder
from agents.common.decoders.sampling import Draws
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

    def choose(self, questions: Sequence[Any], answers: Sequence[Sequence[int]], logits: Tensor) -> list[int]:
        """Draw the next token of every answer by its row of logits (rows, vocabulary)."""
        wanted = [Draws(asked.slot, len(told), 1) for asked, told in zip(questions, answers, strict=True)]
        scores = undrawn(logits, self._model.config.image_token)[:, None]
        return [token for (token,) in self._sampler.draw(wanted, scores)]
