"""The pieces of the evidence in order of their worth: what each asks, needs and takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from agents.streamvln.options import LANGUAGE_MODEL, PROJECTOR, VISION_TOWER, StreamVLNPlanning
from vlnbench.util.durable.files import write_json

DEEPSPEED = "deepspeed"
SIMULATOR = ("habitat", "numba")
PYTEST = ("pytest",)
RECORDED = ("streamvln-tiny", "streamvln", "janusvln", "navila", "uninavid", "vlnce")

MINUTES = 20
"""What `vlnbench doctor --gpu-evidence` takes at most."""
FIRST = (
    "parity",
    *(f"training/{name}" for name in ("projector", "projector-no-checkpointing", "projector-offloaded")),
    *(f"training/{name}" for name in ("adapters", "tower", "tower-zero-3", "tower-adapters", "all-adafactor")),
    "episodes",
    "turns/sdpa",
    "turns/graphs",
)
"""What it asks at first, in this order."""

CARD = "1x141GB"
"""What the planned figures of the page are for; settings that do not fit the card at hand are left out there."""

_TOWER = (VISION_TOWER, PROJECTOR)
_LANGUAGE = (PROJECTOR, LANGUAGE_MODEL)

SETTINGS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "projector": {"tunable_parts": (PROJECTOR,)},
        "projector-batch-4": {"tunable_parts": (PROJECTOR,), "batch": 4, "accumulation": 1, "zero": 1},
        "projector-no-checkpointing": {
            "tunable_parts": (PROJECTOR,),
            "batch": 1,
            "gradient_checkpointing": False,
        },
        "projector-offloaded": {
            "tunable_parts": (PROJECTOR,),
            "zero": 3,
            "offload_optimizer": True,
            "offload_parameters": True,
        },
        "adapters": {"tunable_parts": (PROJECTOR,), "lora_rank": 64},
        "adapters-no-checkpointing": {
            "tunable_parts": (PROJECTOR,),
            "lora_rank": 64,
            "batch": 1,
            "gradient_checkpointing": False,
        },
        "tower": {"tunable_parts": _TOWER},
        "tower-batch-4": {"tunable_parts": _TOWER, "batch": 4, "accumulation": 1, "zero": 1},
        "tower-offloaded": {"tunable_parts": _TOWER, "offload_optimizer": True},
        "tower-zero-3": {"tunable_parts": _TOWER, "zero": 3},
        "tower-adapters": {"tunable_parts": _TOWER, "lora_rank": 64, "batch": 1, "accumulation": 4},
        "language-adafactor": {"tunable_parts": _LANGUAGE, "zero": 0, "optimizer": "adafactor"},
        "all-adafactor": {"zero": 0, "optimizer": "adafactor"},
        "tower-8bit": {"tunable_parts": _TOWER, "optimizer": "adamw8bit"},
        "all-8bit": {"optimizer": "adamw8bit", "batch": 1},
    }
)
"""Name and options: parts, batch, checkpointing, ZeRO, offloading, optimizer and adapters are varied."""


GB: Mapping[str, float] = MappingProxyType(
    {
        "projector": 22.6,
        "projector-batch-4": 27.0,
        "projector-no-checkpointing": 35.1,
        "projector-offloaded": 9.8,
        "adapters": 26.5,
        "adapters-no-checkpointing": 51.3,
        "tower": 29.5,
        "tower-batch-4": 35.1,
        "tower-offloaded": 24.2,
        "tower-zero-3": 31.0,
        "tower-adapters": 31.2,
        "language-adafactor": 98.8,
        "all-adafactor": 102.9,
        "tower-8bit": 27.3,
        "all-8bit": 146.7,
    }
)
"""Planned peak of every setting, 1e9 bytes."""


class CannotRunError(Exception):
    """This machine lacks what a case needs; the message says what."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is asked in one process. minutes: roughly, on a GPU of 2024. gb: GPU memory (1e9 bytes) that it takes.

    needs: modules that must be importable.
    """

    name: str
    minutes: float
    gb: float
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """Cases of one kind. module: import path of the module whose `run` answers a case."""

    name: str
    summary: str
    module: str
    cases: tuple[Case, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """One case under way. toy: tiny shapes on the CPU. out: where what was found is written."""

    case: str
    toy: bool
    out: Path

    @property
    def device(self) -> str:
        """Where to compute."""
        return "cpu" if self.toy else "cuda:0"

    def save(self, found: Mapping[str, Any], status: str = "cut off") -> None:
        """Keep what is found so far: it counts, whatever becomes of this process."""
        write_json(self.out, {"status": status, "found": found})


def _needs(setting: str) -> tuple[str, ...]:
    return (DEEPSPEED, "bitsandbytes") if SETTINGS[setting].get("optimizer") == "adamw8bit" else (DEEPSPEED,)


def _here(module: str) -> str:
    return f"benchmarks.gpu_evidence.{module}"


PIECES: tuple[Piece, ...] = (
    Piece("tests", "the tests marked gpu", _here("suite"), (Case("all", 3, 25),)),
    Piece(
        "parity",
        "recordings of the original programs, and the shipped model's CPU answers, in float32 and bfloat16; "
        "actions of every family's small agent on GPU and CPU",
        _here("parity"),
        (*(Case(name, 0.5, 2, PYTEST) for name in RECORDED), Case("agents", 1, 2, PYTEST)),
    ),
    Piece(
        "training",
        "planned and measured memory of training steps of the 8 B size with random weights",
        _here("training"),
        tuple(Case(name, 0.6, GB[name], _needs(name)) for name in SETTINGS),
    ),
    Piece(
        "turns",
        "time, tokens and memory of StreamVLN's turns at the 8 B size, for 1 to 16 episodes at once",
        _here("turns"),
        (
            Case("sdpa", 4, 35),
            Case("eager", 2.5, 45),
            Case("flash_attention_2", 3, 35, ("flash_attn",)),
            Case("compile", 5, 35, ("triton",)),
            Case("graphs", 2, 40),
        ),
    ),
    Piece(
        "episodes",
        "episodes an hour with embedded simulators beside the 8 B size, against one episode at a time",
        _here("episodes"),
        (Case("houses", 4, 35, SIMULATOR),),
    ),
    Piece(
        "small",
        "the small model trained on the GPU and on the CPU: loss curves and windows a second",
        _here("small"),
        (Case("streamvln-tiny", 4, 3, (DEEPSPEED, *SIMULATOR)),),
    ),
)


def request(name: str, **changes: Any) -> StreamVLNPlanning:
    """The options of a setting."""
    return StreamVLNPlanning(**{"gpus": CARD, **SETTINGS[name], **changes})


def find(name: str) -> list[tuple[Piece, Case]]:
    """Cases by PIECE or PIECE/CASE."""
    wanted, _, only = name.partition("/")
    return [
        (piece, case)
        for piece in PIECES
        for case in piece.cases
        if piece.name == wanted and only in ("", case.name)
    ]


def first() -> list[tuple[Piece, Case]]:
    """The cases of `FIRST`."""
    return [each for name in FIRST for each in find(name)]


def every() -> list[tuple[Piece, Case]]:
    """All cases in order."""
    return [(piece, case) for piece in PIECES for case in piece.cases]
