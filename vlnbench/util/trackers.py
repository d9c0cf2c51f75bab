"""Experiment trackers that follow a run: off by default, and unable to disturb it.

Each tracker lives in a process of its own, behind a bounded queue. What it raises costs one warning and the
tracker; if it is slow, points are left out; if it hangs, it is ended. The run never waits for one while it goes
on, and at its end for `FINISH_S` seconds at most.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import multiprocessing
import os
import platform
import queue
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

from vlnbench.errors import UsageError, unknown
from vlnbench.util.loading import import_string
from vlnbench.util.plugins import plugins
from vlnbench.util.progress import say

FINISH_S = 20.0
QUEUE_SIZE = 1000
_POLL_S, _END_S = 2.0, 5.0
PROJECT = "vlnbench"

Values = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """What trackers are told of a run: its name, its folder, and JSON values that describe it."""

    name: str
    folder: Path
    config: Mapping[str, Any]


class Tracker(Protocol):
    """Sends a run somewhere. Made from a `TrackedRun` when there is something to send; may raise anything."""

    def log(self, values: Values, step: int) -> None:
        """Values at a step; steps rise."""
        ...

    def finish(self, summary: Values) -> None:
        """The final values, empty if the run ended before its end. Called once."""
        ...


class TensorBoard:
    """Event files in the run folder, below tensorboard/."""

    def __init__(self, run: TrackedRun) -> None:
        writer = importlib.import_module("torch.utils.tensorboard")  # torch, in this process only
        self._writer = writer.SummaryWriter(str(run.folder / "tensorboard"))
        self._writer.add_text("config", "\n".join(f"    {key}: {value}" for key, value in run.config.items()))
        self._last = 0

    def log(self, values: Values, step: int) -> None:
        self._last = step
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def finish(self, summary: Values) -> None:
        for name, value in summary.items():
            self._writer.add_scalar(f"summary/{name}", value, self._last)
        self._writer.close()


class Wandb:
    """A run of the project "vlnbench" or $WANDB_PROJECT; WANDB_MODE=offline keeps it on this machine."""

    def __init__(self, run: TrackedRun) -> None:
        wandb = importlib.import_module("wandb")
        where = f"{platform.node()}:{run.folder.resolve()}"  # a run that goes on is one run there too
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.name,
            id=hashlib.sha256(where.encode()).hexdigest()[:16],
            config=dict(run.config),
            dir=str(run.folder),
            resume="allow",
        )

    def log(self, values: Values, step: int) -> None:
        self._run.log(dict(values), step=step)

    def finish(self, summary: Values) -> None:
        self._run.summary.update({f"summary/{name}": value for name, value in summary.items()})
        self._run.finish()


class Trackio:
    """A run of the project "vlnbench" in trackio's local database."""

    def __init__(self, run: TrackedRun) -> None:
        self._trackio = importlib.import_module("trackio")
        self._trackio.init(project=PROJECT, name=run.name, config=dict(run.config), resume="allow")
        self._last = 0

    def log(self, values: Values, step: int) -> None:
        self._last = step
        self._trackio.log(dict(values), step=step)

    def finish(self, summary: Values) -> None:
        if summary:
            self._trackio.log({f"summary/{name}": value for name, value in summary.items()}, step=self._last)
        self._trackio.finish()


TRACKERS = {
    "tensorboard": ("vlnbench.util.trackers:TensorBoard", "tensorboard"),
    "trackio": ("vlnbench.util.trackers:Trackio", "trackio"),
    "wandb": ("vlnbench.util.trackers:Wandb", "wandb"),
}
"""Import string and package by name."""


def parse_trackers(names: Iterable[str]) -> tuple[str, ...]:
    """Import strings of trackers; a name is of `TRACKERS`, of another distribution, or an import string itself.

    Empty ones are left out. Raises UsageError for unknown names and for packages that are not installed.
    """
    found = []
    for name in filter(None, names):
        if ":" in name:
            import_string(name)
            found.append(name)
            continue
        if name not in TRACKERS:
            found.append(_added(name))
            continue
        target, package = TRACKERS[name]
        if importlib.util.find_spec(package) is None:
            raise UsageError(
                f"--tracker {name}: the package {package} is not installed; run `pip install {package}`"
            )
        found.append(target)
    return tuple(dict.fromkeys(found))


def _added(name: str) -> str:
    """Import string of a tracker that another distribution adds."""
    added = plugins("trackers", TRACKERS)
    if name not in added:
        raise UsageError("--tracker: " + unknown("tracker", name, [*TRACKERS, *added]))
    added[name].load()
    return added[name].target


def numbers(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers in nested JSON values, by their path: {"a": [{"b": 1}]} gives {"a/0/b": 1.0}."""
    result: dict[str, float] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, list):
            value = {str(i): item for i, item in enumerate(value)}
        if isinstance(value, Mapping):
            result |= numbers(value, f"{name}/")
        elif isinstance(value, int | float):
            result[name] = float(value)
    return result


class Trackers:
    """The trackers of one run. Use as a context manager; without trackers it does nothing.

    targets: import strings, see `parse_trackers`. A tracker is made when the first values come, so that a run that
    is refused leaves nothing behind.
    """

    def __init__(self, targets: Sequence[str], run: TrackedRun, finish_s: float = FINISH_S) -> None:
        self._links = [_Link(target, run) for target in targets]
        self._finish_s = finish_s
        self._summary: dict[str, float] = {}

    def __enter__(self) -> Trackers:
        return self

    def __exit__(self, *_: object) -> None:
        deadline = time.monotonic() + self._finish_s
        for link in self._links:
            link.finish(self._summary, deadline)
        for link in self._links:
            link.close(deadline)

    def log(self, values: Values, step: int) -> None:
        """Values at a step. Returns at once."""
        for link in self._links:
            link.log(dict(values), step)

    def summarize(self, values: Values) -> None:
        """The final values, sent when the run ends."""
        self._summary = dict(values)


class _Link:
    """One tracker: its process, what goes there and what comes back."""

    def __init__(self, target: str, run: TrackedRun) -> None:
        self._name = target.rpartition(":")[2]
        self._left_out = 0
        self._dropped = False
        context = multiprocessing.get_context("spawn")
        self._messages: Any = context.Queue(QUEUE_SIZE)
        self._messages.cancel_join_thread()
        self._problem, theirs = context.Pipe(duplex=False)
        self._process: BaseProcess = context.Process(
            target=_serve, args=(target, run, self._messages, theirs), daemon=True
        )
        self._process.start()
        theirs.close()

    def log(self, values: Values, step: int) -> None:
        self._look()
        if self._dropped:
            return
        try:
            self._messages.put_nowait(("log", values, step))
        except queue.Full:
            self._left_out += 1

    def finish(self, summary: Values, deadline: float) -> None:
        """Tell the tracker that the run has ended; it may have points before it that it has not taken yet."""
        self._look()
        if self._dropped:
            return
        try:
            self._messages.put(("finish", summary, 0), timeout=_left(deadline))
        except queue.Full:
            self._drop("it did not take what was sent")

    def close(self, deadline: float) -> None:
        """Wait until the tracker is done, until `deadline` (of `time.monotonic`) at most."""
        if not self._dropped:
            self._process.join(_left(deadline))
            self._look()
            if self._process.is_alive() and not self._dropped:
                self._drop("it did not finish in time")
            elif self._left_out and not self._dropped:
                say(f"tracker {self._name}: too slow, {self._left_out} points left out")
        self._end()

    def _look(self) -> None:
        """See whether the tracker has failed."""
        if self._dropped:
            return
        try:
            if self._problem.poll():
                self._drop(self._problem.recv())
        except EOFError:  # its process has ended, or is about to
            self._process.join(_END_S)
            if self._process.exitcode:
                self._drop(f"its process ended with exit code {self._process.exitcode}")

    def _drop(self, reason: str) -> None:
        self._dropped = True
        say(f"warning: tracker {self._name} is dropped, the run goes on: {reason}")
        self._end()

    def _end(self) -> None:
        if self._process.is_alive():
            self._process.kill()
        self._process.join(_END_S)
        self._messages.close()
        self._problem.close()


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _serve(target: str, run: TrackedRun, messages: Any, problem: Any) -> None:
    """What a tracker's process does until the run is finished or gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run tells when it ends
    try:
        tracker: Tracker | None = None
        make: Callable[[TrackedRun], Tracker] = import_string(target)
        while True:
            message = _next(messages)
            if message is None:
                return
            action, values, step = message
            if tracker is None and (action == "log" or values):
                tracker = make(run)
            if action == "finish":
                if tracker is not None:
                    tracker.finish(values)
                return
            assert tracker is not None
            tracker.log(values, step)
    except BaseException as error:  # whatever a tracker does, the run hears of it in one line
        problem.send(f"{type(error).__name__}: {' '.join(str(error).split())}")


def _next(messages: Any) -> tuple[str, Values, int] | None:
    """The next message; None if the run's process has died."""
    parent = multiprocessing.parent_process()
    while parent is None or parent.is_alive():
        try:
            message: tuple[str, Values, int] = messages.get(timeout=_POLL_S)
        except queue.Empty:
            continue
        return message
    return None
