"""Runs a matrix: settings trained and evaluated, each command in a process of its own, resumable at any moment."""

from __future__ import annotations

import queue
import subprocess
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

from vlnbench.errors import RunError, UsageError, check_installed
from vlnbench.matrix.execution import Execution, parse_size
from vlnbench.matrix.needs.missing import check_inputs, check_nothing_is_missing
from vlnbench.matrix.parts import ALL, Part, Unit, units_of
from vlnbench.matrix.rows import DOCUMENT, write_document
from vlnbench.matrix.spec import Matrix
from vlnbench.matrix.work.folder import MANIFEST, PLANS, check_work, open_work, read_json
from vlnbench.matrix.work.stages import Stage, prepare_stages
from vlnbench.matrix.work.store import adopt, publish, training_identity
from vlnbench.matrix.work.watcher import LOG, Outcome, Request, attempts
from vlnbench.training.options import LAUNCHER_VARIABLES
from vlnbench.util import machine
from vlnbench.util.durable.files import write_json
from vlnbench.util.progress import say

Slot = tuple[str, ...]
"""Names of the GPUs that a setting has, none on the CPU."""


@dataclass(frozen=True)
class Places:
    """Where settings can run at the same time, how much memory one GPU has, and what machine this is.

    card: the GPU of this machine, None where plans are for others. host: bytes of one machine, where known.
    """

    slots: list[Slot]
    gpu: str | None
    described: dict[str, Any]
    card: str | None = None
    host: int | None = None


def find_places(execution: Execution, gpus: tuple[str, ...]) -> Places:
    """Divide this machine's GPUs among settings. `gpus`: names to use, default all visible ones.

    Raises UsageError if there are too few for one setting.
    """
    found = machine.gpus()
    names = (gpus or machine.visible(found)) if execution.gpus_per_setting else ()
    each = execution.gpus_per_setting
    if gpus and not found:
        raise UsageError(f"--gpus {' '.join(gpus)}: the driver of this machine shows no GPU")
    if names and len(names) < each:
        raise UsageError(
            f"run.gpus_per_setting {each}: expected at most {len(names)}, as many GPUs as may be used"
        )
    slots: list[Slot] = [names[i : i + each] for i in range(0, len(names) - each + 1, each)] if names else []
    sizes = [gpu.memory_mib for gpu in found if gpu.memory_mib is not None]
    size = f"{min(sizes) / 1024:.1f}GiB" if names and sizes else None
    meant = (bool(names) and execution.gpu is None) or not execution.gpus_per_setting
    host = parse_size(execution.host) if execution.host else machine.memory() if meant else None
    card = found[0].name if meant and names else None
    return Places(slots or [()] * execution.jobs, execution.gpu or size, machine.describe(found), card, host)


def plan_matrix(matrix: Matrix, work: Path | None, gpu: str | None) -> dict[str, dict[str, Any]]:
    """The plans of all settings; with `work`, those that lie there are used again."""
    known = (read_json(work / PLANS) if work else None) or {}
    keys = {setting.train_key for setting in matrix.settings}
    current = {key: each for key, each in known.items() if key in keys and each["steps"] is not None}
    current = {key: each for key, each in current.items() if not each.get("planned_as")}
    execution = matrix.execution
    wanted = {"gpu": gpu, "gpus_per_setting": execution.gpus_per_setting, "machines": execution.machines}
    if known.get("for") == wanted and len(current) == len(keys):
        return current
    from vlnbench.matrix.needs.plans import make_plans  # loads torch

    plans = make_plans(matrix, gpu)
    if work:
        write_json(work / PLANS, {"for": wanted, **plans})
    return plans


def run_matrix(
    matrix: Matrix, work: Path, results: Path, *, gpus: tuple[str, ...] = (), retry: bool = False, part: Part = ALL
) -> dict[str, Any]:
    """Run what is not done yet; with `retry` also what failed. Returns the document of results.

    part: what of the matrix is run here; the other rows say how far they are in this work folder. Raises
    UsageError, with nothing written, for a file that does not belong to the work folder or for results of other
    work, and RunError if houses or trajectories cannot be made.
    """
    check_work(matrix, work)
    if (results / DOCUMENT).exists() and not (work / MANIFEST).exists():
        raise UsageError(f"{results}: holds the results of other work than {work}; choose another --results")
    places = find_places(matrix.execution, gpus)
    units = part.choose(units_of(matrix, work, len(places.slots[0])))
    check_installed("deepspeed", "train")  # before hours of other work
    trained = [unit.setting for unit in units if unit.train and unit.setting]
    check_nothing_is_missing(matrix, trained)
    check_inputs(matrix, trained)
    with open_work(matrix, work):
        runner = _Runner(matrix, work, results, places, retry)
        try:
            if matrix.offline or any(unit.train for unit in units):
                runner.prepare()
            runner.run(units, plan_matrix(matrix, work, places.gpu))
        finally:
            runner.stop()
        return write_document(matrix, work, results)


def format_counts(found: dict[str, Any]) -> str:
    """How many settings are how far, and where to look for the reasons."""
    counts = Counter(row["status"] for row in found["rows"])
    lines = [f"{found['name']}: " + ", ".join(f"{count} {status}" for status, count in counts.items())]
    beside = found.get("references", [])
    lines += [f"{row['name']}: {row['reason']}; {row['log']}" for row in [*beside, *found["rows"]] if row["log"]]
    return "\n".join(lines)


def check_none_crashed(found: dict[str, Any]) -> None:
    """Raise RunError if a setting or a reference has crashed; one for which a GPU is too small is a result."""
    rows = [*found.get("references", []), *found["rows"]]
    crashed = [row["name"] for row in rows if row["status"] == "crash"]
    if crashed:
        raise RunError(
            f"{len(crashed)} of {len(rows)} settings crashed, {shorten(', '.join(crashed), 200)}: mend what the "
            "lines above say, then `vlnbench matrix retry`"
        )


class _Runner:
    """The commands of one matrix. Threads wait for processes; nothing else is shared but the list of them."""

    def __init__(self, matrix: Matrix, work: Path, results: Path, places: Places, retry: bool) -> None:
        self._matrix, self._work, self._results = matrix, work, results
        self._places = places
        self._beside = 1
        self._retry = retry
        self._lock = threading.Lock()
        self._stopping = False
        self._processes: set[subprocess.Popen[bytes]] = set()

    def prepare(self) -> None:
        """Make houses and trajectories that are not there yet."""
        for stage in prepare_stages(self._matrix, self._work):
            if not stage.complete() and self._run(stage, None, None) != "done":
                tail = (attempts(stage.folder) or [{"tail": []}])[-1]["tail"]
                raise RunError(
                    f"{stage.name} failed ({tail[-1] if tail else 'no output'}); see {stage.folder / LOG}"
                )

    def run(self, units: Sequence[Unit], plans: dict[str, dict[str, Any]]) -> None:
        """Train and evaluate every unit, as many at a time as there are places."""
        write_document(self._matrix, self._work, self._results)
        if self._matrix.execution.unfit == "skip":
            unfit = [key for key, plan in plans.items() if plan["fits"] == "no"]
            units = [unit for unit in units if unit.setting is None or unit.setting.train_key not in unfit]
        slots: queue.SimpleQueue[Slot] = queue.SimpleQueue()
        for slot in self._places.slots:
            slots.put(slot)

        def work_on(unit: Unit) -> None:
            slot = slots.get()
            try:
                self._unit(unit, slot)
            finally:
                slots.put(slot)

        self._beside = max(1, min(len(self._places.slots), len(units)))
        executor = ThreadPoolExecutor(len(self._places.slots))
        try:
            for future in as_completed([executor.submit(work_on, unit) for unit in units]):
                future.result()
        finally:
            self.stop()
            executor.shutdown(cancel_futures=True)

    def stop(self) -> None:
        """End all commands: each one's watcher does it when its standard input closes."""
        with self._lock:
            self._stopping = True
            for process in self._processes:
                assert process.stdin is not None
                process.stdin.close()

    def _unit(self, unit: Unit, slot: Slot) -> None:
        """The training that settings share, then their evaluations; or those of a reference."""
        execution = self._matrix.execution
        todo = [(stage, execution.eval_timeout_s) for stage in unit.evaluations]
        identity, trained = None, unit.train
        if trained is not None:
            todo.insert(0, (trained, execution.train_timeout_s))
        if unit.setting is not None and execution.store is not None:
            identity = training_identity(unit.setting, len(slot) * execution.machines)
        for stage, timeout_s in todo:
            if self._shared(unit, stage, identity) or (stage.failed and not self._retry):
                continue
            if trained is not None and not trained.complete() and stage is not trained:
                return
            say(f"{unit.names[0]}: {stage.name}, log {stage.folder / LOG}")
            outcome = self._run(stage, slot, timeout_s)
            say(f"{unit.names[0]}: {stage.name}: {outcome}")
            self._shared(unit, stage, identity)
            with self._lock:
                write_document(self._matrix, self._work, self._results)

    def _shared(self, unit: Unit, stage: Stage, trained: dict[str, Any] | None) -> bool:
        """Whether a stage is complete, here or in the work of another matrix; what is complete is shared.

        trained: the identity of the unit's training.
        """
        store = self._matrix.execution.store
        if store is not None and (identity := unit.identity(stage, trained)) is not None:
            if stage.complete():
                publish(store, stage, identity)
            elif adopt(store, stage, identity):
                say(f"{unit.names[0]}: {stage.name}: done before, in {stage.folder.resolve()}")
        return stage.complete()

    def _run(self, stage: Stage, slot: Slot | None, timeout_s: float | None) -> Outcome:
        """Run one command under its watcher; what became of it is read from the record. No slot: every GPU."""
        stage.folder.mkdir(parents=True, exist_ok=True)
        env: dict[str, str | None] = dict.fromkeys(LAUNCHER_VARIABLES)
        if slot is not None:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(slot)
            env[machine.CORES] = str(max(1, machine.cores() // self._beside))
        notes = {"stage": stage.name, "gpus": slot and list(slot), "machine": self._places.described}
        request = Request(str(stage.folder), list(stage.command), env, timeout_s, notes)
        before = len(attempts(stage.folder))
        with self._lock:
            if self._stopping:
                return "interrupted"
            process = subprocess.Popen(request.arguments, stdin=subprocess.PIPE, start_new_session=True)
            self._processes.add(process)
        process.wait()
        with self._lock:
            self._processes.discard(process)
            if process.stdin is not None:
                process.stdin.close()
        tried = attempts(stage.folder)
        if len(tried) == before:
            raise RunError(
                f"{stage.name}: its watcher ended with exit code {process.returncode} and left no record"
            )
        outcome: Outcome = tried[-1]["outcome"]
        return outcome
