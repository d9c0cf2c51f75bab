"""Runs made up for the report, without a simulator."""

from __future__ import annotations

import json
import math
import random
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from tests.fakes import make_episode
from tests.runs import make_identity
from vlnbench.data.benchmarks import get_benchmark
from vlnbench.evaluation.columns.read import table_of
from vlnbench.evaluation.metrics import score
from vlnbench.evaluation.recorded import TabledRun
from vlnbench.evaluation.records import Row
from vlnbench.evaluation.summary import summarize_table
from vlnbench.interfaces import Action, Episode, Pose, Trajectory
from vlnbench.report.data import ReportRow, RunData
from vlnbench.report.failures import how_ended
from vlnbench.report.walks import walk as shown


def walk(episode: Episode, actions: list[int], blocked: frozenset[int] = frozenset()) -> Trajectory:
    """The trajectory of actions on a free plane; forward actions whose index is in `blocked` collide."""
    x, y, z = episode.start_position
    yaw = Pose(episode.start_position, episode.start_rotation).yaw
    poses, hits = [Pose((x, y, z), episode.start_rotation)], []
    for i, action in enumerate(actions):
        hits.append(action == Action.MOVE_FORWARD and i in blocked)
        if action == Action.MOVE_FORWARD and i not in blocked:
            x, z = x - 0.25 * math.sin(yaw), z - 0.25 * math.cos(yaw)
        elif action in (Action.TURN_LEFT, Action.TURN_RIGHT):
            yaw += math.radians(15.0 if action == Action.TURN_LEFT else -15.0)
        poses.append(Pose((x, y, z), (0.0, math.sin(yaw / 2), 0.0, math.cos(yaw / 2))))
    distances = tuple(min(math.dist(pose.position, goal) for goal in episode.goals) for pose in poses)
    return Trajectory(tuple(poses), tuple(map(Action, actions)), tuple(hits), distances)


def row_of(episode: Episode, trajectory: Trajectory | None, status: str = "ok", reason: str | None = None) -> Row:
    scores = asdict(score(trajectory, episode)) if trajectory is not None and status == "ok" else {}
    identity = {"benchmark": "houses-r2r", "fingerprint": "f", "split": "val_unseen", "repeat": 0, "seed": 1}
    return Row(
        **identity,
        episode_id=episode.episode_id,
        scene_id=episode.scene_id,
        trajectory_id=episode.trajectory_id,
        status=status,
        reason=reason,
        scores=scores,
    )


def entry_of(episode: Episode, trajectory: Trajectory | None, **how: Any) -> ReportRow:
    row = row_of(episode, trajectory, **how)
    return ReportRow(row, how_ended([row])[0], trajectory and shown(trajectory), episode)


def run_data(entries: list[ReportRow], **identity: str) -> RunData:
    """A run of these entries, all that were planned."""
    table = table_of(entry.row for entry in entries)
    said = make_identity(episodes=len(entries), split_size=len(entries), **identity)
    manifest = {"identity": asdict(said), "packages": {"numpy": "1"}}
    benchmark = get_benchmark("houses-r2r")
    run = TabledRun(folder=Path("run"), manifest=manifest, identity=said, benchmark=benchmark, table=table)
    known = {entry.row.episode_id: entry.episode for entry in entries if entry.episode is not None}
    return RunData(run, summarize_table(table, said), tuple(entries), known or None, None, None)


def random_run(count: int, seed: int = 0) -> RunData:
    """A run of `random_walks`."""
    return run_data([entry_of(episode, trajectory) for episode, trajectory in random_walks(count, seed)])


def random_walks(count: int, seed: int = 0) -> list[tuple[Episode, Trajectory]]:
    """Of the size of R2R-CE val_unseen's episodes: 57 actions, a tenth of them to the end of the budget."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(2, 8))) for _ in range(2000)]
    walks = []
    for i in range(count):
        episode = make_episode(i, scene=f"scene{i % 11}", distance=rng.uniform(4, 16))
        text = " ".join(rng.choices(words, k=rng.randint(10, 45)))
        episode = replace(episode, instruction=text, trajectory_id=str(i // 3))
        length = 500 if i % 10 == 0 else rng.randint(30, 90)
        actions = [*rng.choices([1, 2, 3], [6, 2, 2], k=length - 1), 0 if length < 500 else 1]
        walks.append((episode, walk(episode, actions, frozenset(rng.sample(range(length), 5)))))
    return walks


class Page(HTMLParser):
    """What a browser's parser finds: elements with their attributes, scripts with their text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.text = ""
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag
        if tag in ("script", "style"):
            (self.scripts if tag == "script" else self.styles).append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside == "style":
            self.styles[-1] += data
        else:
            self.text += data

    @property
    def payload(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.scripts[0])
        return found
