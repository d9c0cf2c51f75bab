"""The same episode of several runs: how it ended in each, and the ways that were walked, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vlnbench.errors import UsageError
from vlnbench.evaluation.choice.shape import scene_name
from vlnbench.evaluation.recorded import remake_split
from vlnbench.evaluation.records import Row, RowKey, read_rows, read_trajectories
from vlnbench.interfaces import Episode, Trajectory
from vlnbench.report.build import draw_floors
from vlnbench.report.data import ReportRow, RunData
from vlnbench.report.failures import Ending, how_ended, kinds
from vlnbench.report.maps import scene_storeys
from vlnbench.report.payload import storey_json
from vlnbench.report.walks import encode_path
from vlnbench.views.runs import NamedRun

Json = dict[str, Any]

MOST_WALKS = 10_000
"""Ways of all runs that a page holds; the runs that come after are left out."""

_KINDS = kinds(0.0)
"""Names and labels of endings, which no distance changes."""


def together(shown: Sequence[NamedRun], data_root: Path, env: str | None) -> tuple[Json, list[str]]:
    """Episodes that at least two runs of one benchmark and split have walked, by group, and what is left out.

    env: import string of what draws maps; None: no maps. Without the dataset below `data_root` there are neither
    instructions nor reference paths.
    """
    scenes: dict[str, Json] = {}
    groups, notes, walks = [], [], 0
    by_group: dict[tuple[object, ...], list[int]] = {}
    for i, each in enumerate(shown):
        by_group.setdefault(each.group, []).append(i)
    for members in (members for members in by_group.values() if len(members) > 1):
        taken = []
        for i in members:
            walks += len(shown[i].run.table)
            if walks > MOST_WALKS:
                notes.append(
                    f"{shown[i].name} is left out of the episodes side by side: more than {MOST_WALKS} ways"
                )
                walks -= len(shown[i].run.table)
            else:
                taken.append(i)
        if len(taken) > 1:
            groups.append(_group([(i, shown[i]) for i in taken], data_root, env, scenes, notes))
    turn = shown[groups[0]["runs"][0]].run.benchmark.body.turn_deg if groups else 0.0
    return {
        "turn": turn,
        "kinds": [{"name": name, "label": kind.label} for name, kind in _KINDS.items()],
        "scenes": [{"name": name, **scene} for name, scene in scenes.items()],
        "groups": groups,
    }, notes


def _group(
    members: Sequence[tuple[int, NamedRun]],
    data_root: Path,
    env: str | None,
    scenes: dict[str, Json],
    notes: list[str],
) -> Json:
    """Episodes of runs of one benchmark and split, in the order of their ids."""
    episodes, data = _episodes(members, data_root, notes)
    walked: dict[tuple[str, int], list[Json | None]] = {}
    first: dict[tuple[str, int], Row] = {}
    entries: list[ReportRow] = []
    for place, (_, each) in enumerate(members):
        rows, trajectories = _walked(each.run.folder, notes)
        for row, ended in zip(rows, how_ended(rows), strict=True):
            name = (row.episode_id, row.repeat)
            if name not in first:
                first[name] = row
                entries.append(ReportRow(row, ended, None, episodes.get(row.episode_id)))
            walked.setdefault(name, [None] * len(members))[place] = _walk(row, ended, trajectories.get(row.key))
    drawn = scene_storeys(entries)
    if data is not None and env is not None:
        drawn, _ = draw_floors(replace(data, entries=tuple(entries)), env)
    for scene, storeys in drawn.items():
        scenes.setdefault(scene_name(scene), {"storeys": [storey_json(storey) for storey in storeys]})
    index = {name: i for i, name in enumerate(scenes)}
    several = {name for name, found in walked.items() if sum(walk is not None for walk in found) > 1}
    return {
        "runs": [i for i, _ in members],
        "episodes": [
            {
                "id": name[0] if not name[1] else f"{name[0]}#{name[1]}",
                "scene": index[scene_name(first[name].scene_id)],
                "walks": walked[name],
                **_told(episodes.get(name[0])),
            }
            for name in sorted(several, key=_order)
        ],
    }


def _order(name: tuple[str, int]) -> tuple[int, str, int]:
    """Ids that are numbers in their order, then others."""
    text, repeat = name
    return (len(text), text, repeat) if text.isdigit() else (1000, text, repeat)


def _walked(folder: Path, notes: list[str]) -> tuple[list[Row], dict[RowKey, Trajectory]]:
    """Rows and trajectories of a run, as far as they can be read."""
    rows: list[Row] = []
    try:
        rows = read_rows(folder)
        return rows, read_trajectories(folder)
    except (UsageError, OSError) as error:
        notes.append(str(error))
        return rows, {}


def _episodes(
    members: Sequence[tuple[int, NamedRun]], data_root: Path, notes: list[str]
) -> tuple[dict[str, Episode], RunData | None]:
    """Episodes by id, from the dataset below `data_root`, and where their scenes are."""
    found: dict[str, Episode] = {}
    seen: set[tuple[object, ...]] = set()
    data: RunData | None = None
    for _, each in members:
        if each.shared in seen:
            continue
        seen.add(each.shared)
        try:
            plan, split = remake_split(each.run, data_root)
        except UsageError:
            continue
        found |= {episode.episode_id: episode for episode in plan.episodes}
        data = RunData(each.run, each.summary, (), None, split.scenes_dir, None)
    if data is None:
        identity = members[0][1].run.identity
        notes.append(
            f"Instructions, reference paths and maps of {identity.benchmark} {identity.split}: no dataset at hand"
        )
    return found, data


def _told(episode: Episode | None) -> Json:
    if episode is None:
        return {}
    truth = episode.ground_truth
    reference = truth.locations if truth is not None else episode.reference_path
    told: Json = {"text": episode.instruction, "goals": [[round(100 * x) for x in goal] for goal in episode.goals]}
    if reference:
        told["ref"] = encode_path(np.array(reference, dtype=np.float64).reshape(-1, 3))
    return told


def _walk(row: Row, ended: Ending, trajectory: Trajectory | None) -> Json:
    """How an episode ended: kind, SPL and NE, steps; and its way in centimeters, if it was recorded."""
    result: Json = {"kind": list(_KINDS).index(ended)}
    if row.status == "ok":
        for name, short, digits in (("spl", "spl", 4), ("distance_to_goal", "ne", 2), ("steps", "steps", 0)):
            value = row.scores.get(name)
            result[short] = None if not isinstance(value, int | float) else round(float(value), digits)
    if row.reason is not None:
        result["reason"] = row.reason
    if trajectory is not None:
        positions = trajectory.positions
        moved = np.concatenate([[True], np.any(positions[1:] != positions[:-1], axis=1)])
        result["path"] = encode_path(positions[moved])
        result["yaw"] = round(float(np.degrees(trajectory.poses[-1].yaw)))
    return result
