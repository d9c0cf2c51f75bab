"""The commands that a matrix is made of: which they are, in which folders, and when each is done."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from vlnbench.data.sets import TRAJECTORIES
from vlnbench.matrix.execution import Execution
from vlnbench.matrix.fields import digest
from vlnbench.matrix.references import Reference
from vlnbench.matrix.spec import Matrix, Setting
from vlnbench.matrix.work.folder import MODEL, RUN, SCORES, read_summary
from vlnbench.matrix.work.watcher import attempts

PORTS = range(20_000, 32_000)
"""Where the machines of a training meet; below the ports that systems give away by themselves."""

PROGRAM: tuple[str, ...] = ("-m", "vlnbench")
"""How Python is told to run the command line."""


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


@dataclass(frozen=True)
class Stages:
    """The commands of a setting or a reference: its training, which a reference has not, an evaluation of every
    split, and its scoring on held-out walks, where that is asked for."""

    of: Setting | Reference
    train: Stage | None
    evaluations: Mapping[str, Stage]
    score: Stage | None

    def __iter__(self) -> Iterator[Stage]:
        """What its row waits for, in order: the training and the evaluations."""
        yield from self.by_name.values()

    @property
    def by_name(self) -> dict[str, Stage]:
        """The same: the training as train, the evaluations by their splits."""
        return ({} if self.train is None else {"train": self.train}) | dict(self.evaluations)


def stages_of(matrix: Matrix, work: Path, of: Setting | Reference, gpus: int = 0) -> Stages:
    """The commands of a setting or a reference. gpus: how many a training has; with several, torch's launcher
    finds a free port for them to meet."""
    model = None
    train = None
    if isinstance(of, Setting):
        folder = work / "train" / of.train_key
        given = arguments({**of.given, "out": folder / RUN})
        command = (*_launched(matrix.execution, of.train_key, gpus), *PROGRAM, "train", *given)
        model = folder / RUN / MODEL
        train = Stage("train", folder, command, model.is_dir)
    checkpoint = {} if model is None else {"checkpoint": model}
    return Stages(
        of,
        train,
        {split: _evaluation(work, of, split, checkpoint) for split in of.evaluate["splits"]},
        _scoring(matrix, work, of, model),
    )


def _launched(execution: Execution, key: str, gpus: int) -> tuple[str, ...]:
    """How Python is started for a training: alone, once for every GPU, or so on every machine.

    Where several machines meet at this one, the port is by the training, so that two at a time do not share one.
    """
    launcher = (sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={max(1, gpus)}")
    if execution.machines == 1:
        return (*launcher, "--standalone") if gpus > 1 else (sys.executable,)
    count, each = execution.machines, execution.gpus_per_setting
    srun = ("srun", f"--nodes={count}", f"--ntasks={count}", f"--gpus-per-node={each}", "--kill-on-bad-exit=1")
    place = execution.rendezvous or f"{socket.gethostname()}:{PORTS[0] + int(key, 16) % len(PORTS)}"
    meeting = (f"--nnodes={count}", "--rdzv-backend=c10d", f"--rdzv-id={key}", f"--rdzv-endpoint={place}")
    return (*(execution.launch or srun), *launcher, *meeting)


def _evaluation(work: Path, of: Setting | Reference, split: str, checkpoint: Mapping[str, Path]) -> Stage:
    folder = work / "eval" / of.eval_key(split)
    options = {key: value for key, value in of.evaluate.items() if key != "splits"}
    asked = {**options, "split": split, **checkpoint, "out": folder / RUN}
    command = (*_vlnbench("eval"), *arguments(asked))
    return Stage(f"eval {split}", folder, command, lambda: read_summary(folder) is not None)


def _scoring(matrix: Matrix, work: Path, of: Setting | Reference, model: Path | None) -> Stage | None:
    """None where none is asked for, or there is no checkpoint."""
    checkpoint = model or of.evaluate.get("checkpoint")
    if not matrix.offline or checkpoint is None:
        return None
    identity = of.train_key if isinstance(of, Setting) else checkpoint
    folder = work / "score" / digest([str(identity), matrix.offline])
    options = {"checkpoint": checkpoint, "trajectories": matrix.held_out, "sets": tuple(matrix.offline)}
    command = (*_vlnbench("score"), *arguments({**options, "out": folder / RUN / SCORES}))
    return Stage("score", folder, command, (folder / RUN / SCORES).is_file)


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
