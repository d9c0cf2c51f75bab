from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.common.sets.conversations import SYMBOLS
from agents.streamvln.agent import PHRASES, Prompts
from agents.streamvln.network import load_tokenizer
from tests.agents.recorded import recorded, traces
from tests.agents.streamvln.recordings import RUNS
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action


def test_phrases_are_the_recorded_ones(goldens: Path) -> None:
    assert list(PHRASES) == traces(goldens)["meta"]["phrases"]


@pytest.mark.parametrize("run", RUNS)
def test_every_recorded_prompt_token_for_token(goldens: Path, prompts: Prompts, run: str) -> None:
    for episode in recorded(goldens, run):
        answer: list[int] = []
        for turn in episode.steps:
            if turn["opens_window"]:
                memory = turn["step"] != 0
                ids = prompts.opening(episode.task.instruction, turn["phrase"], memory=memory)
            else:
                ids = prompts.following(answer, turn["phrase"])
            assert ids == turn["input_ids"]
            answer = turn.get("output_ids", [])


@pytest.mark.parametrize("run", RUNS)
def test_every_recorded_answer_is_read_as_it_was(goldens: Path, prompts: Prompts, run: str) -> None:
    turns = [turn for episode in recorded(goldens, run) for turn in episode.steps if "output_ids" in turn]
    assert turns
    for turn in turns:
        assert prompts.actions(turn["output_ids"]) == (turn["parsed_actions"] or [Action.STOP])


class Letters:
    """A tokenizer with one token per character."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, ids: list[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
        return "".join(map(chr, ids))

    def __len__(self) -> int:
        return 0x110000


class Symbols(Letters):
    """A tokenizer with one token per character or STOP."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [0 if part == "STOP" else ord(part) for part in re.findall("STOP|.", text, re.DOTALL)]

    def decode(self, ids: list[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
        return "".join(chr(id_) if id_ else "STOP" for id_ in ids)


def read(text: str) -> list[Action]:
    return Prompts(Letters()).actions([ord(letter) for letter in text])


@given(st.text())
def test_any_text_is_read_as_at_least_one_action(text: str) -> None:
    found = sum(text.count(symbol) for symbol in SYMBOLS)
    assert len(read(text)) == max(found, 1)
    if not found:
        assert read(text) == [Action.STOP]


@given(st.lists(st.sampled_from(list(SYMBOLS)), min_size=1), st.text("abc <|>_\n0"))
def test_symbols_are_read_in_order_whatever_stands_between(symbols: list[str], between: str) -> None:
    assert read(between.join(symbols)) == [SYMBOLS[symbol] for symbol in symbols]


def test_placeholders_in_an_instruction_are_text(prompts: Prompts) -> None:
    ids = prompts.opening("Go to the <image> and the <memory>.", PHRASES[0], memory=False)
    assert [id_ for id_ in ids if id_ < 0] == [-200]


def test_a_tokenizer_of_vocabulary_and_merges_is_the_same(goldens: Path, prompts: Prompts, tmp_path: Path) -> None:
    for name in ("config.json", "vocab.json", "merges.txt", "tokenizer_config.json"):
        shutil.copy(goldens / "checkpoint" / name, tmp_path)
    slim = Prompts(load_tokenizer(tmp_path))
    text = "Turn left; it's 10 meters.  Stop! "
    assert slim.opening(text, PHRASES[3], memory=True) == prompts.opening(text, PHRASES[3], memory=True)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "vocab.json", "merges.txt"])
def test_a_missing_file_is_named(goldens: Path, tmp_path: Path, name: str) -> None:
    for other in {"vocab.json", "merges.txt", "tokenizer_config.json"} - {name}:
        shutil.copy(goldens / "checkpoint" / other, tmp_path)
    with pytest.raises(UsageError, match=f"no tokenizer (files|\\({name} is missing\\)).* --tokenizer"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "cannot be read as JSON"), ("{}", "tokenizer cannot be read"), ("[1]", "expected a JSON object")],
)
def test_a_broken_tokenizer_is_one_line(goldens: Path, tmp_path: Path, content: str, message: str) -> None:
    shutil.copy(goldens / "checkpoint" / "tokenizer_config.json", tmp_path)
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(UsageError, match=message) as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


def test_another_models_tokenizer_is_refused(goldens: Path, tmp_path: Path) -> None:
    shutil.copy(goldens / "checkpoint" / "tokenizer_config.json", tmp_path)
    content = json.loads((goldens / "checkpoint" / "tokenizer.json").read_text())
    content["model"]["merges"] = content["model"]["merges"][:20]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match=r"has no token '(STOP|↑)'"):
        load_tokenizer(tmp_path)


def test_an_answer_with_other_actions_keeps_the_words_around_them() -> None:
    prompts, (forward, left, stop) = Prompts(Symbols()), (Action.MOVE_FORWARD, Action.TURN_LEFT, Action.STOP)
    said = [*map(ord, "so: ↑↑"), 0, ord(".")]
    assert prompts.reworded(said, [left]) == [*map(ord, "so: ←.")]
    assert prompts.reworded(said, [forward, left, forward, stop]) == [*map(ord, "so: ↑←↑"), 0, ord(".")]
    assert prompts.reworded([*map(ord, "well.")], [left, left]) == [*map(ord, "well←←.")]
    with pytest.raises(UsageError, match="does not write every action as one token"):
        Prompts(Letters()).reworded(said, [left])
