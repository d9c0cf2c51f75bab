from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from agents.common.answers.names import NAMES
from agents.common.checkpoints.tokenizer import load_tokenizer
from agents.common.qwen2_5_vl.tokens import TOKENS
from agents.janusvln.agent import SYSTEM, Prompts, question_text, shown_steps
from tests.agents.janusvln.tiny import END, IMAGE, write_tokenizer
from tests.agents.recorded import recorded, traces, whole
from vlnbench.interfaces import Action


@pytest.fixture
def own(tmp_path: Path) -> Prompts:
    write_tokenizer(tmp_path)
    return Prompts(load_tokenizer(tmp_path, TOKENS, "another"))


def test_recorded_prompts(goldens: Path) -> None:
    texts = traces(goldens)["prompts"]
    for name in ("main", "small_history", "cut_output"):
        for run in recorded(goldens, name):
            for step in run.steps:
                instruction = run.episode["instruction"]
                assert texts[step["prompt"]] == question_text(instruction, len(step["frame_indices"]))


def test_recorded_ids(goldens: Path, prompts: Prompts) -> None:
    for run in recorded(goldens, "main"):
        for step in run.steps[:10]:
            ids = prompts.question(run.episode["instruction"], len(step["frame_indices"]))
            known = [
                token[0] if isinstance(token, list) and token[0] == 912 else token
                for token in step["input_ids_rle"]
            ]
            assert ids == whole(known)


def test_the_texts_are_those_the_weights_were_trained_for() -> None:
    """SHA-256 of the published system message and user text, the instruction as a field."""
    digest = "444e3a6ab585a0e5501ecd665548b5c97e8b52f13a0503341260621e25d17e0e"
    assert hashlib.sha256(SYSTEM.encode()).hexdigest() == digest
    text = question_text("{task}", 0)
    user = text.partition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]
    digest = "c1bd226b4a24fd9bca16314b11c95a6d7865ecbbd5e7cc1e17d273cdd78e3aac"
    assert hashlib.sha256(user.encode()).hexdigest() == digest


def test_images_come_first_and_the_instruction_as_it_is(own: Prompts) -> None:
    ids = own.question(" Go.  ", 3)
    assert ids.count(IMAGE) == 3
    assert ids.count(END) == 2
    assert own.tokenizer.decode(
        ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
    ) == question_text(" Go.  ", 3)
    assert "task is to  Go.   \n You" in question_text(" Go.  ", 3)
    with pytest.raises(ValueError, match=r"the instruction holds <\|image_pad\|>"):
        own.question("Look at <|image_pad|>.", 3)


@pytest.mark.parametrize(
    ("current", "history", "steps"),
    [
        (0, 8, [0]),
        (8, 8, [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        (9, 8, [0, 1, 2, 3, 4, 5, 6, 7, 9]),
        (12, 8, [0, 1, 3, 4, 6, 7, 9, 10, 12]),
        (399, 8, [0, 49, 99, 149, 199, 249, 299, 349, 399]),
        (7, 4, [0, 1, 3, 5, 7]),
    ],
)
def test_history(current: int, history: int, steps: list[int]) -> None:
    assert shown_steps(current, history) == steps


def test_answers_count_to_the_letter(own: Prompts) -> None:
    assert {text: int(action) for text, action in NAMES.items()} == {
        "STOP": 0,
        "MOVE_FORWARD": 1,
        "TURN_LEFT": 2,
        "TURN_RIGHT": 3,
    }

    def said(text: str) -> Action:
        ids = own.tokenizer.encode(text, add_special_tokens=False)
        return NAMES.get(own.text([*ids, END]), Action.STOP)

    assert said("MOVE_FORWARD") is Action.MOVE_FORWARD
    assert [said(text) for text in (" TURN_LEFT", "TURN_LEFT.", "turn_left", "MOVE", "")] == [Action.STOP] * 5
