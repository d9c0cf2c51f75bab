"""Scores as other programs wrote them: checked, put under the names here, and held against each other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlnbench.data.episodes import IDENTIFIER
from vlnbench.errors import UsageError
from vlnbench.evaluation.metrics import Failure, Scores
from vlnbench.evaluation.records import SHARES, Score
from vlnbench.importing.formats import LENGTH, Found, ResultFormat
from vlnbench.interfaces import Episode
from vlnbench.util.durable.fields import LENGTH as NOT_NEGATIVE
from vlnbench.util.durable.fields import SHARE, short

_CLOSE = 1e-4
"""Means of the same numbers in single precision differ by less, as a part and by itself."""
_SPL_CLOSE = 0.02
"""SPL from the dataset's shortest path and that from the simulator's own differ by less."""
_SDTW_CLOSE = 0.01
"""SDTW as written and success times nDTW, rounded ones too, differ by less."""


@dataclass(frozen=True, slots=True)
class Imported:
    """One episode. scene: as the file names it, empty where it does not. undefined: fields that were no number."""

    where: str
    episode_id: str
    scene: str
    scores: dict[str, Score]
    undefined: tuple[str, ...] = ()


def read_episodes(kind: ResultFormat, found: Sequence[Found]) -> tuple[list[Imported], list[str]]:
    """Episodes by their ids, and remarks. Raises UsageError for what is no value of a field, and for two results
    of one episode that differ; equal ones count once."""
    episodes: dict[str, Imported] = {}
    repeated = 0
    for each in found:
        one = _read(kind, each)
        other = episodes.setdefault(one.episode_id, one)
        if other is not one:
            repeated += 1
            if other.scores != one.scores:
                raise UsageError(
                    f"{one.where}: episode {one.episode_id} stands twice with other values, first at "
                    f"{other.where}: are these files of several evaluations? Name those of one"
                )
    remarks = [f"{repeated} results stand there twice, with the same values: they count once"] if repeated else []
    for name in ("spl", "distance_to_goal"):
        count = sum(name in one.undefined for one in episodes.values())
        if count:
            rule = "it counts as 0, the goal as out of reach" if name == "spl" else "left out of the mean"
            remarks.append(f"{name} is NaN or infinite in {count} episodes: {rule}")
    return list(episodes.values()), remarks


def episode_name(kind: ResultFormat, found: Found) -> str:
    """Id of an episode as text. Raises UsageError for what is none."""
    value = found.fields[kind.episode]
    name = str(value) if type(value) is int else value
    if not isinstance(name, str) or not IDENTIFIER.fullmatch(name):
        raise UsageError(f"{found.where}: field {kind.episode!r}: expected an episode id, found {short(value)}")
    return name


def _read(kind: ResultFormat, found: Found) -> Imported:
    scene = found.fields.get(kind.scene, "") if kind.scene else ""
    if not isinstance(scene, str) or len(scene) > 200:
        raise UsageError(f"{found.where}: field {kind.scene!r}: expected a scene, found {short(scene)}")
    scores: dict[str, Score] = {name: None for name in Scores.__slots__ if name != "stopped"}
    undefined = []
    for theirs, ours in kind.scores.items():
        if theirs in found.fields:
            value = _number(found, theirs, ours)
            if value is None:
                undefined.append(ours)
            scores[ours] = 0.0 if value is None and ours == "spl" else value
    success, ndtw = scores["success"], scores["ndtw"]
    if scores["sdtw"] is None and success is not None and ndtw is not None:
        scores["sdtw"] = float(success) * float(ndtw)
    scores["failure"] = _failure(scores, "spl" in undefined)
    return Imported(found.where, episode_name(kind, found), scene, scores, tuple(undefined))


def _number(found: Found, theirs: str, ours: str) -> float | None:
    """A value; None for NaN and infinity where these may be. Raises UsageError for what is none."""
    value = found.fields[theirs]
    number = float(value) if isinstance(value, bool | int | float) and abs(value) < 1e18 else value
    if ours in ("spl", "distance_to_goal") and isinstance(value, float) and not math.isfinite(value):
        return None
    if ours in ("success", "oracle_success"):
        fits, what = number in (0.0, 1.0), "0 or 1"
    else:
        allowed = SHARE if ours in SHARES else NOT_NEGATIVE
        fits, what = allowed.fits(number), allowed.what
    if not fits:
        raise UsageError(f"{found.where}: field {theirs!r}: expected {what}, found {short(value)}")
    return min(number, 1.0) if ours in SHARES else number


def _failure(scores: Mapping[str, Score], unreachable: bool) -> Failure:
    """How an episode ended, as far as its scores tell."""
    if scores["success"]:
        return "success"
    if unreachable:
        return "unreachable"
    return "passed_goal" if scores["oracle_success"] and scores["success"] is not None else "unknown"


def total_remarks(kind: ResultFormat, episodes: Sequence[Imported], totals: Sequence[Found]) -> Iterator[str]:
    """Where the last means of the files differ from those of their episodes."""
    for theirs, value in totals[-1].fields.items() if totals else ():
        ours = kind.totals.get(theirs)
        own = _mean(episodes, ours) if ours else None
        if own is None or not isinstance(value, int | float):
            continue
        if not math.isfinite(value):
            yield f"{totals[-1].where}: {theirs} is {value}; without the undefined values it is {own:.4f}"
        elif abs(own - value) > _CLOSE * (1.0 + abs(value)):
            yield f"DIFFERS: {totals[-1].where}: {theirs} is {value:.6g}, but its episodes give {own:.6g}"


def _mean(episodes: Sequence[Imported], ours: str) -> float | None:
    """Of the values that there are, or the number of episodes."""
    if ours == LENGTH:
        return float(len(episodes))
    values = [float(value) for one in episodes if isinstance(value := one.scores[ours], float)]
    return math.fsum(values) / len(values) if values else None


def score_remarks(episodes: Iterable[Imported], known: Mapping[str, Episode], reach: float) -> Iterator[str]:
    """Where scores of an episode contradict each other. known: of the dataset; reach: of success, meters."""
    counts: dict[str, list[str]] = {}
    for one in episodes:
        for what in _contradictions(one.scores, known.get(one.episode_id), reach):
            counts.setdefault(what, []).append(one.episode_id)
    for what, ids in counts.items():
        yield f"DIFFERS: {what} in {len(ids)} episodes, {ids[0]} first"


def _contradictions(scores: Mapping[str, Any], episode: Episode | None, reach: float) -> Iterator[str]:
    success, away, spl = scores["success"], scores["distance_to_goal"], scores["spl"]
    ndtw, sdtw = scores["ndtw"], scores["sdtw"]
    if success and away is not None and away >= reach:
        yield f"success {reach:g} m or more from the goal"
    if success and scores["oracle_success"] == 0.0:
        yield "success without oracle success"
    if None not in (spl, success) and spl > success:
        yield "SPL without success"
    if None not in (sdtw, success, ndtw) and abs(sdtw - success * ndtw) > _SDTW_CLOSE:
        yield f"SDTW more than {_SDTW_CLOSE:g} from success times nDTW"
    start, walked = episode.geodesic_distance if episode else None, scores["path_length"]
    if not success or spl is None or not start or walked is None or not math.isfinite(start):
        return
    if abs(spl - start / max(start, walked)) > _SPL_CLOSE:
        yield f"SPL more than {_SPL_CLOSE:g} from the one of path length and the dataset's shortest path"
