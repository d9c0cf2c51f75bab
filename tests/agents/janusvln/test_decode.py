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

from agents.common.answers.names import NAMES
from agents.common.checkpoints.files import GenerationSettings
from agents.common.decoders.generate import Row
from agents.common.qwen2_5_vl.language import expand
from agents.common.qwen2_5_vl.tokens import generation_settings
from agents.janusvln.agent import Prompts, shown_steps
from agents.janusvln.network import Decoder, JanusVLN, Question, resize
from tests.agents.janusvln.tiny import END, IMAGE, tiny_frames, tiny_model
from tests.agents.recorded import Recorded, recorded, traces, whole
from vlnbench.interfaces import Action

CLOSE = 1e-4


class Watched(Decoder):
    """Keeps the raw logits of every answered position: slot -> logits."""

    logits: dict[int, list[Tensor]]

    def _choose(self, rows: Sequence[Row], logits: Tensor) -> list[list[int]]:
        for row, (scores,) in zip(rows, logits, strict=True):
            self.logits.setdefault(row.turn.slot, []).append(scores)
        return super()._choose(rows, logits)


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
        self.texts = traces(folder)["prompts"]

    def question(self, slot: int, step: dict[str, Any]) -> Question:
        steps = shown_steps(step["step"], self.run.settings["num_history"])
        assert steps == step["frame_indices"]
        ids = self.prompts.question(self.run.episode["instruction"], len(steps))
        assert self.prompts.tokenizer.encode(self.texts[step["prompt"]], add_special_tokens=False) == ids
        return Question(slot, ids, steps)

    def check_positions(self, question: Question, step: dict[str, Any]) -> None:
        grid, _ = self.decoder._current(question.slot)
        ids, positions = expand(question.input_ids, [grid] * len(question.steps), 912)
        assert ids.tolist() == whole(step["input_ids_rle"])
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
            assert NAMES.get(text, Action.STOP) == step["executed_action"]


def make(goldens: Path, model: JanusVLN, prompts: Prompts, run: Recorded, max_batch: int = 8) -> Watched:
    settings = generation_settings(goldens / "checkpoint", prompts.tokenizer)
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
@pytest.mark.parametrize(
    ("name", "index"), [pytest.param("main", 0, marks=pytest.mark.long), ("main", 1), ("small_history", 0)]
)
def test_whole_recorded_episodes(
    goldens: Path, recorded_model: JanusVLN, prompts: Prompts, name: str, index: int
) -> None:
    """70 and 62 steps, so that frames are dropped from the geometric memory from step 56 on."""
    replay_alone(goldens, recorded_model, prompts, name, index, None)


@pytest.mark.parametrize("max_batch", [2, *(pytest.param(each, marks=pytest.mark.slow) for each in (1, 3))])
def test_episodes_that_began_apart_share_batches(
    goldens: Path, recorded_model: JanusVLN, prompts: Prompts, max_batch: int
) -> None:
    """Questions of one to four images, caches of one to four frames: each slot has the logits recorded of it."""
    first, second = recorded(goldens, "main")
    decoder = make(goldens, recorded_model, prompts, first, max_batch)
    slots = {5: first, 2: second, 9: first}
    replays = {slot: Replay(goldens, "main", run, decoder, prompts) for slot, run in slots.items()}
    begun = {5: 0, 2: 2, 9: 1}
    for slot in slots:
        decoder.begin(slot)
    for now in range(4):
        steps = {slot: slots[slot].steps[now - begun[slot]] for slot in (2, 9, 5) if now >= begun[slot]}
        decoder.see({slot: resize(slots[slot].rgb(step["step"])) for slot, step in steps.items()})
        decoder.logits = {}
        answers = decoder.run([replays[slot].question(slot, step) for slot, step in steps.items()])
        for (slot, step), answer in zip(steps.items(), answers, strict=True):
            replays[slot].check_answer(slot, step, answer)


def test_a_slot_that_has_seen_nothing_cannot_be_asked(
    goldens: Path, recorded_model: JanusVLN, prompts: Prompts
) -> None:
    decoder = make(goldens, recorded_model, prompts, recorded(goldens, "main")[0])
    decoder.begin(0)
    with pytest.raises(ValueError, match="slot 0 has seen no frame"):
        decoder.run([Question(0, [1], [])])


def tiny_decoder(**options: Any) -> Decoder:
    return Decoder(tiny_model(), GenerationSettings(frozenset({END}), 1.05), **options)


def test_a_small_episode_by_literal_answers() -> None:
    """Three steps of two slots, with weights and frames by formula."""
    decoder = tiny_decoder(max_new_tokens=4)
    frames = {0: tiny_frames(3).numpy(), 1: tiny_frames(3, seed=5).numpy()}
    decoder.begin(0)
    decoder.begin(1)
    found = []
    for step in range(3):
        decoder.see({slot: seen[step] for slot, seen in frames.items()})
        steps = shown_steps(step, 1)
        ids = [7, *[IMAGE] * len(steps), 8, 9]
        found.append(decoder.run([Question(slot, ids, steps) for slot in (1, 0)]))
    assert found == [
        [[28, 183, 191, 115], [26, 26, 26, 58]],
        [[183, 17, 28, 39], [225, 115, 39, 27]],
        [[26, 26, 26, 20], [209, 26, 26, 26]],
    ]
    assert decoder.memory(0).cache.frames == [0, 1, 2]


def test_the_penalty_sees_the_question() -> None:
    """Nearly all tokens are in the question; a great penalty leaves the others."""
    decoder = tiny_decoder(max_new_tokens=1)
    decoder.begin(0)
    decoder.see({0: tiny_frames(1)[0].numpy()})
    ids = [*range(250), IMAGE]
    answers = []
    for penalty in (1.0, 1e9):
        decoder.settings = GenerationSettings(frozenset({END}), penalty)
        answers += decoder.run([Question(0, ids, [0])])[0]
    assert answers[0] in ids
    assert answers[1] not in ids


def test_the_penalty_divides_what_is_positive_and_multiplies_the_rest() -> None:
    decoder = tiny_decoder()
    logits = torch.tensor([[2.0, 1.9, -9.0], [2.0, 1.91, -9.0], [-1.0, -1.04, -9.0], [-1.0, -1.06, -9.0]])
    rows = [Row(None, 0, torch.tensor([]), penalized=frozenset({0})) for _ in logits]
    assert decoder._choose(rows, logits[:, None]) == [[0], [1], [1], [0]]


def test_half_precision_runs_and_is_near() -> None:
    model = tiny_model()
    frames, ids = tiny_frames(2), [[1, IMAGE, IMAGE, 5]]
    with torch.inference_mode():
        known = model(ids, [frames]).logits
        found = model.to(torch.bfloat16)(ids, [frames]).logits
    assert known is not None
    assert found is not None
    assert found.dtype == torch.bfloat16
    assert (found.float() - known).abs().mean() < 0.1 * known.abs().mean()


@pytest.mark.parametrize("place", ["geometry", "images", "answers"])
def test_a_gpu_without_room_for_a_batch_changes_no_answer(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def play(decoder: Decoder) -> list[list[list[int]]]:
        answers = []
        for slot in range(3):
            decoder.begin(slot)
        for step in range(4):
            decoder.see({slot: frames[slot][step] for slot in range(3)})
            asked = [Question(slot, [1, 2, IMAGE, IMAGE, 3], [0, step]) for slot in range(3)]
            answers.append(decoder.run(asked))
        return answers

    frames = [tiny_frames(4, seed=slot).numpy() for slot in range(3)]
    model = tiny_model()
    settings = GenerationSettings(frozenset({END}), 1.05)
    undisturbed = play(Decoder(model, settings, window=(1, 2)))
    full = Decoder(model, settings, window=(1, 2))
    places = {"geometry": model.vggt.aggregator, "images": model.merger, "answers": model}
    owner, name = places[place], "logits" if place == "answers" else "forward"
    original = getattr(owner, name)

    def no_room(first: Any, *rest: Any, **named: Any) -> Any:
        found = original(first, *rest, **named)
        if len(first) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return found

    monkeypatch.setattr(owner, name, no_room)
    assert play(full) == undisturbed
