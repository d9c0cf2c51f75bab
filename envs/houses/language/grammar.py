"""Clauses and sentences: what an instruction says, in four languages, written and read by one grammar.

`lexicon.json` holds words and sentence templates, `wide.json` those of a voice with many words for one thing. A
voice is one way of talking: the R2R-like ones, the machine speaker of sets to train on, and the RxR-like ones of
four languages.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from envs.houses.plan.catalog import FURNISHINGS
from envs.houses.plan.rooms import KINDS

MAX_TOKENS = 200
MOST_DOORS_COUNTED = 5
RXR_VOICES = ("en-US", "en-IN", "hi-IN", "te-IN")
R2R_VOICES = ("r2r", "speaker")
_SLOT = re.compile(r"\{(\w+)(?::(\w+))?\}")
_JOINED = 0.72
"""Chance that a clause is joined to the one before it."""
_USUAL = 0.4
"""Chance of the usual word where a voice has several."""
_DESCRIPTIONS = frozenset({"here", "now", "see", "done"})
_SIDES = ("left", "right")
_SUFFIX = re.compile("( (ahead|ordinal|side|next))+$")


@dataclass(frozen=True)
class Clause:
    """One step of an instruction, or one thing to see on the way.

    kind: a key of the lexicon's templates, without its slots. side: left, right, or ahead (doors and sights).
    ordinal: which door on that side, 0 if it is not counted. room: the room of the clause; next: the room that it
    leads to; object: "color noun" or "noun". What is not said is empty.
    """

    kind: str
    side: str = ""
    ordinal: int = 0
    room: str = ""
    next: str = ""
    object: str = ""


@dataclass(frozen=True)
class _Template:
    """A sentence with slots. `forms`: slot and form in order of appearance; `pattern` matches it in a text."""

    text: str
    slots: frozenset[str]
    forms: tuple[tuple[str, str], ...]
    pattern: re.Pattern[str]
    kind: str
    side: str


class Voice:
    """Turns clauses into text and text into clauses."""

    def __init__(self, name: str) -> None:
        content = _lexicon()["voices"][name]
        self.name = name
        self._words: Mapping[str, Any] = _lexicon()["words"][content["words"]]
        self._glue: tuple[str, ...] = tuple(content["glue"])
        self._end: str = content["end"]
        self._meanings: dict[tuple[str, str], dict[str, str]] = {}
        ends = "|".join(re.escape(glue) for glue in sorted({*self._glue, self._end}, key=len, reverse=True))
        self._joint = re.compile(f"(?:{ends})")
        self._templates = [
            self._template(key, entry if isinstance(entry, str) else entry[0], ends)
            for key, entries in content["templates"].items()
            for entry in entries
        ]
        # The longest reading of a text is tried first: "leave the kitchen and enter the office" is one clause.
        self._by_length = sorted(self._templates, key=lambda t: (-len(t.text), t.text))

    def say(self, clauses: Sequence[Clause], rng: random.Random) -> str:
        """Sentences of one or two clauses, in the order in which they are to be done."""
        sentences: list[list[str]] = []
        before: Clause | None = None
        for clause in clauses:
            template = rng.choice(self._fitting(clause))
            part = self._filled(template, clause, rng)
            alone = before is not None and len(sentences[-1]) == 1
            glue = self._joints(sentences[-1][0], part, (before, clause)) if before and alone else []
            if glue and rng.random() < _JOINED:
                sentences[-1] += [rng.choice(glue), part]
            else:
                sentences.append([part])
            before = clause
        texts = ["".join(sentence) for sentence in sentences]
        return " ".join(f"{text[0].upper()}{text[1:]}{self._end}" for text in texts)

    def read(self, text: str) -> list[Clause] | None:
        """The clauses of a text; None if some part of it is no sentence of this voice."""
        clauses: list[Clause] = []
        for sentence in filter(None, (part.strip() for part in text.split(self._end))):
            found = self._read_from(f"{sentence[0].lower()}{sentence[1:]}{self._end}", 0)
            if found is None:
                return None
            clauses += found
        return clauses

    def surfaces(self) -> Iterator[str]:
        """Everything of which texts are put together: templates without their slots, joints, and words."""
        yield from self._glue
        yield self._end
        for template in self._templates:
            yield _SLOT.sub(" ", template.text)
        for slot, form in {form for template in self._templates for form in template.forms}:
            yield from self._choices(slot, form)

    def _filled(self, template: _Template, clause: Clause, rng: random.Random) -> str:
        def surface(match: re.Match[str]) -> str:
            words = self._surfaces(match[1], str(getattr(clause, match[1])), match[2] or "")
            return words[0] if len(words) == 1 or rng.random() < _USUAL else rng.choice(words)

        return _SLOT.sub(surface, template.text)

    def _joints(self, said: str, part: str, clauses: tuple[Clause, Clause]) -> list[str]:
        """What can join two clauses to one sentence: "and" only once, "then" only between things to do."""
        described = [clause.kind in _DESCRIPTIONS for clause in clauses]
        if any(described) and not all(described):
            return []
        glue = [g for g in self._glue if "then" not in g] if all(described) else list(self._glue)
        return [g for g in glue if "and" not in g] if " and " in f"{said} {part}" else glue

    def _fitting(self, clause: Clause) -> list[_Template]:
        said = {name for name in ("side", "ordinal", "next", "object") if getattr(clause, name)}
        ahead = clause.side == "ahead"
        wanted = said - {"side"} if ahead else said
        return [
            template
            for template in self._templates
            if template.kind == clause.kind
            and (template.side == "ahead") == ahead
            and template.slots - {"room"} == wanted
            and (clause.room or "room" not in template.slots)
        ]

    def _template(self, key: str, text: str, ends: str) -> _Template:
        forms = tuple((match[1], match[2] or "") for match in _SLOT.finditer(text))
        pattern, position = "", 0
        for match in _SLOT.finditer(text):
            pattern += re.escape(text[position : match.start()]) + r"([^,.।]+?)"
            position = match.end()
        pattern += re.escape(text[position:]) + f"(?={ends})"
        kind = _SUFFIX.sub("", key)
        side = "ahead" if " ahead" in key else ""
        return _Template(text, frozenset(slot for slot, _ in forms), forms, re.compile(pattern), kind, side)

    def _choices(self, slot: str, form: str) -> dict[str, str]:
        """Surface -> meaning of everything that can fill a slot."""
        if (slot, form) not in self._meanings:
            pairs = ((surface, m) for m in _meanings(slot) for surface in self._surfaces(slot, m, form))
            self._meanings[slot, form] = dict(pairs)
        return self._meanings[slot, form]

    def _surfaces(self, slot: str, meaning: str, form: str) -> list[str]:
        """What can be said for a meaning, the usual words first."""
        if slot in ("side", "ordinal"):
            return [_form(self._words[slot].get(meaning, meaning), form)]
        table, names = ("room", KINDS) if slot in ("room", "next") else ("noun", FURNISHINGS)
        color, noun = ("", meaning) if meaning in names else meaning.split(" ", maxsplit=1)
        colors = _several(self._words["color"].get(color, color)) if color else [""]
        entries = _several(self._words[table].get(noun, noun))
        return [self._phrase(word, entry, form) for entry in entries for word in colors]

    def _phrase(self, color: str | Mapping[str, str], entry: str | Mapping[str, str], form: str) -> str:
        phrase = _form(entry, form)
        if color:
            feminine = isinstance(entry, dict) and entry["gender"] == "f"
            word = _form(color, "f" if feminine else form)
            phrase = phrase.replace("*", word) if "*" in phrase else f"{word} {phrase}"
        phrase = phrase.replace("* ", "")
        return f"{'an' if phrase[0] in 'aeiou' else 'a'} {phrase}" if form == "a" else phrase

    def _read_from(self, text: str, position: int) -> list[Clause] | None:
        for template in self._by_length:
            match = template.pattern.match(text, position)
            clause = self._clause(template, match) if match else None
            if match is None or clause is None:
                continue
            joint = self._joint.match(text, match.end())
            assert joint is not None, "the pattern looks ahead for it"
            if joint.end() == len(text):
                return [clause]
            rest = self._read_from(text, joint.end())
            if rest is not None:
                return [clause, *rest]
        return None

    def _clause(self, template: _Template, match: re.Match[str]) -> Clause | None:
        values: dict[str, str] = {"side": template.side}
        for (slot, form), surface in zip(template.forms, match.groups(), strict=True):
            meaning = self._choices(slot, form).get(surface)
            if meaning is None:
                return None
            values[slot] = meaning
        ordinal = int(values.pop("ordinal", "0"))
        return Clause(template.kind, ordinal=ordinal, **values)


@cache
def voice(name: str) -> Voice:
    """The voice of that name: r2r, r2r-wide, speaker, en-US, en-IN, hi-IN or te-IN."""
    return Voice(name)


@cache
def _lexicon() -> Any:
    files = (Path(__file__).with_name(name) for name in ("lexicon.json", "wide.json"))
    first, wide = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    return {section: {**first[section], **wide[section]} for section in ("words", "voices")}


@cache
def _meanings(slot: str) -> tuple[str, ...]:
    if slot == "side":
        return _SIDES
    if slot == "ordinal":
        return tuple(str(n) for n in range(1, MOST_DOORS_COUNTED + 1))
    if slot in ("room", "next"):
        colored = [f"{color} {kind.name}" for kind in KINDS.values() for color in kind.wall_colors]
        return (*KINDS, *colored)
    return (*FURNISHINGS, *(f"{color} {what.noun}" for what in FURNISHINGS.values() for color in what.colors))


def _several(entry: Any) -> list[Any]:
    return entry if isinstance(entry, list) else [entry]


def _form(entry: str | Mapping[str, str], form: str) -> str:
    """The form of a word, the direct one where it has no such form."""
    return entry if isinstance(entry, str) else entry.get(form, entry[""])


def tokenize(text: str) -> list[str]:
    """Lower-case words and punctuation marks of an English text."""
    return re.findall(r"[a-z]+|[.,]", text.lower())


@cache
def vocabulary(voices: tuple[str, ...] = R2R_VOICES) -> tuple[str, ...]:
    """Every word an instruction of some voices can hold: padding, unknown, then sorted.

    It depends on the grammar alone, so that agents trained on one seed read instructions of another.
    """
    words = {word for name in voices for surface in voice(name).surfaces() for word in tokenize(surface)}
    return ("<pad>", "<unk>", *sorted(words))


def encode(text: str, index: Mapping[str, int]) -> list[int]:
    """Word indices, padded with 0 to MAX_TOKENS."""
    tokens = [index[word] for word in tokenize(text)]
    return tokens + [0] * (MAX_TOKENS - len(tokens))
