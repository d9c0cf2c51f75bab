"""Where the work of a matrix lies, which commands do it, and when it is done.

The work folder holds `matrix.json` (which matrix this is; written first), `plans.json`, and for every command a
folder with its log, its attempts and what it makes: `prepare/`, `train/<key>/` and `eval/<key>/`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from vlnbench.data.sets import TRAJECTORIES
from vlnbench.errors import UsageError
from vlnbench.evaluation.records import SUMMARY
from vlnbench.matrix.fields import digest
from vlnbench.matrix.references import Reference
from vlnbench.matrix.spec import Matrix, Setting
from vlnbench.matrix.stage import attempts
from vlnbench.util.durable.files import read_object, write_json
from vlnbench.util.durable.folder import Kind, find_manifest, open_folder
from vlnbench.util.durable.limits import regular

MANIFEST, PLANS, RUN, MODEL = "matrix.json", "plans.json", "run", "model"
SCORES = "score.json"
KIND = Kind("matrix", MANIFEST)
FORMAT = 1
PROGRAM: tuple[str, ...] = ("-m", "vlnbench")
"""How Python is told to run the command line."""
EXIT_HANGS, EXIT_GPU_MEMORY = 124, 3


@dataclass(frozen=True)
class Stage:
    """One command: its folder, the command line, and whether what it makes is there."""

    name: str
    folder: Path
    command: tuple[str, ...]
    complete: Callable[[], bool]

    @property
    def failed(self) -> bool:
        """Whether it ended in a failure that will not mend itself."""
        tried = attempts(self.folder)
        return not self.complete() and bool(tried) and tried[-1]["outcome"] in ("failed", "timeout")


def prepare_stages(matrix: Matrix, work: Path) -> list[Stage]:
    """What comes before the first training: generated scenes and trajectory sets, as far as the file names
    them."""
    stages = []
    for name, options in matrix.generated.items():
        folder = work / "prepare" / name
        command = (*_vlnbench("data", name), *arguments(options))
        stages.append(Stage(name, folder, command, partial(_ended_well, folder)))
    for name, options in matrix.collect.items():
        for root in sorted({setting.train.trajectories for setting in matrix.settings}):
            folder, out = work / "prepare" / f"collect-{root.name}-{name}", root / name
            command = (*_vlnbench("collect"), *arguments({"out": out, **options}))
            stages.append(Stage(f"collect {out}", folder, command, (out / TRAJECTORIES).is_file))
    for name, options in matrix.offline.items():
        folder, out = work / "prepare" / f"held-out-{name}", matrix.held_out / name
        command = (*_vlnbench("collect"), *arguments({"out": out, **options}))
        stages.append(Stage(f"collect {out}", folder, command, (out / TRAJECTORIES).is_file))
    return stages


def train_stage(work: Path, setting: Setting, gpus: int = 0) -> Stage:
    """The training of a setting. With several GPUs torch's launcher finds a free port for them to meet."""
    folder = work / "train" / setting.train_key
    launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={gpus}") if gpus > 1 else ()
    command = (sys.executable, *launcher, *PROGRAM, "train", *arguments({**setting.given, "out": folder / RUN}))
    return Stage("train", folder, command, (folder / RUN / MODEL).is_dir)


def eval_stage(work: Path, setting: Setting, split: str) -> Stage:
    """The evaluation of a setting on a split."""
    folder = work / "eval" / setting.eval_key(split)
    model = work / "train" / setting.train_key / RUN / MODEL
    options = {key: value for key, value in setting.evaluate.items() if key != "splits"}
    command = (
        *_vlnbench("eval"),
        *arguments({**options, "split": split, "checkpoint": model, "out": folder / RUN}),
    )
    return Stage(f"eval {split}", folder, command, lambda: read_summary(folder) is not None)


def reference_stage(work: Path, reference: Reference, split: str) -> Stage:
    """The evaluation of a reference on a split."""
    folder = work / "eval" / reference.eval_key(split)
    options = {key: value for key, value in reference.evaluate.items() if key != "splits"}
    command = (*_vlnbench("eval"), *arguments({**options, "split": split, "out": folder / RUN}))
    return Stage(f"eval {split}", folder, command, lambda: read_summary(folder) is not None)


def score_stage(work: Path, matrix: Matrix, of: Setting | Reference) -> Stage | None:
    """The scoring of a setting or of a reference with a checkpoint on held-out walks; None where none is asked."""
    if not matrix.offline:
        return None
    if isinstance(of, Setting):
        checkpoint, identity = work / "train" / of.train_key / RUN / MODEL, of.train_key
    elif "checkpoint" in of.evaluate:
        checkpoint = identity = of.evaluate["checkpoint"]
    else:
        return None
    folder = work / "score" / digest([str(identity), matrix.offline])
    options = {"checkpoint": checkpoint, "trajectories": matrix.held_out, "sets": tuple(matrix.offline)}
    command = (*_vlnbench("score"), *arguments({**options, "out": folder / RUN / SCORES}))
    return Stage("score", folder, command, (folder / RUN / SCORES).is_file)


def stages(work: Path, setting: Setting, gpus: int = 0) -> list[Stage]:
    """Everything that a setting takes, in order."""
    evaluations = [eval_stage(work, setting, split) for split in setting.evaluate["splits"]]
    return [train_stage(work, setting, gpus), *evaluations]


def read_summary(folder: Path) -> dict[str, Any] | None:
    """The summary of a finished evaluation, None before."""
    summary = read_json(folder / RUN / SUMMARY)
    return summary if summary is not None and summary["n_done"] == summary["n_planned"] else None


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object on disk, None where there is none. Raises UsageError for a broken one."""
    try:
        found: dict[str, Any] = json.loads(regular(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{path}: cannot be read as JSON ({error}); delete it and run the matrix again"
        ) from error
    return found


def check_work(matrix: Matrix, work: Path) -> None:
    """Raise UsageError if the folder is another matrix's, or this one's from before its file changed.

    A file may grow: settings that are added, and nothing else, are no change to those that are there.
    """
    found = find_manifest(work, KIND)
    if found is not None:
        _check_same(matrix, work, found)


def _check_same(matrix: Matrix, work: Path, found: Mapping[str, Any]) -> None:
    before = {each["key"]: each["name"] for each in found["settings"]}
    now = {each.key: each.name for each in matrix.settings}
    changes = [f"{name!r} is gone or another" for key, name in before.items() if key not in now]
    if found.get("data_key") != matrix.data_key:
        changes.insert(0, "what is generated or collected")
    if changes:
        what = ", ".join(changes[:3]) + (f" and {len(changes) - 3} more" if len(changes) > 3 else "")
        raise UsageError(
            f"{matrix.path}: changed since {work} was begun ({what}); restore it (settings may be added), or give "
            "the changed matrix a name or --out of its own"
        )


@contextmanager
def open_work(matrix: Matrix, work: Path) -> Iterator[None]:
    """Make the work folder, or find this matrix's, and hold its lock. Raises UsageError as `check_work` does."""
    settings = [{"name": each.name, "key": each.key, "options": asdict(each.train)} for each in matrix.settings]
    content = {"format": FORMAT, "name": matrix.name, "data_key": matrix.data_key, "settings": settings}
    manifest = json.loads(json.dumps(content, default=str))
    with open_folder(work, KIND, manifest, partial(_check_same, matrix, work)):
        if read_object(work / MANIFEST) != manifest:  # settings were added, or their order is another
            write_json(work / MANIFEST, manifest)
        yield


def arguments(options: Mapping[str, Any]) -> list[str]:
    """Options as a command line writes them."""
    result = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            result.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, tuple):
            result += [f"--{flag}", *map(str, value)]
        elif value is not None:
            result.append(f"--{flag}={value}")
    return result


def _vlnbench(*command: str) -> tuple[str, ...]:
    return (sys.executable, *PROGRAM, *command)


def _ended_well(folder: Path) -> bool:
    return any(attempt["outcome"] == "done" for attempt in attempts(folder))


def default_folders(matrix: Matrix) -> tuple[Path, Path]:
    """Where work and results go unless the user says otherwise."""
    return Path("runs", "matrix", matrix.name), Path("results", matrix.name)
