"""Run folders: manifest, rows, trajectories and attempts, through every command that reads runs."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from agents.scripted import RandomAgent
from tests.fuzz.judge import Builder
from tests.fuzz.values import change, changed_bytes, hostile
from tests.runs import record, write_dataset
from vlnbench.errors import UsageError
from vlnbench.evaluation.records import ATTEMPTS, MANIFEST, ROWS, TRAJECTORIES
from vlnbench.evaluation.rescore import format_rescored, rescore
from vlnbench.evaluation.status import TRAINING, TRAINING_LOG, format_status, read_status
from vlnbench.evaluation.summary import format_summary, summarize
from vlnbench.leaderboard.board import OwnRun, make_tables
from vlnbench.leaderboard.committed import read_run as read_committed
from vlnbench.leaderboard.compare import compare, format_comparison
from vlnbench.leaderboard.published import Literature, read_published
from vlnbench.leaderboard.ranking import rank, rank_sheet
from vlnbench.leaderboard.sheets import render
from vlnbench.report import page
from vlnbench.report.data import read_run
from vlnbench.report.maps import scene_storeys
from vlnbench.util.tables.sheet import written

ROOT = Path(__file__).parents[3]
LINES = (ROWS, TRAJECTORIES, ATTEMPTS)


@cache
def data() -> Path:
    """A dataset, as long as this process lives."""
    return write_dataset(Path(tempfile.mkdtemp(prefix="fuzz-data-")))


@cache
def honest() -> Mapping[str, bytes]:
    """The files of a run of nine episodes and of a training, by name."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        record(data(), RandomAgent(), run)
        found = {name: (run / name).read_bytes() for name in (MANIFEST, *LINES)}
    logged = [{"step": i, "loss": 1 / i, "windows_per_s": 2.0, "epoch": i / 9} for i in range(1, 4)]
    schedule = {"schedule": {"steps": 9, "windows_per_step": 4}}
    log = "".join(json.dumps(entry) + "\n" for entry in logged).encode()
    return found | {TRAINING: json.dumps(schedule).encode(), TRAINING_LOG: log}


@cache
def literature() -> Literature:
    """A few published rows."""
    found = read_published(ROOT / "results" / "published.json")
    return found.model_copy(update={"rows": found.rows[:5]})


def put(folder: Path, changed: Mapping[str, bytes]) -> None:
    """Write a run, and a training below it; `changed` files in place of the honest ones."""
    training = folder / "training"
    training.mkdir()
    for name, content in {**honest(), **changed}.items():
        ((training if name in (TRAINING, TRAINING_LOG) else folder) / name).write_bytes(content)


def write(folder: Path, random: Random) -> None:
    name = random.choice((MANIFEST, *LINES, ROWS, ROWS, TRAINING, TRAINING_LOG))
    put(folder, {name: mutated(honest()[name], random)})


def mutated(content: bytes, random: Random) -> bytes:
    """Honest lines of JSON with one to three changes in one of them, or in the bytes."""
    if random.random() < 0.1:
        return changed_bytes(content, random)
    lines = content.splitlines() if b"}\n{" in content else [content]
    at = random.randrange(len(lines))
    entry = json.loads(lines[at])
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        if random.random() < 0.1 and entry:  # a field by another name
            entry[random.choice(["", "id", "Status", "\ud800", "scores "])] = entry.pop(random.choice(list(entry)))
        elif random.random() < 0.3 and entry:
            entry[random.choice(list(entry))] = hostile(random)
        elif entry:
            change(entry, random)
    lines[at] = json.dumps(entry).encode()
    return b"\n".join(lines) + b"\n"


def read(folder: Path) -> None:
    """All of them, since what one refuses another might not."""
    refused: list[Exception] = []
    none = folder / "nothing"
    readers: tuple[Callable[[], Any], ...] = (
        lambda: format_status(read_status(folder)),
        lambda: format_status(read_status(folder / "training")),
        lambda: written(rank_sheet(rank([folder])[0]), "text"),
        lambda: format_comparison(compare(folder, folder)),
        lambda: _page(folder, none),
        lambda: _page(folder, data()),
        lambda: _board(folder),
        lambda: format_rescored(rescore(folder, data()), write=False),
    )
    for reader in readers:
        try:
            text = reader()
        except UsageError as error:
            refused.append(error)
        else:
            str(text).encode()  # as printed
    if refused:
        raise refused[0]


def _page(folder: Path, root: Path) -> str:
    found = read_run(folder, root)
    return page.render(found, scene_storeys(found.entries), {}, {})


def _board(folder: Path) -> str:
    run, entry = read_committed(folder)
    summary = summarize(run.rows.values(), list(run.rows), run.identity)
    return format_summary(summary) + "".join(
        render(make_tables(literature(), [OwnRun(run, entry, summary)])).values()
    )


def _line(name: str, **fields: Any) -> Builder:
    """The honest run with fields of the first line of a file changed."""

    def build(folder: Path) -> None:
        first, *others = honest()[name].splitlines()
        changed = json.dumps({**json.loads(first), **fields}).encode()
        put(folder, {name: b"\n".join([changed, *others]) + b"\n"})

    return build


def _manifest(**fields: Any) -> Builder:
    """The honest run with other fields of its manifest."""
    return lambda folder: put(
        folder, {MANIFEST: json.dumps({**json.loads(honest()[MANIFEST]), **fields}).encode()}
    )


def _identity(**fields: Any) -> Builder:
    """The honest run with other fields of its identity."""
    return lambda folder: _manifest(identity={**json.loads(honest()[MANIFEST])["identity"], **fields})(folder)


def _raw(name: str, content: bytes) -> Builder:
    return lambda folder: put(folder, {name: content})


corpus: Mapping[str, tuple[Builder, str]] = {
    "honest": (_raw("notes.txt", b""), ""),
    "a key that is a list": (_line(ROWS, episode_id=["0"]), "episodes.jsonl: line 1: field 'episode_id'"),
    "a status that is none": (_line(ROWS, status="great"), "field 'status': expected one of ok, error"),
    "scores that are a list": (_line(ROWS, scores=[1]), "field 'scores': expected an object"),
    "a score that is text": (_line(ROWS, scores={"success": "1"}), "field 'scores.success'"),
    "a score above all": (
        _line(ROWS, scores={"success": 2.0}),
        "field 'scores.success': expected a number from 0 to 1",
    ),
    "a score below nothing": (
        _line(ROWS, scores={"spl": -0.5}),
        "field 'scores.spl': expected a number from 0 to 1",
    ),
    "a distance below 0": (_line(ROWS, scores={"path_length": -1.0}), "field 'scores.path_length'"),
    "a score that is no number": (_line(ROWS, scores={"spl": float("nan")}), "NaN is no number of JSON"),
    "a kind of failure that is none": (_line(ROWS, scores={"failure": "x"}), "field 'scores.failure'"),
    "a field of its own": (_line(ROWS, extra=1), "field 'extra': unknown field"),
    "half a character": (_line(ROWS, reason="\ud800"), "field 'reason': expected text"),
    "a number of 400 digits": (_line(ROWS, seed=10**400), "field 'seed': expected a whole number"),
    "seconds that are text": (
        _line(ROWS, seconds={"env": "1"}),
        "field 'seconds.env': expected a number of seconds",
    ),
    "seconds without end": (
        _line(ROWS, seconds={"agent 1-10": 1e308}),
        "expected a number of seconds, at most 1e9",
    ),
    "nested too deep": (_raw(ROWS, b"[" * 100_000 + b"\n"), "episodes.jsonl: line 1: broken JSON"),
    "a manifest of half characters": (_manifest(vlnbench="\ud800"), "field 'vlnbench': expected text or null"),
    "packages of half characters": (_manifest(packages={"a": "\ud800"}), "field 'packages.a': expected text"),
    "a hash of 300 characters": (
        _identity(dataset_sha256=300 * "é"),
        "field 'identity.dataset_sha256': the run has",
    ),
    "a manifest nested too deep": (_raw(MANIFEST, b'{"a":' * 100_000), "manifest.json: broken JSON"),
    "poses of two numbers": (_line(TRAJECTORIES, positions=[[0.0, 1.0]]), "trajectories.jsonl: line 1"),
    "a time without a zone": (_line(ATTEMPTS, began="2026-01-01T00:00:00"), "field 'began': expected a time"),
    "hardware that is text": (_line(ATTEMPTS, hardware="fast"), "field 'hardware': expected an object"),
    "no speed": (_line(TRAINING_LOG, windows_per_s=0), "field 'windows_per_s': expected a finite number above 0"),
}
