"""Synthetic results of nine episodes in the formats of other programs. Nothing in them is real.

Success in episodes 0 to 3 at SPL 0.5, oracle success in 0 to 5, 1 m or 6 m from the goal, nDTW 0.25, 10 to 18
steps: SR 4/9, SPL 2/9, OS 6/9, NE 34/9 m, SDTW 1/9, 14 steps.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from tests.fakes import PlaneEnv
from tests.runs import nine_episodes, write_dataset

SUCCEEDED = frozenset(range(4))
Outcome = dict[str, Any]


class Plane(PlaneEnv):
    """An endless plane, as `--env`."""

    def __init__(self, *_: object) -> None:
        super().__init__()


def data(root: Path) -> Path:
    """A data root with nine episodes as those of R2R-CE."""
    write_dataset(root)
    target = root / "datasets" / "r2r" / "val_unseen"
    shutil.copytree(root / "datasets" / "houses_r2r" / "val_unseen", target)
    return root


def outcomes(succeeded: Collection[int] = SUCCEEDED) -> dict[str, Outcome]:
    return {
        str(i): {
            "success": float(i in succeeded),
            "spl": 0.5 if i in succeeded else 0.0,
            "oracle_success": float(i in succeeded or i < 6),
            "distance_to_goal": 1.0 if i in succeeded else 6.0,
            "ndtw": 0.25,
            "path_length": 2 * (4.0 + i / 2),
            "steps_taken": 10.0 + i,
            "collisions": 0.125,
        }
        for i in range(9)
    }


def by_scene(episode_id: str, outcome: Outcome, number: Callable[[str], Any] = str) -> Outcome:
    """A line of StreamVLN's evaluator."""
    names = {"success": "success", "spl": "spl", "os": "oracle_success", "ne": "distance_to_goal"}
    return {
        "scene_id": "abc"[int(episode_id) % 3],
        "episode_id": number(episode_id),
        **{theirs: outcome[name] for theirs, name in names.items()},
        "steps": int(outcome["steps_taken"]),
        "episode_instruction": "walk on",
    }


TOTALS = {"sucs_all": 4 / 9, "spls_all": 2 / 9, "oss_all": 6 / 9, "ones_all": 34 / 9, "length": 9}


def streamvln(folder: Path, found: Mapping[str, Outcome], totals: Mapping[str, float] = TOTALS) -> None:
    lines = [json.dumps(by_scene(name, outcome)) + "\n" for name, outcome in found.items()]
    write(folder / "val_unseen" / "result.json", "".join(lines) + json.dumps(totals))


def internnav(folder: Path, found: Mapping[str, Outcome]) -> None:
    lines = [{**by_scene(name, one, int), "ndtw": one["ndtw"]} for name, one in found.items()]
    write(folder / "val_unseen" / "progress.json", "".join(json.dumps(line) + "\n" for line in lines))
    totals = {**TOTALS, "nes_all": 34 / 9, "ndtws_all": 0.25}
    write(folder / "val_unseen" / "result.json", json.dumps(totals) + "\n")


def navila(folder: Path, found: Mapping[str, Outcome]) -> None:
    parts = [list(found)[:5], list(found)[5:]]
    for i, names in enumerate(parts):
        write(folder / f"val_unseen_2-{i}.json", json.dumps({name: found[name] for name in names}, indent=4))


def uninavid(folder: Path, found: Mapping[str, Outcome]) -> None:
    for name, one in found.items():
        kept = ("success", "spl", "oracle_success", "distance_to_goal", "path_length")
        content = {"id": name, **{key: one[key] for key in kept}, "success": bool(one["success"])}
        write(folder / "val_unseen" / "log" / f"stats_{name}.json", json.dumps(content, indent=4))


def vlnce(folder: Path, found: Mapping[str, Outcome], checkpoint: str = "7") -> None:
    means = {name: sum(one[name] for one in found.values()) / len(found) for name in found["0"]}
    write(folder / f"stats_ckpt_{checkpoint}_val_unseen.json", json.dumps(means))
    for rank in range(2):
        part = {name: one for name, one in found.items() if int(name) % 2 == rank}
        write(folder / f"stats_ep_ckpt_{checkpoint}_val_unseen_r{rank}_w2.json", json.dumps(part))


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


WRITERS: dict[str, Callable[..., None]] = {
    "streamvln": streamvln,
    "janusvln": streamvln,
    "navila": navila,
    "uninavid": uninavid,
    "vlnce": vlnce,
    "internnav": internnav,
}
EPISODES = nine_episodes()
