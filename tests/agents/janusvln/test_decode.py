"""Recorded episodes of the published code, step by step: what is kept, seen, put in and said."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from agents.janusvln import checkpoint
from agents.janusvln.decode import Decoder, Question
from agents.janusvln.image import resize
from agents.janusvln.network.language import expand
from agents.janusvln.network.model import JanusVLN
from agents.janusvln.prompt import LABELS, Prompts, shown_steps
from tests.agents.janusvln.recordings import Recorded, ids_of, recorded, recordings
from vlnbench.interfaces import Action

CLOSE = 1e-4


class Watched(Decoder):
    """Keeps the raw logits of every answered position: slot -> logits."""

    logits: dict[int, list[Tensor]]

    def _choose(
        self, questions: Sequence[Question], answers: Sequence[Sequence[int]], logits: Tensor, seen: Tensor
    ) -> Tensor:
        for question, answer, row in zip(questions, answers, logits, strict=True):
            if not self._is_whole(answer):
                self.logits.setdefault(question.slot, []).append(row)
        return super()._choose(questions, answers, logits, seen)


@contextmanager
def outputs(**modules: nn.Module) -> Iterator[dict[str, Tensor]]:
    """The first output of each module; of `inputs` the input."""
    kept: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            kept.setdefault(name, args[0] if name == "inputs" else output)

        return hook

    hooks = [module.register_forward_hook(keep(name)) for name, module in modules.items()]
    yield kept
    for hook in hooks:
        hook.remove()


def check(found: Tensor, known: Mapping[str, Any]) -> None:
    """Compare a tensor (tokens, width) with a recorded summary of it."""
    assert list(found.shape) == known.get("shape", list(found.shape))
    assert float(found.mean()) == pytest.approx(known["mean"], abs=CLOSE)
    assert float(found.std()) == pytest.approx(known["std"], abs=CLOSE)
    for token, values in known.get("first4", {}).items():
        half = found.shape[1] // 2
        row = found[int(token)]
        shown = row[:4] if len(values) == 4 else torch.cat((row[:4], row[half : half + 4]))
        torch.testing.assert_close(shown, torch.tensor(values), atol=CLOSE, rtol=0)


class Replay:
    """Recorded steps of one episode in one slot, compared one by one."""

    def __init__(self, folder: Path, name: str, run: Recorded, decoder: Watched, prompts: Prompts) -> None:
        self.run, self.decoder, self.prompts = run, decoder, prompts
        with np.load(folder / "traces.npz") as arrays:
            self.first, self.last = arrays[f"{name}/logits_first"], arrays[f"{name}/logits_last"]
        self.texts = recordings(folder)["prompts"]

    def question(self, slot: int, step: dict[str, Any]) -> Question:
        steps = shown_steps(step["step"], self.run.settings["num_history"])
        assert steps == step["frame_indices"]
        ids = self.prompts.question(self.run.episode["instruction"], len(steps))
        assert self.prompts._tokenizer.encode(self.texts[step["prompt"]], add_special_tokens=False) == ids
        return Question(slot, ids, steps)

    def check_positions(self, question: Question, step: dict[str, Any]) -> None:
        grid = self.decoder.memory(question.slot).grid
        ids, positions = expand(question.input_ids, [grid] * len(question.steps), 912)
        assert ids.tolist() == ids_of(step["input_ids_rle"])
        known = step["position_ids"]
        digest = hashlib.sha256(positions[:, None].contiguous().numpy().tobytes()).hexdigest()
        assert digest[:16] == known["sha256_16"]
        assert int(positions.max()) + 1 - len(ids) == known["rope_delta"]

    def check_answer(self, slot: int, step: dict[str, Any], answer: list[int]) -> None:
        logits, row = self.decoder.logits[slot], step["npz_row"]
        np.testing.assert_allclose(logits[0], self.first[row], atol=CLOSE, rtol=0)
        np.testing.assert_allclose(logits[-1], self.last[row], atol=CLOSE, rtol=0)
        assert answer == step["generated_ids"]
        text = self.prompts.text(answer)
        assert text == step["answer"]
        if not step["forced_stop_by_cap"]:
            assert LABELS.get(text, Action.STOP) == step["executed_action"]


def make(goldens: Path, model: JanusVLN, prompts: Prompts, run: Recorded, max_batch: int = 8) -> Watched:
    settings = checkpoint.generation_settings(goldens / "checkpoint", prompts._tokenizer)
    decoder = Watched(model, settings, max_new_tokens=run.settings["max_new_tokens"], max_batch=max_batch)
    decoder.logits = {}
    return decoder


def replay_alone(
    goldens: Path, model: JanusVLN, prompts: Prompts, name: str, index: int, limit: int | None
) -> None:
    """One episode of a run, its first `limit` steps, with all that is recorded of a step."""
    run = recorded(goldens, name)[index]
    decoder = make(goldens, model, prompts, run)
    replay = Replay(goldens, name, run, decoder, prompts)
    decoder.begin(0)
    for step in run.steps[:limit]:
        decoder.logits = {}
        with outputs(geometry=model.vggt.aggregator, merged=model.merger, inputs=model.model) as kept:
            decoder.see({0: resize(run.rgb(step["step"]))})
            question = replay.question(0, step)
            (answer,) = decoder.run([question])
        memory, features = decoder.memory(0), step["features"]
        assert memory.cache.frames == step["vggt_cache_frames"]
        check(kept["geometry"][0], features["vggt_patch_tokens"])
        check(kept["merged"][0], features["geometry"])
        check(kept["inputs"][0], features["lm_input"])
        check(torch.cat([memory.images[i] for i in question.steps]), features["visual"])
        for token, values in features["visual"]["current_first4"].items():
            torch.testing.assert_close(memory.images[-1][int(token), :4], torch.tensor(values), atol=CLOSE, rtol=0)
        replay.check_positions(question, step)
        replay.check_answer(0, step, answer)


@pytest.mark.parametrize(
    ("name", "index", "limit"), [("main", 0, 4), ("main", 1, 2), ("small_history", 0, 7), ("cut_output", 0, None)]
)
def test_recorded_steps(
    goldens: Path, recorded_model: JanusVLN, prompts: Prompts, name: str, index: int, limit: int | None
) -> None:
    replay_alone(goldens, recorded_model, prompts, name, index, limit)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "index"), [("main", 0), ("main", 1), ("small_history", 0)])
def test_whole_recorded_episodes(
    goldens: Path, recorded_model: JanusVLN, prompts: Prompts, name: str, index: int
) -> None:
    """70 and 62 steps, so that frames are dropped from the geometric memory from step 56 on."""
    replay_alone(goldens, recorded_model, prompts, name, index, None)
