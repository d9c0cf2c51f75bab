"""Scores of a checkpoint on sets of expert walks and of questions, with its own frames and with others instead."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

from vlnbench.data.sets import CONVERSATIONS, TRAJECTORIES, holds_questions
from vlnbench.errors import GpuMemoryError, UsageError
from vlnbench.evaluation.stats import Estimate, Kind, estimate
from vlnbench.interfaces import Action
from vlnbench.training.family.find import find_family
from vlnbench.training.family.sources import with_weights
from vlnbench.training.family.trains import Answer, Scorer
from vlnbench.training.score.options import ScoreOptions
from vlnbench.training.score.views import scene_of, view_of
from vlnbench.util.durable.files import write_json
from vlnbench.util.gpu_memory import first_line, halved, is_gpu_memory
from vlnbench.util.machine import cores
from vlnbench.util.progress import say

FORMAT = 1
SCORES = ("loss", "accuracy", "changes", "stop")
"""Loss per action in nats; share of actions that are the likeliest answer: of all, of those that differ from the
one before, and of STOP."""


@dataclass(frozen=True)
class Score:
    """Scores of one set with one kind of frames; None where there was nothing to score. actions: how many."""

    actions: int
    loss: Estimate | None
    accuracy: Estimate | None
    changes: Estimate | None
    stop: Estimate | None


def score(options: ScoreOptions) -> dict[str, Any]:
    """Score a checkpoint as the options say; the document that `--out` holds. Intervals are clustered by scene.

    Raises UsageError, before any weight is read, for options and sets that cannot be, and for a family that has no
    scorer.
    """
    options.check()
    spec, source = find_family(options.family, options.checkpoint)
    if source.path is None:
        raise UsageError(f"--checkpoint {options.checkpoint}: without trained weights; nothing to score")
    digests = {}
    for name in options.sets:
        with view_of(options.trajectories / name, "own") as folder:
            file = folder / (CONVERSATIONS if holds_questions(folder) else TRAJECTORIES)
            if file.name not in spec.set_files:
                raise UsageError(f"--sets {name}: {file} holds questions, which {spec.name} does not read")
            digests[name] = hashlib.sha256(file.read_bytes()).hexdigest()
    device = options.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(min(torch.get_num_threads(), cores()))
    checkpoint = with_weights(source).path
    assert checkpoint is not None
    scorer = spec.load_trains().scorer(checkpoint, torch.device(device))
    began, sets, batch = time.monotonic(), {}, options.batch
    for name in options.sets:
        found = {}
        for frames in options.frames:
            with view_of(options.trajectories / name, frames) as folder:
                answers, batch = answered(scorer, folder, batch)
                found[frames] = asdict(summarized(answers))
            say(f"{name}, {frames} frames: {found[frames]['actions']} actions")
        sets[name] = {"sha256": digests[name], "frames": found}
    document = {
        "format": FORMAT,
        "checkpoint": options.checkpoint,
        "family": spec.name,
        "seconds": round(time.monotonic() - began, 3),
        "sets": sets,
    }
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        write_json(options.out, document)
    return document


def answered(scorer: Scorer, folder: Path, batch: int) -> tuple[list[Answer], int]:
    """All answers to a set, and the batch that was small enough for the GPU.

    Raises GpuMemoryError where a single sample does not fit.
    """
    while True:
        try:
            return list(scorer(folder, batch)), batch
        except Exception as error:
            if not is_gpu_memory(error):
                raise
            if batch == 1:
                raise GpuMemoryError(f"out of GPU memory with one sample: {first_line(error)}") from error
        batch = halved(batch, "samples")


def summarized(answers: Sequence[Answer]) -> Score:
    """Means over answers with intervals clustered by scene."""

    def mean(kind: Kind, value: Callable[[Answer], float], counts: Callable[[Answer], bool]) -> Estimate | None:
        chosen = [answer for answer in answers if counts(answer)]
        scenes = [scene_of(answer.trajectory) for answer in chosen]
        return estimate([value(answer) for answer in chosen], scenes, kind)

    def right(answer: Answer) -> float:
        return float(answer.predicted == answer.expected)

    return Score(
        actions=len(answers),
        loss=mean("positive", lambda answer: answer.loss, lambda answer: True),
        accuracy=mean("fraction", right, lambda answer: True),
        changes=mean("fraction", right, lambda answer: answer.expected != answer.before),
        stop=mean("fraction", right, lambda answer: answer.expected == Action.STOP),
    )


def format_scores(document: dict[str, Any]) -> str:
    """Table of a document of scores."""
    rows = []
    for name, found in document["sets"].items():
        for frames, scores in found["frames"].items():
            cells = [_cell(scores[each], 1 if each == "loss" else 100) for each in SCORES]
            rows.append([name, frames, scores["actions"], *cells])
    headers = ["set", "frames", "actions", "loss (nats)", "all (%)", "changes (%)", "STOP (%)"]
    align = ("left", "left", *["right"] * 5)
    return (
        f"{document['checkpoint']} on expert walks, the expert's actions before each known; of questions which\n"
        "way something is, each asked alone, the first action of the answer\n\n"
        f"{tabulate(rows, headers=headers, disable_numparse=True, colalign=align)}\n\n"
        "loss per action; share of the expert's actions that are the likeliest answer: all, those unlike the one "
        "before, STOP;\n95 % intervals clustered by scene"
    )


def _cell(found: dict[str, Any] | None, unit: float) -> str:
    if found is None:
        return "-"
    digits = 3 if unit == 1 else 1
    text = f"{unit * found['mean']:.{digits}f}"
    return (
        text
        if found["low"] is None
        else f"{text} [{unit * found['low']:.{digits}f}, {unit * found['high']:.{digits}f}]"
    )
