"""What the settings of a matrix will need: memory by the planner, optimizer steps, and a rough time."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from tabulate import tabulate

from vlnbench.errors import UsageError
from vlnbench.matrix.spec import Matrix, Setting
from vlnbench.training import data
from vlnbench.training.family.find import Chosen
from vlnbench.training.family.sources import find_source
from vlnbench.training.memory.plan import GB, Plan, plan
from vlnbench.training.objectives import get_objective

UNJUDGED = "80GB"
"""GPU that plans are made for where none is there and none is named: its size changes the verdict only."""


def make_plans(matrix: Matrix, gpu: str | None) -> dict[str, dict[str, Any]]:
    """The plan of every training, by its key. `gpu`: memory of one GPU, None for no verdict."""
    distinct = {setting.train_key: setting for setting in matrix.settings}
    return {key: _plan(setting, matrix, gpu) for key, setting in distinct.items()}


def _plan(setting: Setting, matrix: Matrix, gpu: str | None) -> dict[str, Any]:
    """Bytes of one GPU, optimizer steps and seconds; None where not known, `error` saying why there is no plan."""
    options, count = setting.train, max(1, matrix.execution.gpus_per_setting)
    gpus = f"{count}x{gpu or UNJUDGED}"
    steps, no_steps = _steps(setting, matrix, count)
    shared = {"gpus": gpus, "steps": steps, "no_steps": no_steps, "planned_as": _planned_as(setting, matrix)}
    try:
        kind = get_objective(options.objective).plan_options(setting.family.check_plannable())
        planned = plan(kind(**kind.settings_of(options), gpus=gpus), begins_from(setting, matrix))
    except UsageError as error:
        return {**shared, "peak": None, "fits": None, "seconds": None, "error": str(error)}
    seconds = None
    if matrix.execution.tflops is not None and steps is not None:
        windows = steps * options.batch * options.accumulation
        seconds = round(windows * window_flops(setting, matrix, planned) / (matrix.execution.tflops * 1e12), 1)
    return {
        **shared,
        "peak": planned.peak,
        "low": planned.low,
        "high": planned.high,
        "fits": None if gpu is None else planned.fits,
        "host": planned.host,
        "trainable": planned.trainable,
        "seconds": seconds,
        "error": None,
    }


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


def _steps(setting: Setting, matrix: Matrix, processes: int) -> tuple[int | None, str | None]:
    """Optimizer steps, or why they are not known, as while they depend on sets that have not been collected."""
    options = setting.train
    if options.steps is not None:
        return options.steps, None
    if options.learns_from != "labels":
        return None, "the objective does not count them beforehand; give steps"
    checkpoints, trains = setting.family.load_trainable()
    try:
        options = checkpoints.settled(begins_from(setting, matrix).source, options)
        return data.make_schedule(options, trains, data.read_sets(options, trains), processes).steps, None
    except UsageError as error:
        return None, str(error)


def window_flops(setting: Setting, matrix: Matrix, planned: Plan) -> float:
    """Operations of training on one window of a setting."""
    checkpoints, options = setting.family.load_checkpoints(), setting.train
    source = begins_from(setting, matrix).source
    settled = checkpoints.settled(source, options)
    config = checkpoints.config(source, settled)
    return setting.family.load_plans().flops(config, settled, planned.parts, planned.tokens)


def format_plans(matrix: Matrix, plans: dict[str, dict[str, Any]], hours: Mapping[str, float | None]) -> str:
    """The settings with what they will need. hours: of each setting by its key, from measured runs."""
    rows = []
    for number, setting in enumerate(matrix.settings, start=1):
        planned = plans[setting.train_key]
        seconds = planned["seconds"]
        rows.append(
            [
                number,
                setting.name,
                setting.key,
                setting.train_key,
                _shown(planned["steps"]),
                "-" if planned["peak"] is None else f"{planned['peak'] / GB:.1f}",
                _shown(planned["fits"]),
                "-" if seconds is None else f"{seconds / 3600:.2f}",
                "-" if (measured := hours.get(setting.key)) is None else f"{measured:.2f}",
            ]
        )
    headers = ["", "setting", "key", "training", "steps", "VRAM (GB)", "fits", "hours", "measured"]
    align = ("right", "left", "left", "left", "right", "right", "left", "right", "right")
    table = tabulate(rows, headers=headers, disable_numparse=True, colalign=align)
    errors = dict.fromkeys(each["error"] for each in plans.values() if each["error"])
    total = [each["seconds"] for each in plans.values()]
    lines = [
        f"{matrix.name} {matrix.key}: {len(matrix.settings)} settings, {len(plans)} trainings; VRAM per GPU of "
        f"{next(iter(plans.values()))['gpus']}; hours: training by run.tflops; measured: training and evaluation, "
        "as in like runs",
        "",
        table,
    ]
    if all(seconds is not None for seconds in total):
        lines.append(f"\n{sum(total) / 3600:.2f} hours of training in all, one after the other")
    return "\n".join([*lines, *(f"no plan: {error}" for error in errors), *_reasons(matrix, plans)])


def _reasons(matrix: Matrix, plans: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Why columns are empty, and what is planned by other sizes than those of its checkpoint."""
    every, lines = list(plans.values()), []
    for name in dict.fromkeys(filter(None, (each.get("planned_as") for each in every))):
        lines.append(f"VRAM: planned by the published sizes {name}, as the checkpoint is not there")
    lines += [f"no steps: {why}" for why in dict.fromkeys(each.get("no_steps") for each in every) if why]
    if any(each["fits"] is None and each["peak"] is not None for each in every):
        lines.append("fits: not judged, as there is no GPU here and the file names none (run: {gpu: 80GB})")
    if matrix.execution.tflops is None:
        lines.append("hours: not computed without run.tflops, 1e12 operations per second that a card trains with")
    return lines


def _shown(value: Any) -> str:
    return "-" if value is None else str(value)
