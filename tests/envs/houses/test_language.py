"""Every voice reads what it says, and its words are listed and written properly."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.houses.language.grammar import (
    MAX_TOKENS,
    R2R_VOICES,
    RXR_VOICES,
    Clause,
    _lexicon,
    _meanings,
    encode,
    tokenize,
    vocabulary,
    voice,
)
from envs.houses.plan.catalog import FURNISHINGS
from envs.houses.plan.rooms import KINDS

SIDES = st.sampled_from(["left", "right"])
ROOMS = st.sampled_from([*KINDS, *(f"{c} {k.name}" for k in KINDS.values() for c in k.wall_colors)])
OBJECTS = st.sampled_from([*FURNISHINGS, *(f"{c} {f.noun}" for f in FURNISHINGS.values() for c in f.colors)])
SCRIPTS = {"hi-IN": r"[\u0900-\u097f]+", "te-IN": r"[\u0c00-\u0c7f]+"}


def rxr_clause() -> st.SearchStrategy[Clause]:
    return st.one_of(
        st.builds(Clause, st.sampled_from(["here", "now", "cross", "along"]), room=ROOMS),
        st.builds(Clause, st.sampled_from(["turn", "slight"]), side=SIDES),
        st.builds(Clause, st.sampled_from(["around", "straight", "short", "long", "up", "down", "done"])),
        st.builds(Clause, st.just("see"), side=st.sampled_from(["left", "right", "ahead"]), object=OBJECTS),
        st.builds(Clause, st.sampled_from(["pass", "turn at"]), side=SIDES, object=OBJECTS),
        st.builds(
            Clause, st.just("exit"), side=st.sampled_from(["", "left", "right", "ahead"]), room=ROOMS, next=ROOMS
        ),
        st.builds(Clause, st.just("exit"), side=SIDES, ordinal=st.integers(1, 5), room=ROOMS, next=ROOMS),
        st.builds(Clause, st.sampled_from(["stop next to", "stop in front of", "toward"]), object=OBJECTS),
        st.builds(Clause, st.sampled_from(["stop door", "stop middle"]), room=ROOMS),
    )


def gist(clauses: Sequence[Clause] | None) -> list[Any]:
    assert clauses is not None
    return [(c.kind, c.side, c.ordinal, c.next, c.object) for c in clauses]


@pytest.mark.parametrize("name", RXR_VOICES)
@settings(deadline=None, max_examples=60)
@given(clauses=st.lists(rxr_clause(), min_size=1, max_size=8), seed=st.integers(0, 1000))
def test_what_is_said_is_read_back(name: str, clauses: list[Clause], seed: int) -> None:
    read = voice(name).read(voice(name).say(clauses, random.Random(seed)))
    assert gist(read) == gist(clauses)
    assert read is not None
    assert all(r.room in ("", c.room) for r, c in zip(read, clauses, strict=True))


@pytest.mark.parametrize("name", [*R2R_VOICES, "r2r-wide"])
def test_every_r2r_template_reads_as_what_it_is(name: str) -> None:
    speaker = voice(name)
    full = Clause("", side="left", ordinal=2, room="green bedroom", next="kitchen", object="red ball")
    for template in speaker._templates:
        kept = {slot: getattr(full, slot) for slot in template.slots}
        clause = Clause(template.kind, **{"side": template.side, **kept})
        assert speaker.read(f"{speaker._filled(template, clause, random.Random(0))}.") == [clause], template.text


@given(st.text(max_size=60))
def test_other_text_is_not_read(text: str) -> None:
    read = voice("r2r").read(f"Sing {text}")
    assert read is None


@pytest.mark.parametrize("name", ["hi-IN", "te-IN"])
def test_words_of_other_languages_are_listed_in_their_script(name: str) -> None:
    words = _lexicon()["words"][name]
    assert set(words["noun"]) == set(FURNISHINGS)
    assert set(words["room"]) == set(KINDS)
    colors = {c for f in FURNISHINGS.values() for c in f.colors} | {
        c for k in KINDS.values() for c in k.wall_colors
    }
    assert set(words["color"]) == colors
    for surface in voice(name).surfaces():
        for word in re.findall(r"[^\s।.,]+", surface):
            assert re.fullmatch(SCRIPTS[name], word), (surface, word)


@pytest.mark.parametrize("name", ["hi-IN", "te-IN"])
def test_templates_of_other_languages_have_glosses_with_the_same_slots(name: str) -> None:
    for entries in _lexicon()["voices"][name]["templates"].values():
        for text, gloss in entries:
            assert gloss.isascii()
            assert set(re.findall(r"\{(\w+)", text)) == set(re.findall(r"\{(\w+)", gloss)), text


def test_different_things_have_different_names() -> None:
    """Else a text could not be read back."""
    for name in (*R2R_VOICES, "r2r-wide", *RXR_VOICES):
        for slot in ("object", "next"):
            choices = voice(name)._choices(slot, "")
            assert len(choices) == sum(len(voice(name)._surfaces(slot, m, "")) for m in _meanings(slot))


def test_hindi_agrees_in_gender_and_case() -> None:
    hindi = voice("hi-IN")
    assert hindi._surfaces("object", "black clock", "") == ["काली घड़ी"]
    assert hindi._surfaces("object", "black plant", "") == ["काला पौधा"]
    assert hindi._surfaces("object", "black plant", "o") == ["काले पौधे"]
    assert hindi._surfaces("object", "brown bookshelf", "o") == ["किताबों की भूरी अलमारी"]
    assert hindi._surfaces("object", "bookshelf", "o") == ["किताबों की अलमारी"]
    assert hindi._surfaces("next", "green bedroom", "o") == ["हरे शयनकक्ष"]
    assert hindi._surfaces("next", "playroom", "o") == ["खेल के कमरे"]


def test_articles() -> None:
    assert voice("en-US")._surfaces("object", "orange ball", "a") == ["an orange ball"]
    assert voice("en-US")._surfaces("object", "red ball", "a") == ["a red ball"]


def test_tokens_are_the_words_and_padding() -> None:
    index = {word: i for i, word in enumerate(vocabulary())}
    text = "Turn left and enter the kitchen, then stop near the red ball."
    tokens = encode(text, index)
    assert len(tokens) == MAX_TOKENS == 200
    said = tokenize(text)
    assert [vocabulary()[token] for token in tokens[: len(said)]] == said
    assert set(tokens[len(said) :]) == {0}


def test_vocabulary_is_sorted_after_padding_and_unknown() -> None:
    words = vocabulary()
    assert words[:2] == ("<pad>", "<unk>")
    assert list(words[2:]) == sorted(set(words[2:]))
    with pytest.raises(KeyError):
        encode("Turn sideways.", {word: i for i, word in enumerate(words)})
