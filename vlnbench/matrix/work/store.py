"""Trainings and evaluations that several matrices share: links to finished work, found by what it is.

`<store>/<hash>/` holds `identity.json`, all that can change the result, and `work`, a link to the folder in which
a matrix has done it. A matrix whose work has the same identity links to it instead of doing it again, after what
was recorded there has been compared once more.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vlnbench.data.benchmarks import get_benchmark
from vlnbench.data.episodes import load_split
from vlnbench.data.trajectory_sets import set_file
from vlnbench.errors import UsageError
from vlnbench.matrix.fields import digest, hashed
from vlnbench.matrix.references import EXECUTION
from vlnbench.matrix.spec import Setting
from vlnbench.matrix.work.folder import RUN, read_json
from vlnbench.matrix.work.stages import Stage
from vlnbench.matrix.work.watcher import attempts
from vlnbench.training.family.find import find_family
from vlnbench.training.family.sources import find_source, with_weights
from vlnbench.training.options import parse_set
from vlnbench.util.durable.files import write_json
from vlnbench.util.durable.locks import LOCK
from vlnbench.version import __version__

IDENTITY, LINK = "identity.json", "work"
ELSEWHERE = ("trajectories", "workers", "log_every", "save_every", "tracker", "feature_cache", "feature_cache_gb")
"""Options of a training that change no weight; what lies below `trajectories` is told by its hash."""

Identity = Mapping[str, Any]


def training_identity(setting: Setting, gpus: int) -> dict[str, Any]:
    """All that can change what a training makes. gpus: it has, 0 on the CPU. Loads torch, and reads files."""
    options = setting.train
    source = with_weights(setting.source or find_source(options.checkpoint, [setting.family]))
    started = f"preset {source.name}"
    if source.path is not None:
        started = setting.family.load_checkpoints().content_hash(source.path, options)
    sets = [[name, weight, _set_hash(setting, name)] for name, weight in options.mixture.items()]
    counted = [[name, weight, _set_hash(setting, name)] for name, weight in map(parse_set, options.steps_of)]
    chosen = {name: value for name, value in hashed(options, setting.family).items() if name not in ELSEWHERE}
    return {
        "vlnbench": __version__,
        "options": _plain({**chosen, "checkpoint": started, "out": None}),
        "started_from": started,
        "sets": sets,
        "steps_of": counted,
        "vocabulary_of": [[name, _set_hash(setting, name)] for name in options.vocabulary_of],
        "device": f"{gpus} GPUs" if gpus else "CPU",
    }


def evaluation_identity(of: Identity | None, options: Mapping[str, Any], split: str) -> dict[str, Any]:
    """All that can change the rows of an evaluation. of: the training that is evaluated, None for references."""
    benchmark = get_benchmark(options["benchmark"])
    data = load_split(
        benchmark,
        split,
        options.get("data_root", Path("data")),
        allow_partial=options.get("allow_partial", False),
    )
    left_out = (*EXECUTION, "splits", "data_root")
    chosen = {name: value for name, value in options.items() if name not in left_out}
    checkpoint = options.get("checkpoint")
    if checkpoint is not None:
        spec, source = find_family("", str(checkpoint))
        path = with_weights(source).path
        trained = spec.check_training()(checkpoint=str(checkpoint), out=Path())
        chosen["checkpoint"] = path and spec.load_checkpoints().content_hash(path, trained)
    return {
        "vlnbench": __version__,
        "of": of,
        "options": _plain(chosen),
        "fingerprint": benchmark.fingerprint,
        "split": split,
        "dataset_sha256": data.sha256,
    }


def adopt(store: Path, stage: Stage, identity: Identity) -> bool:
    """Link the stage's folder to finished work of this identity; False where there is none, or work has begun.

    Raises UsageError if what lies in the store is not what it says.
    """
    entry = store / digest(identity)
    known = read_json(entry / IDENTITY)
    if known is None or attempts(stage.folder):
        return False
    if known != _plain(identity):
        raise UsageError(f"{entry / IDENTITY}: is of other work than its name says; delete {entry}")
    work = (entry / LINK).resolve()
    if not _finished(work, identity):
        return False  # it has been deleted or is being done again; this work takes its place when it is done
    if stage.folder.is_symlink():
        stage.folder.unlink()  # led to work that is no longer there
    elif stage.folder.is_dir():
        (stage.folder / LOCK).unlink(missing_ok=True)
        stage.folder.rmdir()
    stage.folder.parent.mkdir(parents=True, exist_ok=True)
    stage.folder.symlink_to(work, target_is_directory=True)
    return True


def publish(store: Path, stage: Stage, identity: Identity) -> None:
    """Let others find a finished stage, unless they find one of this identity already."""
    entry = store / digest(identity)
    if stage.folder.is_symlink() or _finished((entry / LINK).resolve(), identity):
        return
    entry.mkdir(parents=True, exist_ok=True)
    write_json(entry / IDENTITY, _plain(identity))
    part = entry / f".{LINK}.part"
    part.unlink(missing_ok=True)
    part.symlink_to(stage.folder.absolute(), target_is_directory=True)
    part.replace(entry / LINK)


def _finished(work: Path, identity: Identity) -> bool:
    """Whether a folder holds finished work whose own records agree with the identity.

    Raises UsageError where they do not: somebody has done other work in that folder since.
    """
    run = work / RUN
    if "sets" in identity:
        recorded, name = read_json(run / "train.json"), "train.json"
        if recorded is None or not (run / "model").is_dir():
            return False
        text = json.dumps(identity["sets"])
        wanted = {
            "started_from": identity["started_from"],
            "data_sha256": hashlib.sha256(text.encode()).hexdigest()[:16],
        }
    else:
        recorded, name = (read_json(run / "summary.json") or {}).get("identity"), "summary.json"
        if recorded is None:
            return False
        wanted = {name: identity[name] for name in ("fingerprint", "split", "dataset_sha256")}
    for field, value in wanted.items():
        if recorded.get(field) != value:
            raise UsageError(
                f"{run / name}: {field} {recorded.get(field)}: expected {value} for work that is shared; leave "
                "out --store, or delete the folder"
            )
    return True


def _set_hash(setting: Setting, name: str) -> str:
    """Hash of the file that says what a set holds. Raises UsageError where there is none."""
    folder = setting.train.trajectories / name
    if (file := set_file(folder, setting.family.set_files)) is not None:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    raise UsageError(f"{folder}: holds no {setting.family.set_files[0]}; collect the set")


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str, sort_keys=True))
