from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agents.common.checkpoints.files import GenerationSettings, generation_settings
from agents.common.decoders import generate, turns
from agents.common.decoders.batches import groups
from agents.common.decoders.generate import Row
from agents.common.decoders.placeholders import IMAGE, MEMORY
from agents.common.decoders.turns import Decoder, Turn
from agents.streamvln import network as checkpoint
from agents.streamvln.network import StreamVLN
from tests.agents.recorded import recorded, traces
from tests.agents.streamvln.recordings import RUNS, pixels
from tests.agents.streamvln.tiny import END, tiny_images, tiny_model
from vlnbench.errors import UsageError

SETTINGS = GenerationSettings(frozenset({END}), 1.05)


class Watched(Decoder):
    """Keeps the raw logits of every answered position: slot -> position -> logits."""

    def __init__(self, model: StreamVLN, settings: GenerationSettings, **options: Any) -> None:
        super().__init__(model, settings, **options)
        self.logits: dict[int, dict[int, Tensor]] = {}
        self.passes = 0

    def _choose(self, rows: Sequence[Row], logits: Tensor) -> list[list[int]]:
        self.passes += 1
        for row, values in zip(rows, logits, strict=True):
            for j in range(len(row.guess) + 1):
                self.logits.setdefault(row.turn.slot, {})[len(row.output) + j] = values[j]
        return super()._choose(rows, logits)


@dataclass
class Replay:
    """One recorded episode, fed turn by turn."""

    episode: dict[str, Any]
    turns: list[dict[str, Any]]
    answers: list[list[int]] = field(default_factory=list)

    def next(self, slot: int) -> Turn:
        turn = self.turns[len(self.answers)]
        steps = [*turn["memory_frame_steps"], turn["current_frame_step"]]
        images = [pixels(self.episode["frame_seed"], self.episode["frame_episode"], step) for step in steps]
        return Turn(slot, turn["input_ids"], torch.cat(images), turn["opens_window"])


def replays(folder: Path, run: str) -> list[Replay]:
    """Episodes of a run, without the turn at which the published code failed."""
    return [
        Replay(found.episode, [turn for turn in found.steps if "output_ids" in turn])
        for found in recorded(folder, run)
    ]


@pytest.mark.parametrize(("run", "attn"), [*((run, "sdpa") for run in RUNS), ("small_window", "eager")])
def test_recorded_turns_one_by_one(goldens: Path, recorded_model: StreamVLN, run: str, attn: str) -> None:
    folder, model = goldens / "checkpoint", recorded_model
    if attn != "sdpa":
        model = checkpoint.load(folder, vision_tower=goldens / "vision_tower", attn=attn)
    (known,) = (entry for entry in traces(goldens)["runs"] if entry["name"] == run)
    settings = generation_settings(folder)
    decoder = Watched(model, settings, max_new_tokens=known["settings"]["max_new_tokens"])
    with np.load(goldens / "traces.npz") as arrays:
        first, fourth = arrays[f"{run}/logits_first"], arrays[f"{run}/logits_pos3"]
    for replay in replays(goldens, run):
        for turn in replay.turns:
            before = 0 if turn["opens_window"] else decoder.window_length(0)
            assert before == turn["cache_len_before"]
            (answer,) = decoder.run([replay.next(0)])
            replay.answers.append(answer)
            assert answer == turn["output_ids"]
            assert decoder.window_length(0) == turn["cache_len_after"]
            assert decoder.window_length(0) - len(answer) + 1 == turn["embeds_len_total"]
            seen = decoder.logits[0]
            position = min(3, len(answer) - 1)
            np.testing.assert_allclose(seen[0], first[turn["npz_row"]], atol=3e-5, rtol=0)
            np.testing.assert_allclose(seen[position], fourth[turn["npz_row"]], atol=3e-5, rtol=0)


@pytest.mark.parametrize(("max_batch", "drawn"), [(2, True), pytest.param(5, False, marks=pytest.mark.slow)])
def test_any_batch_and_order_give_the_recorded_ids(
    goldens: Path, recorded_model: StreamVLN, max_batch: int, drawn: bool
) -> None:
    """Five episodes at once, windows opening beside windows going on; random subsets and orders if `drawn`."""
    runs = ["main", "stop_mid_turn", "small_window", "stop_mid_turn"]
    slots = [replay for run in runs for replay in replays(goldens, run)]
    settings = generation_settings(goldens / "checkpoint")
    decoder = Decoder(recorded_model, settings, max_new_tokens=24, max_batch=max_batch)
    rng = random.Random(1)
    while ready := [i for i, replay in enumerate(slots) if len(replay.answers) < min(9, len(replay.turns))]:
        if drawn:
            ready = rng.sample(ready, rng.randint(1, len(ready)))
        for i, answer in zip(ready, decoder.run([slots[i].next(i) for i in ready]), strict=True):
            slots[i].answers.append(answer)
    for replay in slots:
        assert replay.answers == [turn["output_ids"] for turn in replay.turns[:9]]


@pytest.mark.gpu
def test_recorded_ids_on_the_gpu(goldens: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # else the patches are embedded in it
    folder = goldens / "checkpoint"
    model = checkpoint.load(folder, vision_tower=goldens / "vision_tower", device="cuda")
    decoder = Decoder(model, generation_settings(folder), max_new_tokens=24)
    for replay in replays(goldens, "main"):
        for turn in replay.turns:
            replay.answers += decoder.run([replay.next(0)])
            assert replay.answers[-1] == turn["output_ids"]


def opening(slot: int, text: Sequence[int] = (1, 2, 3), memory: int = 0) -> Turn:
    ids = [*text, *([MEMORY] if memory else []), IMAGE, 4]
    return Turn(slot, ids, tiny_images(memory + 1, seed=slot), opens_window=True)


def following(slot: int, answer: list[int], seed: int = 0) -> Turn:
    return Turn(slot, [*answer, 5, IMAGE, 6], tiny_images(1, seed=seed), opens_window=False)


def test_a_rehearsal_is_short_and_leaves_all_as_it_was() -> None:
    rehearsed, plain = (Watched(tiny_model(), SETTINGS, max_new_tokens=9) for _ in range(2))
    answers = []
    for decoder in (rehearsed, plain):
        (first,) = decoder.run([opening(0)])
        before, decoder.passes = decoder.passes, 0
        if decoder is rehearsed:
            decoder.rehearse([1, 2, 3, IMAGE, 4])
            assert 1 <= decoder.passes <= turns.REHEARSED
            assert len(decoder.logits[-1]) <= turns.REHEARSED
        assert (decoder.max_new_tokens, decoder.window_length(-1)) == (9, 0)
        answers.append([before, first, *decoder.run([following(0, first)])])
    assert answers[0] == answers[1]
    for position, logits in plain.logits[0].items():
        assert torch.equal(rehearsed.logits[0][position], logits)


def play(decoder: Decoder, slots: Sequence[int], turns: int = 4) -> list[list[list[int]]]:
    """Answers of `turns` rounds; slot s opens with s + 1 words of text and, if odd, memory."""
    answers = [decoder.run([opening(s, range(1, s + 2), memory=2 * (s % 2)) for s in slots])]
    for number in range(1, turns):
        answers.append(
            decoder.run([following(s, answers[-1][i], seed=10 * s + number) for i, s in enumerate(slots)])
        )
    return answers


@pytest.mark.parametrize("penalty", [1.0, 1.3])
@pytest.mark.parametrize("model", [tiny_model(), tiny_model("eager")], ids=["sdpa", "eager"])
def test_guesses_change_the_number_of_passes_only(
    model: StreamVLN, penalty: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = GenerationSettings(frozenset({END}), penalty)
    quick = Watched(model, settings, max_new_tokens=12)
    answers = play(quick, range(4))
    monkeypatch.setattr(generate, "DRAFT", 0)
    plain = Watched(model, settings, max_new_tokens=12)
    assert play(plain, range(4)) == answers
    assert quick.passes < plain.passes
    assert all(quick.window_length(slot) == plain.window_length(slot) for slot in range(4))


@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_prompts_and_log_probabilities_are_those_of_the_last_answers(penalty: float) -> None:
    decoder = Watched(tiny_model(), GenerationSettings(frozenset({END}), penalty), max_new_tokens=12, max_batch=2)
    for slot, answer in enumerate(play(decoder, range(3))[-1]):
        likely = sum(decoder.logits[slot][i].log_softmax(-1)[token].item() for i, token in enumerate(answer))
        prompt, found = decoder.noted.of(slot, len(answer))
        assert prompt == decoder.window_length(slot) - len(answer) + 1
        assert found == pytest.approx(likely, abs=1e-4)
    assert decoder.noted.of(7, 3) == (None, None)


def test_a_right_guess_takes_one_pass() -> None:
    decoder = Watched(tiny_model(), SETTINGS, max_new_tokens=8)
    (answer,) = decoder.run([opening(0)])
    decoder.passes = 0
    assert decoder.run([opening(0)]) == [answer]
    assert decoder.passes == 1


def test_together_as_alone() -> None:
    together = play(Decoder(tiny_model(), SETTINGS, max_new_tokens=12), range(6))
    for slot in range(6):
        alone = play(Decoder(tiny_model(), SETTINGS, max_new_tokens=12), [slot])
        assert [answers[slot] for answers in together] == [answers[0] for answers in alone]


@pytest.mark.parametrize("place", ["begins", "feeds", "generates"])
def test_a_gpu_without_room_for_a_chunk_changes_no_answer(place: str) -> None:
    class Full(Decoder):
        """Has no room for more than a row from its second round on, when windows go on."""

        rounds, passes, too_many = 0, 0, 0

        def run(self, turns: Sequence[Turn]) -> list[list[int]]:
            self.rounds += 1
            return super().run(turns)

        def _generate(self, rows: Sequence[Row]) -> None:
            self.passes = 0
            super()._generate(rows)

        def _look(self, rows: Sequence[Row]) -> list[Tensor]:
            self.check("begins", len(rows))
            return super()._look(rows)

        def _keep(self, seated: Sequence[Row], first: int, logits: Tensor, cache: Any) -> None:
            super()._keep(seated, first, logits, cache)
            self.passes += 1
            self.check("feeds" if self.passes == 1 else "generates", len(seated))

        def check(self, at: str, rows: int) -> None:
            if at == place and self.rounds > 1 and rows > 1:
                self.too_many += 1
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    undisturbed = play(Decoder(tiny_model(), SETTINGS, max_new_tokens=12), range(4))
    full = Full(tiny_model(), SETTINGS, max_new_tokens=12)
    assert play(full, range(4)) == undisturbed
    assert full.too_many == 2  # of four rows, then of two; from then on, rows come alone


@pytest.mark.slow
@pytest.mark.long
def test_compiled_blocks_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced as torch.compile does, with dynamic shapes; the code generator, which takes minutes, left out."""
    model = tiny_model(num_hidden_layers=1)
    known = play(Decoder(model, SETTINGS, max_new_tokens=4), range(2), turns=2)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    assert play(Decoder(model, SETTINGS, max_new_tokens=4, compile=True), range(2), turns=2) == known


def test_compiling_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UsageError, match=r"--compile cannot be used here: .*no-such-compiler not found"):
        Decoder(tiny_model(), SETTINGS, compile=True)


def test_answers_end_with_an_end_token_or_at_the_limit() -> None:
    model = tiny_model()
    ends = Decoder(model, GenerationSettings(frozenset(range(50))), max_new_tokens=5).run([opening(0)])
    assert [len(answer) for answer in ends] == [1]
    never = Decoder(model, GenerationSettings(frozenset({-1})), max_new_tokens=5)
    (answer,) = never.run([opening(0)])
    assert len(answer) == 5
    (answer,) = never.run([following(0, answer)])
    assert len(answer) == 5
    assert never.window_length(0) == (3 + 9 + 1) + 4 + (1 + 1 + 9 + 1) + 4


def test_no_limit_on_how_far_a_buffer_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = GenerationSettings(frozenset({-1}))
    known = play(Decoder(tiny_model(), settings, max_new_tokens=30), range(3), turns=3)
    monkeypatch.setattr("agents.common.decoders.cache.SPARE", 1)
    assert play(Decoder(tiny_model(), settings, max_new_tokens=30), range(3), turns=3) == known


def test_turns_that_do_not_continue() -> None:
    decoder = Decoder(tiny_model(), SETTINGS, max_new_tokens=4)
    with pytest.raises(ValueError, match="slot 0 has no window"):
        decoder.run([following(0, [])])
    (answer,) = decoder.run([opening(0)])
    with pytest.raises(ValueError, match="must begin with the last answer's ids"):
        decoder.run([following(0, [*answer[:-1], 0])])
    with pytest.raises(ValueError, match="occurs twice"):
        decoder.run([opening(0), opening(0)])
    decoder.drop(0)
    decoder.drop(0)
    with pytest.raises(ValueError, match="slot 0 has no window"):
        decoder.run([following(0, answer)])


def test_another_answer_in_place_of_the_last_is_read_as_if_it_had_been_said() -> None:
    model = tiny_model()
    decoder, whole = Watched(model, SETTINGS, max_new_tokens=4), Watched(model, SETTINGS, max_new_tokens=4)
    first = opening(0)
    (said,) = decoder.run([first])
    told, length = [said[0], 7, 8, 9, 10, said[-1]], decoder.window_length(0)
    decoder.unsay(0)
    decoder.unsay(0)
    assert decoder.window_length(0) == length - len(said) + 1
    second = following(0, told)
    (answer,) = decoder.run([second])
    ids, images = [*first.input_ids, *second.input_ids], torch.cat([first.images, second.images])
    assert [answer] == whole.run([Turn(0, ids, images, opens_window=True)])
    for position in range(len(answer)):
        torch.testing.assert_close(decoder.logits[0][position], whole.logits[0][position])


def test_too_long_a_window_is_refused_before_anything_is_answered() -> None:
    model = tiny_model(max_position_embeddings=40)
    decoder = Decoder(model, SETTINGS, max_new_tokens=8)
    (answer,) = decoder.run([opening(0)])
    length = decoder.window_length(0)
    with pytest.raises(
        ValueError, match=r"slot 1: a window of 41 tokens and up to 8 .*max_position_embeddings 40"
    ):
        decoder.run([following(0, answer), opening(1, [1] * 31)])
    assert decoder.window_length(0) == length


def test_no_turns_no_answers() -> None:
    assert Decoder(tiny_model(), SETTINGS).run([]) == []


def test_memory_that_episodes_take() -> None:
    decoder = Decoder(tiny_model(max_position_embeddings=4096), SETTINGS, max_new_tokens=16)
    assert decoder.cache_bytes_per_token == 2 * 2 * 2 * 8 * 4  # layers, keys and values, heads, width, bytes
    longest = 1024 + 2 * 9 + 8 * (9 + 48 + 16)
    assert decoder.cache_bytes_per_slot == 256 * longest
    assert "256 bytes per token" in decoder.describe()
    assert Decoder(tiny_model(), SETTINGS).cache_bytes_per_slot == 256 * 512  # all positions there are
    assert "\n" not in decoder.describe()


@pytest.mark.parametrize(
    ("lengths", "sizes"),
    [([], []), ([5], [1]), ([10, 15, 16], [2, 1]), ([220, 225, 380, 390, 1940], [2, 2, 1])],
)
def test_lengths_that_are_padded_to_one_another(lengths: list[int], sizes: list[int]) -> None:
    assert groups(lengths) == sizes
