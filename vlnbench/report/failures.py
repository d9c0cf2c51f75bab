"""How episodes ended, in the kinds that the report shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vlnbench.errors import UsageError
from vlnbench.evaluation.metrics import STUCK_ACTIONS, STUCK_RADIUS_M, Failure
from vlnbench.evaluation.records import Row, Score

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
]

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
    }


def ending(row: Row) -> Ending:
    """How the episode of a row ended. Distances are geodesic, to the nearest goal.

    `metrics.Failure` with its kinds "stopped_early" and "error" divided.
    """
    if row.status != "ok":
        statuses: dict[str, Ending] = {"error": "error", "timeout": "timeout", "unscored": "unscored"}
        return statuses[row.status]
    found: dict[Score, Ending] = {
        "success": "success",
        "passed_goal": "passed_goal",
        "stuck": "stuck",
        "never_stopped": "out_of_steps",
        "unreachable": "unreachable",
    }
    kind = row.scores["failure"]
    return found[kind] if kind in found else _stopped_early(row)


def _stopped_early(row: Row) -> Ending:
    start, closest = row.scores.get("geodesic_start"), row.scores.get("oracle_distance")
    if not isinstance(start, float | int) or not isinstance(closest, float | int):
        raise UsageError(
            f"row of episode {row.episode_id}: field 'scores': stopped early without a distance to the goal"
        )
    return "stopped_short" if closest <= NEAR * start else "never_near"
