"""What the settings of a matrix will need, as a table: every empty place with a reason in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from vlnbench.matrix.execution import Execution
from vlnbench.matrix.spec import Matrix, Setting
from vlnbench.util.cards import Throughput
from vlnbench.util.machine import free_space
from vlnbench.util.tables.screen import folded, screen_width, wrapped

GB = 10**9
NOTHING = "-"

Plans = Mapping[str, Mapping[str, Any]]
"""The plans of all trainings by their keys, as `make_plans` makes them."""


@dataclass(frozen=True)
class There:
    """What plans are judged by. host: bytes of a machine; work: where checkpoints will lie; pace: of a device."""

    host: int | None
    work: Path
    pace: Throughput | None


def format_needs(matrix: Matrix, plans: Plans, hours: Mapping[str, float | None], there: There) -> str:
    """The settings with what they will need. hours: of each setting by its key, from measured runs."""
    columns = {
        "steps": [_count(plan["steps"]) for plan in _each(matrix, plans)],
        "VRAM": [_judged(plan["peak"], plan["fits"]) for plan in _each(matrix, plans)],
        "host": [_host(plan, there.host) for plan in _each(matrix, plans)],
        "disk": [_gb(plan.get("checkpoint")) for plan in _each(matrix, plans)],
        "GPU-h": [_hours(gpu_hours(each, matrix, plans, there.pace)) for each in matrix.settings],
        "measured (h)": [_hours(hours.get(each.key)) for each in matrix.settings],
    }
    shown = {name: cells for name, cells in columns.items() if any(cell != NOTHING for cell in cells)}
    first, execution = next(iter(plans.values())), matrix.execution
    spread = f" on {execution.machines} machines" if execution.machines > 1 else ""
    where = f"{first['gpus']}{spread}" if execution.gpus_per_setting else "the CPU; VRAM is what a GPU would need"
    title = (
        f"{matrix.name}: {len(matrix.settings)} settings, {len(plans)} trainings, each on "
        f"{where}. In GB: VRAM of one GPU and host memory of one machine, for one setting, and "
        "whether they fit; disk for the checkpoint that stays. GPU-h: training, computed; measured: training and "
        "evaluation as in like runs"
    )
    lines = [*_reasons(matrix, plans, there), *_totals(matrix, plans, there)]
    width = screen_width()
    return "\n".join([wrapped(title, width), "", _table(matrix, shown, width), wrapped("\n".join(lines), width)])


def gpu_hours(setting: Setting, matrix: Matrix, plans: Plans, pace: Throughput | None) -> float | None:
    """Hours of all devices of a training, None where its steps, its operations or the pace are not known."""
    plan = plans[setting.train_key]
    known = plan["windows"] is not None and plan.get("flops") is not None
    if pace is None or not known or setting.train.dtype == "float32" or setting.train.learns_from != "labels":
        return None
    seconds: float = plan["windows"] * plan["flops"] / (pace.tflops * 1e12)
    return seconds * matrix.execution.devices / 3600


def _table(matrix: Matrix, columns: Mapping[str, Sequence[str]], width: int) -> str:
    """Names wrapped where the terminal is too narrow for them."""
    numbers = [str(number) for number in range(1, len(matrix.settings) + 1)]
    beside = [numbers, *([name, *cells] for name, cells in columns.items())]
    names = folded([each.name for each in matrix.settings], beside, width)
    rows = list(zip(numbers, names, *columns.values(), strict=True))
    align = ("right", "left", *["right"] * len(columns))
    return str(tabulate(rows, headers=["", "setting", *columns], disable_numparse=True, colalign=align))


def _reasons(matrix: Matrix, plans: Plans, there: There) -> list[str]:
    """Why places are empty, and what is planned by other than what is there."""
    every, execution = list(plans.values()), matrix.execution
    lines = [
        f"VRAM: planned by the published sizes {name}, as the checkpoint is not there"
        for name in _distinct(every, "planned_as")
    ]
    lines += [f"no plan: {why}" for why in _distinct(every, "error")]
    lines += [f"no steps: {why}" for why in _distinct(every, "no_steps")]
    if assumed := dict.fromkeys(name for each in every for name in each.get("assumed", ())):
        lines.append(
            f"steps: sets that are not there have the windows that run.windows says: {', '.join(assumed)}"
        )
    planned = [each for each in every if each["peak"] is not None]
    if any(each["fits"] is None for each in planned):
        lines.append("fits: not judged, as there is no GPU here and the file names none (run: {gpu: 80GB})")
    if there.host is None and planned:
        lines.append("host: not judged, as the machines are not this one (run: {host: 1000GB})")
    return [*lines, *_hours_reasons(matrix, plans, there.pace), *_cache_lines(matrix, plans, execution)]


def _hours_reasons(matrix: Matrix, plans: Plans, pace: Throughput | None) -> list[str]:
    if pace is not None:
        wide = any(each.train.dtype == "float32" for each in matrix.settings)
        rewarded = any(each.train.learns_from != "labels" for each in matrix.settings)
        return [
            f"GPU-h: at {pace.tflops:g} TFLOPS per GPU, {pace.source}; reading frames and communication are in "
            "that figure, starts, states and evaluations are not",
            *(["GPU-h: not computed for trainings in float32, in which cards compute less"] if wide else []),
            *(["GPU-h: not computed where rewards are learned from: rollouts take most"] if rewarded else []),
        ]
    if not matrix.execution.gpus_per_setting:
        return ["GPU-h: not computed for trainings on a CPU; say run.tflops, or see what was measured"]
    return ["GPU-h: not computed, as no card is known: run: {card: H100}, or {tflops: 200} as measured"]


def _cache_lines(matrix: Matrix, plans: Plans, execution: Execution) -> list[str]:
    """What the feature caches would hold in all, and what share of that they may."""
    lines = {}
    for setting in matrix.settings:
        plan, options = plans[setting.train_key], setting.train
        if options.feature_cache is None or (plan.get("no_cache") is None and not plan.get("cache")):
            continue
        name = " + ".join(options.mixture)
        if plan["no_cache"]:
            lines[name] = f"feature cache of {name}: its size is not known: {plan['no_cache']}"
            continue
        share = min(1.0, options.feature_cache_gb * GB / plan["cache"])
        lines[name] = (
            f"feature cache of {name}: all features take {plan['cache'] / GB:,.0f} GB; feature_cache_gb "
            f"{options.feature_cache_gb:g} holds {share:.1%} of them"
        )
    return list(lines.values())


def _totals(matrix: Matrix, plans: Plans, there: There) -> list[str]:
    """What all settings take together."""
    lines, execution = [], matrix.execution
    distinct = list({setting.train_key: setting for setting in matrix.settings}.values())
    known = [value for each in distinct if (value := gpu_hours(each, matrix, plans, there.pace)) is not None]
    if known:
        more = f", without {len(distinct) - len(known)} that are not known" if len(known) < len(distinct) else ""
        lines.append(
            f"in all: {sum(known):,.2f} GPU-h of training{more}: {sum(known) / execution.devices:,.2f} hours one "
            "setting after the other"
        )
    planned = [plan for plan in plans.values() if plan.get("checkpoint") is not None]
    if planned:
        stays, state = sum(plan["checkpoint"] for plan in planned), max(plan["state"] for plan in planned)
        free, where = free_space(there.work)
        verdict = "fits" if stays + 2 * state <= free else "does not fit"
        lines.append(
            f"disk: {stays / GB:,.1f} GB of checkpoints, and up to {2 * state / GB:,.1f} GB of states while one "
            f"trains; {free / GB:,.1f} GB are free below {where}: {verdict}"
        )
    return lines


def _each(matrix: Matrix, plans: Plans) -> list[Mapping[str, Any]]:
    return [plans[setting.train_key] for setting in matrix.settings]


def _distinct(every: Iterable[Mapping[str, Any]], name: str) -> list[str]:
    return list(dict.fromkeys(filter(None, (each.get(name) for each in every))))


def _host(plan: Mapping[str, Any], there: int | None) -> str:
    needed = plan.get("host")
    return _judged(needed, None if there is None or needed is None else "yes" if needed <= there else "no")


def _judged(size: int | None, verdict: str | None) -> str:
    return NOTHING if size is None else f"{_gb(size)} {verdict or ''}".rstrip()


def _gb(size: int | None) -> str:
    return NOTHING if size is None else f"{size / GB:,.1f}" if size < 10_000 * GB else f"{size / GB:,.0f}"


def _hours(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def _count(value: int | None) -> str:
    return NOTHING if value is None else f"{value:,}"
