"""Recorded runs on a free plane, with their datasets on disk, for what works on run folders."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agents.scripted import RandomAgent
from tests.fakes import PlaneEnv, make_episode
from vlnbench.data.benchmarks import get_benchmark
from vlnbench.data.episodes import load_split
from vlnbench.evaluation.evaluate import Plan, evaluate, make_plan
from vlnbench.evaluation.identity import Identity
from vlnbench.interfaces import Agent, Episode
from vlnbench.rollout.inline import Inline

FILES = {
    "houses-r2r": "houses_r2r/val_unseen/val_unseen",
    "rxr-ce": "RxR_VLNCE_v0/val_unseen/val_unseen_guide",
}


class BreaksOnFive(RandomAgent):
    def begin(self, episode: Episode, seed: int) -> None:
        if episode.episode_id == "5":
            raise RuntimeError("the fifth is too much")
        super().begin(episode, seed)


def make_identity(**fields: Any) -> Identity:
    """The identity of a made-up run; `fields` are other than these."""
    given: dict[str, Any] = {
        "benchmark": "houses-r2r",
        "fingerprint": "f" * 12,
        "split": "val_unseen",
        "dataset_sha256": "d" * 64,
        "dataset_version": "houses-2",
        "partial": False,
        "episodes": 9,
        "split_size": 9,
        "episodes_sha256": "e" * 64,
        "agent": "made-up",
        "agent_code": None,
        "agent_identity": {},
        "simulator": "plane-1",
        "seed": 0,
        "repeats": 1,
    }
    return Identity(**(given | fields))


def nine_episodes() -> list[Episode]:
    return [make_episode(i, scene="abc"[i % 3], distance=4.0 + i / 2) for i in range(9)]


def write_dataset(root: Path, benchmark: str = "houses-r2r", episodes: Sequence[Episode] | None = None) -> Path:
    """Write episodes and ground truth in the benchmark's format below a data root; returns the root."""
    episodes = nine_episodes() if episodes is None else episodes
    truths = {
        episode.episode_id: {"locations": episode.ground_truth.locations, "actions": episode.ground_truth.actions}
        for episode in episodes
        if episode.ground_truth is not None
    }
    contents = {".json.gz": {"episodes": list(map(_entry, episodes))}, "_gt.json.gz": truths}
    for suffix, content in contents.items():
        path = root / "datasets" / f"{FILES[benchmark]}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))
    return root


def _entry(episode: Episode) -> dict[str, Any]:
    instruction = {"instruction_text": episode.instruction, "language": "en-US"}
    if episode.instruction_id is not None:
        instruction["instruction_id"] = episode.instruction_id
    return {
        "episode_id": episode.episode_id,
        "trajectory_id": episode.trajectory_id,
        "scene_id": episode.scene_id,
        "start_position": episode.start_position,
        "start_rotation": episode.start_rotation,
        "info": {"geodesic_distance": episode.geodesic_distance, "role": "guide"},
        "goals": [{"position": goal, "radius": 3.0} for goal in episode.goals],
        "instruction": instruction,
        "reference_path": episode.reference_path,
    }


def with_instruction_ids(numbers: Sequence[int]) -> list[Episode]:
    return [replace(episode, instruction_id=str(n)) for episode, n in zip(nine_episodes(), numbers, strict=False)]


def record(root: Path, agent: Agent, folder: Path, benchmark: str = "houses-r2r", **options: Any) -> Plan:
    """Evaluate an agent on the dataset below `root`; `options` are those of `make_plan`."""
    protocol = get_benchmark(benchmark)
    settings = {"count": None, "seed": 0, "repeats": 1, **options}
    plan = make_plan(protocol, load_split(protocol, "val_unseen", root, allow_partial=True), "agent", **settings)
    evaluate(plan, Inline(agent, PlaneEnv()), folder)
    return plan


def train(*command: str) -> str:
    """What a training says; a process of its own, for one process trains once."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "vlnbench", "train", *command], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr
