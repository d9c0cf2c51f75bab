"""A walk that is learned, and the same walk acted out: what the network answers there has to be the same.

Where a network decides, its output layer gives scores of every token or action. `learned` finds that layer by its
gradient and keeps the scores with what the loss pulls them to. `acted` then has the agent walk, compares the
scores that it decides by, and puts the learned answers in their place, so that it stays on the walk.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from vlnbench.data.sets import TRAJECTORIES
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Agent, Episode, Observation
from vlnbench.rollout.agent_options import AgentOptions, CheckpointOptions
from vlnbench.training.options import TrainOptions
from vlnbench.util.loading import import_module

CLOSE = 1e-4
"""By how much scores of one network may differ between a forward pass of training and one of acting."""
SURE = 1e4


def one_walk(folder: Path, new: Path) -> dict[str, Any]:
    """Write a set that has only the longest walk of `folder`, with one instruction; returns its record."""
    records = json.loads((folder / TRAJECTORIES).read_text())
    record = dict(max(records, key=lambda each: len(each["actions"])))
    for name in ("instructions", "tokens"):
        if isinstance(record.get(name), list):
            record[name] = record[name][:1]
    new.mkdir(parents=True)
    for path in folder.iterdir():
        if path.name != TRAJECTORIES:
            (new / path.name).symlink_to(path.absolute())
    (new / TRAJECTORIES).write_text(json.dumps([record]))
    return record


def with_other_inputs(options: TrainOptions, acting: type[AgentOptions]) -> dict[str, Any]:
    """Other values of the family's inputs by name, where it does not say which of all options that an agent has,
    too; options that refuse others are left out."""
    shared = {each.name for each in fields(acting)} - {
        each.name for each in (*fields(TrainOptions), *fields(CheckpointOptions))
    }
    others: dict[str, Any] = {}
    for name in options.INPUTS or sorted(shared & {each.name for each in fields(options)}):
        value = getattr(options, name)
        for new in _others(value):
            try:
                replace(options, **others, **{name: new}).check()
            except UsageError:
                continue
            others[name] = new
            break
    return others


def _others(value: Any) -> tuple[Any, ...]:
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int):
        return (value + 1, value * 2, value // 2)
    return (value * 2,) if isinstance(value, float) else ()


@dataclass
class Learned:
    """What a loss pulls scores to: scores (rows, answers), answers (rows), each row's sample, output weights."""

    scores: Any
    answers: Any
    samples: list[int]
    weight: Any


def learned(trains: Any, model: Any, samples: Any) -> Learned:
    """Of every sample. The model is in evaluation mode, so that nothing is dropped by chance."""
    torch: Any = import_module("torch")
    rows: list[Any] = []
    layer: Any = None
    for number in range(len(samples)):
        batch = trains.collate([samples.sample(number, random.Random(0))])
        with _outputs(model.eval()) as outputs:
            trains.loss(model, batch).backward()
        found = [(module, out) for module, out in outputs if _decides(out)]
        assert found, f"nothing is learned from sample {number}, or not from a layer with scores for every answer"
        layer, out = found[-1]
        gradients = out.grad.flatten(0, -2)
        asked = gradients.abs().sum(dim=-1) > 0
        scores = out.detach().flatten(0, -2)[asked]
        rows += zip(scores, gradients[asked].argmin(dim=-1), [number] * len(scores), strict=True)
        model.zero_grad()
    scores, answers, numbers = zip(*rows, strict=True)
    return Learned(torch.stack(scores), torch.stack(answers), list(numbers), layer.weight.detach().clone())


def acted(agent: Agent, known: Learned, folder: Path, record: dict[str, Any]) -> None:
    """Act the walk out with the agent. Raises AssertionError where it is not as it was learned."""
    (text,), numbers = record["instructions"], next(iter(record.get("tokens") or ()), ())
    episode = Episode("1", "1", "scene.glb", (0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0), text, tuple(numbers))
    wanted = [*map(Action, record["actions"][1:]), Action.STOP]
    seen: set[int] = set()
    with _answering(known, seen):
        agent.reset(0, episode.for_agent(), 7)
        for step, action in enumerate(wanted):
            shown = _observed(folder / record["video"], step, episode.instruction).for_agent(agent.sensors)
            taken = agent.act({0: shown})[0]
            assert taken == action, (
                f"step {step}: what is learned there makes the agent do {Action(taken).name}, where the walk has "
                f"{action.name}: answers of another step are learned, or the agent reads them otherwise"
            )
    agent.close()
    asked = {known.samples[row] for row in seen}
    follows = {row + 1 for row in seen}  # chat templates put a line's end behind that of an answer
    extra = [row for row, number in enumerate(known.samples) if number in asked and row not in seen | follows]
    assert not extra, (
        f"{len(extra)} tokens are learned that the agent is never asked for; is the prompt learned, too?"
    )


def _decides(out: Any) -> bool:
    """Whether a gradient is that of a cross entropy by scores: every row pulls one up and the others down."""
    gradient = out.grad
    if gradient is None or gradient.shape[-1] < 3:
        return False
    rows = gradient.flatten(0, -2)
    rows = rows[rows.abs().sum(dim=-1) > 0]
    balanced = rows.sum(dim=-1).abs() <= 1e-4 * rows.abs().sum(dim=-1)
    return len(rows) > 0 and bool(((rows < 0).sum(dim=-1) == 1).all()) and bool(balanced.all())


@contextmanager
def _outputs(model: Any) -> Iterator[list[tuple[Any, Any]]]:
    """Outputs of the modules with a weight matrix, with their gradients after the backward pass."""
    found: list[tuple[Any, Any]] = []

    def keep(module: Any, _: Any, out: Any) -> None:
        if out.requires_grad and out.ndim > 1:
            out.retain_grad()
            found.append((module, out))

    layers = [
        each for each in model.modules() if getattr(each, "weight", None) is not None and each.weight.ndim == 2
    ]
    handles = [layer.register_forward_hook(keep) for layer in layers]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _answering(known: Learned, seen: set[int]) -> Iterator[None]:
    """The output layer, wherever it is called, answers as was learned; `seen` collects the rows asked for."""
    torch: Any = import_module("torch")

    def answer(module: Any, _: Any, out: Any) -> Any:
        weight = getattr(module, "weight", None)
        if weight is None or weight.shape != known.weight.shape or out.shape[-1:] != known.scores.shape[-1:]:
            return None
        if not torch.equal(weight.to(known.weight), known.weight):
            return None
        rows = out.flatten(0, -2)
        distances = (rows[:, None].to(known.scores) - known.scores).abs().amax(dim=-1)
        nearest = distances.argmin(dim=-1)
        away = float(distances[0, nearest[0]])
        assert away < CLOSE, (
            f"the agent's network is {away:.2g} from every answer that is learned on this walk: training and "
            "acting show it other prompts, frames or options, or labels stand at other places"
        )
        forced = torch.full_like(rows, -SURE)
        for row, (found, distance) in enumerate(
            zip(nearest.tolist(), distances.amin(dim=-1).tolist(), strict=True)
        ):
            if distance < CLOSE:  # others follow a guess that was wrong
                forced[row, known.answers[found]] = SURE
                seen.add(found)
        return forced.view_as(out)

    handle = torch.nn.modules.module.register_module_forward_hook(answer)
    try:
        yield
    finally:
        handle.remove()


def _observed(video: Path, step: int, instruction: str) -> Observation:
    """What a walk's files say was seen at a step; depth in meters."""
    from PIL import Image

    def read(kind: str) -> Any:
        if not (video / kind).is_dir():
            return None
        return np.asarray(Image.open(sorted((video / kind).iterdir())[step]))

    rgb, depth = read("rgb"), read("depth")
    meters = None if depth is None else depth.astype(np.float32) / 1000
    return Observation(instruction=instruction, step=step, rgb=rgb, depth=meters)
