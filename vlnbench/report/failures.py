"""How episodes ended, in the kinds that the report shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from vlnbench.errors import UsageError
from vlnbench.evaluation.columns.read import table_of
from vlnbench.evaluation.columns.table import Numbers, Table
from vlnbench.evaluation.metrics import FAILURES, STUCK_ACTIONS, STUCK_RADIUS_M, Failure
from vlnbench.evaluation.records import Row

Ending = Literal[
    "success",
    "passed_goal",
    "stopped_short",
    "never_near",
    "stuck",
    "out_of_steps",
    "unreachable",
    "error",
    "timeout",
    "unscored",
    "unknown",
]

ENDINGS: tuple[Ending, ...] = get_args(Ending)

NEAR = 0.5
"""Part of the start's distance to the goal within which an episode has come near."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What an ending is called and means. part_of: the kind of `metrics.Failure` that it is (a part of)."""

    label: str
    definition: str
    part_of: Failure | None


def kinds(success_distance_m: float) -> dict[Ending, Kind]:
    """Every ending, in the order in which they are shown."""
    near = f"{success_distance_m:g} m"
    return {
        "success": Kind("success", f"STOP was called closer than {near} to a goal.", "success"),
        "passed_goal": Kind(
            "passed the goal",
            f"Some pose was closer than {near} to a goal (oracle success), but the episode did not end "
            "there by STOP.",
            "passed_goal",
        ),
        "stopped_short": Kind(
            "stopped short",
            f"STOP was called, no pose was closer than {near}, and the closest one was at most "
            f"{100 * NEAR:g} % of the start's distance away.",
            "stopped_early",
        ),
        "never_near": Kind(
            "never came near",
            f"STOP was called, no pose was closer than {near}, and every pose was farther than "
            f"{100 * NEAR:g} % of the start's distance: wrong direction, or hardly any way made.",
            "stopped_early",
        ),
        "stuck": Kind(
            "stuck",
            f"Out of steps without coming closer than {near}; during the last {STUCK_ACTIONS} actions the agent "
            f"tried to move forward and stayed within {100 * STUCK_RADIUS_M:g} cm.",
            "stuck",
        ),
        "out_of_steps": Kind(
            "out of steps",
            f"Out of steps without coming closer than {near}, for any other reason.",
            "never_stopped",
        ),
        "unreachable": Kind(
            "unreachable goal", "There is no path from the start to a goal; counted as a failure.", "unreachable"
        ),
        "error": Kind("error", "Simulator or agent broke; counted as a failure, with its reason.", "error"),
        "timeout": Kind(
            "timeout", "The simulator gave no answer in time; counted as a failure, with its reason.", "error"
        ),
        "unscored": Kind("unscored", "The split has no public goals: recorded, not scored.", None),
        "unknown": Kind("not told", "Imported: the file tells of no success, and not how it ended.", "unknown"),
    }


def endings(table: Table) -> Numbers:
    """How the episode of each row ended, as places in `ENDINGS`. Distances are geodesic, to the nearest goal.

    `metrics.Failure` with its kinds "stopped_early" and "error" divided.
    """
    at = {name: ENDINGS.index(name) for name in ENDINGS}
    start, closest = table.scores["geodesic_start"], table.scores["oracle_distance"]
    short = table.having("ok") & (table.failure == FAILURES.index("stopped_early"))
    unknown = short & (np.isnan(start) | np.isnan(closest))
    if unknown.any():
        raise UsageError(
            f"row of episode {table.name(int(np.argmax(unknown)), 1)}: field 'scores': stopped early without a "
            "distance to the goal"
        )
    names: dict[str, Ending] = {"never_stopped": "out_of_steps", "stopped_early": "never_near"}
    kinds = np.array([at[names.get(kind, kind)] for kind in FAILURES])[table.failure]  # type: ignore[arg-type]
    found = np.where(short & (closest <= NEAR * start), at["stopped_short"], kinds)
    broken = np.array([0, at["error"], at["timeout"], at["unscored"]])[table.status]
    return np.where(table.having("ok"), found, broken)


def how_ended(rows: Sequence[Row]) -> list[Ending]:
    """The same of rows one by one."""
    return [ENDINGS[place] for place in endings(table_of(rows))]
