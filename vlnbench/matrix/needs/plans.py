"""What the settings of a matrix will need: memory by the planner, optimizer steps, operations, disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from vlnbench.errors import UsageError
from vlnbench.matrix.spec import Matrix, Setting
from vlnbench.training import data
from vlnbench.training.family.find import Chosen
from vlnbench.training.family.sources import find_source
from vlnbench.training.family.trains import SetContent
from vlnbench.training.memory.plan import Plan, plan, sharding, window_flops
from vlnbench.training.memory.zero import state_size
from vlnbench.training.objectives import get_objective
from vlnbench.training.options import TrainOptions, parse_set

UNJUDGED = "80GB"
"""GPU that plans are made for where none is there and none is named: its size changes the verdict only."""


@dataclass(frozen=True)
class Assumed:
    """A set that is not there yet, of which the file says how many windows it has."""

    windows: int
    file: Path
    counts: ClassVar[dict[str, int]] = {}

    def texts(self) -> Iterator[str]:
        """None, for it is not there."""
        return iter(())

    def lengths(self) -> list[tuple[int, ...]]:
        """None either."""
        return []


Read = Callable[[Setting, str], SetContent]
"""A set of a setting by its name. Raises UsageError where it is not there and nothing is assumed of it."""


def make_plans(matrix: Matrix, gpu: str | None) -> dict[str, dict[str, Any]]:
    """The plan of every training, by its key. `gpu`: memory of one GPU, None for no verdict."""
    distinct = {setting.train_key: setting for setting in matrix.settings}
    read = _reader(matrix)
    return {key: _plan(setting, matrix, gpu, read) for key, setting in distinct.items()}


def _reader(matrix: Matrix) -> Read:
    """Reads every set once for all settings that cut it alike: by options that not all families have."""
    general = {each.name for each in fields(TrainOptions)} - {"objective", "trajectories"}
    known: dict[Any, SetContent | str] = {}

    def read(setting: Setting, name: str) -> SetContent:
        checkpoints, trains = setting.family.load_trainable()
        options = checkpoints.settled(begins_from(setting, matrix).source, setting.train)
        own = [(each.name, getattr(options, each.name)) for each in fields(options) if each.name not in general]
        key, folder = (setting.family.name, name, repr(own)), options.trajectories / name
        if key not in known:
            try:
                known[key] = trains.read_set(folder, options)
            except UsageError as error:
                windows = matrix.execution.windows.get(name)
                known[key] = str(error) if windows is None or folder.exists() else Assumed(windows, folder)
        found = known[key]
        if isinstance(found, str):
            raise UsageError(found)
        return found

    return read


def _plan(setting: Setting, matrix: Matrix, gpu: str | None, read: Read) -> dict[str, Any]:
    """Bytes of one GPU, of one machine and on disk, optimizer steps, and windows and operations of one device.

    None where not known, `error`, `no_steps` and `no_cache` saying why.
    """
    options, count = setting.train, matrix.execution.devices
    gpus = f"{count}x{gpu or UNJUDGED}"
    steps, no_steps = _steps(setting, count, read)
    shared: dict[str, Any] = {
        "gpus": gpus,
        "steps": steps,
        "no_steps": no_steps,
        "planned_as": _planned_as(setting, matrix),
    }
    shared["windows"] = None if steps is None else steps * options.batch * options.accumulation
    shared["assumed"] = _assumed(setting, read)
    try:
        kind = get_objective(options.objective).plan_options(setting.family.check_plannable())
        planned = plan(kind(**kind.settings_of(options), gpus=gpus), begins_from(setting, matrix))
    except UsageError as error:
        return {**shared, "peak": None, "fits": None, "error": str(error)}
    return {
        **shared,
        "peak": planned.peak,
        "low": planned.low,
        "high": planned.high,
        "fits": None if gpu is None else planned.fits,
        "host": planned.host * max(1, matrix.execution.gpus_per_setting),
        "trainable": planned.trainable,
        "flops": window_flops(planned, begins_from(setting, matrix)),
        **_disk(setting, matrix, planned),
        **_cache(setting, matrix, read),
        "error": None,
    }


def _assumed(setting: Setting, read: Read) -> list[str]:
    """The sets of a setting of which only the file says how many windows they have."""
    found = []
    for name in _counted(setting.train):
        with suppress(UsageError):
            if isinstance(content := read(setting, name), Assumed):
                found.append(f"{name} {content.windows:,}")
    return found


def _counted(options: TrainOptions) -> dict[str, float]:
    """The sets by which steps are counted, with their weights."""
    if options.learns_from != "labels" or options.steps is not None:
        return {}
    return dict(map(parse_set, options.steps_of)) or options.mixture


def _bytes(setting: Setting, matrix: Matrix) -> int:
    """Bytes of a weight: without a GPU a training is in float32."""
    wanted = setting.train.dtype
    return 4 if wanted == "float32" or (wanted == "auto" and not matrix.execution.gpus_per_setting) else 2


def _disk(setting: Setting, matrix: Matrix, planned: Plan) -> dict[str, int]:
    """Bytes of the checkpoint that stays, and of a state to go on from, of which two lie there for a moment."""
    size = _bytes(setting, matrix)
    whole = sum(count for part, count in planned.parts.items() if part != "lora")  # adapters are merged
    of_one = state_size(planned.trainable, sharding(planned.request))
    every = of_one * (matrix.execution.devices if planned.request.zero else 1)
    return {"checkpoint": whole * size, "state": round(every) + planned.trainable * size}


def _cache(setting: Setting, matrix: Matrix, read: Read) -> dict[str, Any]:
    """Bytes that all features of the sets take in the feature cache, or why that is not known; 0 without one."""
    options = setting.train
    if options.feature_cache is None:
        return {"cache": 0, "no_cache": None}
    checkpoints, trains = setting.family.load_trainable()
    source = begins_from(setting, matrix).source
    settled = checkpoints.settled(source, options)
    kept = setting.family.load_plans().kept(checkpoints.config(source, settled), settled)
    total = 0
    for name in options.mixture:
        try:
            content = read(setting, name)
        except UsageError as error:
            return {"cache": None, "no_cache": str(error)}
        frames = None if isinstance(content, Assumed) else trains.frames(content)
        if kept is None or (frames is None and kept.frame):
            why = f"how many frames {name} has" if kept else f"what the family {setting.family.name} keeps"
            return {"cache": None, "no_cache": f"{why} is not known"}
        total += (frames or 0) * kept.frame + content.windows * kept.window
    return {"cache": total * _bytes(setting, matrix), "no_cache": None}


def begins_from(setting: Setting, matrix: Matrix) -> Chosen:
    """What a setting is planned from: its checkpoint, or published sizes where that is not there.

    Raises UsageError where neither is known.
    """
    found = setting.source
    with suppress(UsageError):
        found = found or find_source(setting.train.checkpoint, [setting.family])
    if found is None and (sizes := _sizes(setting, matrix)):
        found = find_source(sizes, [setting.family], "run.plan_as")
    if found is None:
        known = ", ".join(setting.family.sizes)
        raise UsageError(
            f"{setting.train.checkpoint} is not there; get it"
            + (f", or say by which sizes to plan: run: {{plan_as: NAME}}, one of {known}" if known else "")
        )
    return Chosen(setting.family, found)


def _sizes(setting: Setting, matrix: Matrix) -> str | None:
    """The published sizes of a checkpoint that is not there: those that are named, or the only ones."""
    sizes = setting.family.sizes
    return matrix.execution.plan_as or (sizes[0] if len(sizes) == 1 else None)


def _planned_as(setting: Setting, matrix: Matrix) -> str | None:
    """The sizes that a setting is planned by, None where that is its checkpoint."""
    with suppress(UsageError):
        found = begins_from(setting, matrix).source
        return found.name if found.kind == "sizes" and found.name != setting.train.checkpoint else None
    return None


def _steps(setting: Setting, processes: int, read: Read) -> tuple[int | None, str | None]:
    """Optimizer steps, or why they are not known, as while they depend on sets that have not been collected."""
    options = setting.train
    if options.steps is not None:
        return options.steps, None
    if options.learns_from != "labels":
        return None, "the objective does not count them beforehand; give steps"
    try:
        sets = [
            data.TrainingSet(name, read(setting, name), weight, "") for name, weight in _counted(options).items()
        ]
        return data.make_schedule(options, setting.family.load_trains(), sets, processes).steps, None
    except UsageError as error:
        return None, str(error)
