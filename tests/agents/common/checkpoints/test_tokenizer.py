from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen2TokenizerFast

from agents.common.checkpoints import tokenizer
from agents.common.checkpoints.tokenizer import Tokenizer
from vlnbench.training.family.sources import shipped

FOLDER = shipped()["streamvln-tiny"]


@pytest.fixture(scope="module")
def ours() -> Tokenizer:
    found = tokenizer._plain(FOLDER)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def theirs() -> Tokenizer:
    return Qwen2TokenizerFast.from_pretrained(FOLDER, local_files_only=True)


WORDS = st.sampled_from(
    ["<|im_start|>", "STOP", "↑", " you can see ", "e\u0301", "\n", "don't", "  ", "王", "👍🏽"]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(WORDS, st.text(max_size=12)), max_size=8).map("".join))
def test_ids_and_texts_are_those_of_transformers(ours: Tokenizer, theirs: Tokenizer, text: str) -> None:
    ids = ours.encode(text, add_special_tokens=False)
    assert ids == theirs.encode(text, add_special_tokens=False)
    for skip in (True, False):
        options = {"skip_special_tokens": skip, "clean_up_tokenization_spaces": False}
        assert ours.decode(ids, **options) == theirs.decode(ids, **options)
    assert len(ours) == len(theirs)


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("tokenizer_config.json", {"eos_token": "<|other|>"}),
        ("tokenizer_config.json", {"additional_special_tokens": ["<|new|>"]}),
        ("tokenizer_config.json", {"add_prefix_space": True}),
        ("tokenizer_config.json", {"bos_token": "STOP"}),
        ("tokenizer.json", {"pre_tokenizer": {"type": "Whitespace"}}),
        ("tokenizer.json", {"decoder": None}),
        ("special_tokens_map.json", {}),
        ("added_tokens.json", {}),
    ],
)
def test_a_folder_that_says_more_is_left_to_transformers(
    tmp_path: Path, file: str, change: dict[str, object]
) -> None:
    folder = tmp_path / "copied"
    shutil.copytree(FOLDER, folder)
    path = folder / file
    before = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(before | change))
    assert tokenizer._plain(folder) is None


@pytest.mark.parametrize("more", ["", "special_tokens_map.json"])  # with which transformers read it
def test_byte_order_marks_change_nothing(tmp_path: Path, ours: Tokenizer, more: str) -> None:
    shutil.copytree(FOLDER, tmp_path / "copy")
    if more:
        (tmp_path / "copy" / more).write_text("{}")
    for path in (tmp_path / "copy").glob("*token*.json"):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    read = tokenizer.load_tokenizer(tmp_path / "copy", ("<|im_start|>",), "")
    ids = ours.encode("<|im_start|>you can see", add_special_tokens=False)
    assert read.encode("<|im_start|>you can see", add_special_tokens=False) == ids
