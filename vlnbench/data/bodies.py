"""The episodes of a benchmark with another body: a benchmark of its own, whose name says what differs.

`r2r-ce@512x512-hfov90` is r2r-ce with a camera of 512 x 512 pixels and 90 degrees. Name and fingerprint are its
own, so no table puts its rows beside those of r2r-ce.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

from vlnbench.data.protocol import Benchmark
from vlnbench.errors import UsageError
from vlnbench.interfaces import Conventions, Embodiment

MARK = "@"
_WORDS = {"hfov": "hfov", "camera": "camera_height_m", "forward": "forward_m", "turn": "turn_deg"}
"""Beside WIDTHxHEIGHT: words of a name, and the fields they say."""
_WORD = re.compile(rf"(\d+)x(\d+)|({'|'.join(_WORDS)})(\d+(?:\.\d+)?)")
_EXAMPLE = "512x512-hfov90-camera1.25-forward0.25-turn30"


def fitted(benchmark: Benchmark, expects: Conventions, known: Iterable[Benchmark]) -> Benchmark:
    """The benchmark with the body that an agent expects: itself, one of the `known`, or one of its own name."""
    if not (differing := expects.conflicts(benchmark.body)):
        return benchmark
    base, _, before = benchmark.name.partition(MARK)
    body = _fitted(benchmark.body, expects)
    asked = {
        **_given(read_body(before) if before else Conventions()),
        **{name: wanted for name, (wanted, _) in differing.items()},
    }
    name = f"{base}{MARK}{_written(asked, body)}"
    made = replace(benchmark, name=name, summary=f"the episodes of {base} with another body", body=body)
    return next((each for each in known if replace(each, name=name, summary=made.summary) == made), made)


def episodes_of(name: str) -> str:
    """The benchmark whose episodes one of this name has."""
    return name.partition(MARK)[0]


def read_body(text: str) -> Conventions:
    """What stands behind the mark in a name. Raises UsageError for anything else."""
    found: dict[str, Any] = {}
    for word in text.split("-"):
        if (match := _WORD.fullmatch(word)) is None:
            raise UsageError(f"benchmark ...{MARK}{text}: expected what differs in the body, such as {_EXAMPLE}")
        width, height, kind, number = match.groups()
        found |= {_WORDS[kind]: float(number)} if kind else {"width": int(width), "height": int(height)}
    return Conventions(**found)


def _given(conventions: Conventions) -> dict[str, Any]:
    named = {each.name: getattr(conventions, each.name) for each in fields(conventions)}
    return {name: value for name, value in named.items() if value is not None}


def _written(asked: dict[str, float], body: Embodiment) -> str:
    size = [f"{body.camera.width}x{body.camera.height}"] if {"width", "height"} & asked.keys() else []
    return "-".join([*size, *(f"{word}{asked[name]:.12g}" for word, name in _WORDS.items() if name in asked)])


def _fitted(body: Embodiment, expects: Conventions) -> Embodiment:
    """Both cameras are on the same height; what else a depth camera of its own sees stays."""
    given = _given(expects)
    steps = {name: given.pop(name) for name in ("forward_m", "turn_deg") if name in given}
    height = {"height_m": given.pop("camera_height_m")} if "camera_height_m" in given else {}
    depth = body.depth_camera and replace(body.depth_camera, **height)
    return replace(body, camera=replace(body.camera, **given, **height), depth_camera=depth, **steps)
