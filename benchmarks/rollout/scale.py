"""What a run of 100,000 episodes costs beside agents and simulators, with agents that do not think.

Run as a script: `python -m benchmarks.rollout.scale --out FOLDER`. A run of so many episodes with several
agent processes is ended soon; copies of its rows and trajectories then stand for all but the last episodes, and
it is resumed to its end. Every command that reads runs is given it, or as many runs of that size as there were
agents. Prints seconds, peak memory of the command's process and sizes of files; what is done already in the folder
is not done again, so that it can be run in pieces (`--only`). `--live` says how many episodes are really run at
each end.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agents.base import EpisodeAgent
from tests.fakes import PlaneEnv, make_episode
from tests.runs import write_dataset
from vlnbench.evaluation.records import ATTEMPTS, MANIFEST, ROWS, SUMMARY, TRAJECTORIES
from vlnbench.interfaces import Action, Observation
from vlnbench.rollout.episode import episode_seed

HERE = "benchmarks.rollout.scale"
STEPS = 55
"""Steps of an episode, as many as those of the small model on houses."""


DISTANCES = 18
"""Episodes are of so many lengths, and those of one length end alike."""


class Walks(EpisodeAgent):
    """Walks in a wide circle, and stops."""

    def act_one(self, observation: Observation) -> Action:
        if observation.step == STEPS - 1:
            return Action.STOP
        return Action.TURN_LEFT if observation.step % 5 == 4 else Action.MOVE_FORWARD


class Plane(PlaneEnv):
    """A free plane, whatever the scene."""

    def __init__(self, *_: Any) -> None:
        super().__init__()


@dataclass(frozen=True, slots=True)
class Size:
    """How much is rehearsed, and where. live: episodes that are really run, first and last."""

    folder: Path
    episodes: int
    agents: int
    scenes: int
    live: int

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def runs(self) -> list[Path]:
        return [self.folder / f"run-{i}" for i in range(self.agents)]


@dataclass(frozen=True, slots=True)
class Spent:
    """What a command took: seconds on the clock and of its processes, and the peak memory of the largest one."""

    seconds: float
    cpu: float
    peak: int
    code: int


def measured(command: Sequence[str], stop: Callable[[], bool] | None = None) -> Spent:
    """Run vlnbench; stop: when it says so, the command is asked to end."""
    start = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "vlnbench", *command], stdout=subprocess.DEVNULL)
    while True:
        ended, status, usage = os.wait4(process.pid, 0 if stop is None else os.WNOHANG)
        if ended:
            break
        if stop is not None and stop():
            process.send_signal(signal.SIGTERM)
            stop = None
        time.sleep(0.2)
    process.returncode = os.waitstatus_to_exitcode(status)
    cpu = usage.ru_utime + usage.ru_stime
    return Spent(time.monotonic() - start, cpu, usage.ru_maxrss * 1024, process.returncode)


def make_data(size: Size) -> None:
    """A dataset of so many episodes; 20 m long at most, so that their scores differ."""
    episodes = []
    for i in range(size.episodes):
        scene = f"scene{i % size.scenes:04d}"
        episodes.append(
            replace(
                make_episode(i, scene=scene, distance=2.0 + i % DISTANCES),
                trajectory_id=str(i // 3),
                instruction_id=str(i),
            )
        )
    write_dataset(size.data, "rxr-ce", episodes)
    (size.data / "scene_datasets" / "mp3d").mkdir(parents=True, exist_ok=True)


def eval_command(size: Size, agents: int) -> list[str]:
    options = {
        "benchmark": "rxr-ce",
        "agent": f"{HERE}:Walks",
        "env": f"{HERE}:Plane",
        "data-root": size.data,
        "out": size.runs[0],
    }
    return [
        "eval",
        *(f"--{name}={value}" for name, value in options.items()),
        f"--agents={agents}",
        "--envs=1",
        "--allow-partial",
    ]


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def fill(size: Size) -> None:
    """Copy what was run for all but the last episodes of the run."""
    folder = size.runs[0]
    rows = [json.loads(line) for line in (folder / ROWS).read_text().splitlines()]
    trajectories = [json.loads(line) for line in (folder / TRAJECTORIES).read_text().splitlines()]
    walked = {entry["key"][2]: entry for entry in trajectories}
    alike = {int(row["episode_id"]) % DISTANCES: row for row in rows}
    done = {row["episode_id"] for row in rows}
    left = [i for i in range(size.episodes) if str(i) not in done][: size.episodes - size.live - len(done)]
    with (folder / ROWS).open("a") as more_rows, (folder / TRAJECTORIES).open("a") as more_trajectories:
        for i in left:
            row = alike[i % DISTANCES]
            scene = f"scene{i % size.scenes:04d}"
            own = {"episode_id": str(i), "trajectory_id": str(i // 3), "scene_id": f"{scene}/{scene}.glb"}
            own["seed"] = episode_seed(0, str(i), 0)
            entry = walked[row["episode_id"]]
            more_rows.write(json.dumps({**row, **own}, separators=(",", ":")) + "\n")
            key = [*entry["key"][:2], str(i), 0]
            more_trajectories.write(json.dumps({**entry, "key": key}, separators=(",", ":")) + "\n")


def make_others(size: Size) -> None:
    """Runs of other agents, alike but for the name and some successes."""
    first = size.runs[0]
    manifest = json.loads((first / MANIFEST).read_text())
    rows = [json.loads(line) for line in (first / ROWS).read_text().splitlines()]
    for number, folder in enumerate(size.runs[1:], start=1):
        folder.mkdir(exist_ok=True)
        changed = {**manifest, "identity": {**manifest["identity"], "agent": f"agent-{number}"}}
        with (folder / ROWS).open("w") as file:
            for i, row in enumerate(rows):
                success = float((i * (number + 7)) % 10 < number)
                file.write(json.dumps({**row, "scores": {**row["scores"], "success": success}}) + "\n")
        for name in (TRAJECTORIES, ATTEMPTS):
            (folder / name).unlink(missing_ok=True)
            os.link(first / name, folder / name)
        (folder / MANIFEST).write_text(json.dumps(changed))


def results(size: Size) -> Path:
    """A folder of results without runs."""
    folder = size.folder / "results"
    folder.mkdir(exist_ok=True)
    shutil.copy(Path(__file__).parents[2] / "results" / "published.json", folder)
    return folder


def phases(size: Size) -> Mapping[str, Callable[[], Spent]]:
    """Everything that is measured, in order."""
    first, data_root = size.runs[0], f"--data-root={size.data}"
    command = eval_command(size, size.agents)
    every = list(map(str, size.runs))
    board = f"--results={results(size)}"
    return {
        "eval, begun": lambda: measured(command, lambda: lines(first / ROWS) >= size.live),
        "eval, resumed": lambda: measured(command),
        "eval, complete already": lambda: measured(command),
        "status": lambda: measured(["status", str(first)]),
        "rescore": lambda: measured(["rescore", str(first), data_root]),
        "report": lambda: measured(["report", str(first), data_root, f"--env={HERE}:Plane"]),
        "compare": lambda: measured(["compare", *every[:2]]),
        f"rank {size.agents} runs": lambda: measured(["rank", *every]),
        "leaderboard --add": lambda: measured(["leaderboard", every[0], "--add", board]),
        f"leaderboard of {size.agents} runs": lambda: measured(["leaderboard", *every, board]),
    }


def show(size: Size, done: Mapping[str, Any]) -> None:
    print(f"\n{size.episodes:,} episodes of {STEPS} steps, {size.scenes} scenes, {size.agents} agents\n")
    print(f"{'':26s} {'seconds':>8s} {'CPU s':>8s} {'peak MiB':>9s}")
    for name, spent in done.items():
        failed = f"  exit code {spent['code']}" if spent["code"] else ""
        print(f"{name:26s} {spent['seconds']:8.1f} {spent['cpu']:8.1f} {spent['peak'] / 2**20:9.0f}{failed}")
    for name in (ROWS, TRAJECTORIES, SUMMARY, "report.html"):
        path = size.runs[0] / name
        if path.exists():
            print(
                f"{name:26s} {path.stat().st_size / 1e6:8.1f} MB, {path.stat().st_size / size.episodes:.0f} B each"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--episodes", type=int, default=100_000)
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--scenes", type=int, default=200)
    parser.add_argument("--only", nargs="+", default=[], help="phases to do (again); default those not done yet")
    parser.add_argument("--live", type=int, default=2000)
    options = parser.parse_args()
    size = Size(options.out, options.episodes, options.agents, options.scenes, options.live)
    size.folder.mkdir(parents=True, exist_ok=True)
    notes = size.folder / "scale.json"
    done: dict[str, Any] = json.loads(notes.read_text()) if notes.exists() else {}
    if not size.data.exists():
        make_data(size)
    for name, phase in phases(size).items():
        if not any(map(name.startswith, options.only)) and (options.only or name in done):
            continue
        if name.startswith(("compare", "rank", "leaderboard of")) and not size.runs[-1].exists():
            make_others(size)
        if name == "eval, resumed":
            fill(size)
        spent = phase()
        done[name] = {"seconds": spent.seconds, "cpu": spent.cpu, "peak": spent.peak, "code": spent.code}
        notes.write_text(json.dumps(done, indent=1))
        print(f"{name}: {math.ceil(spent.seconds)} s", file=sys.stderr, flush=True)
    show(size, done)


if __name__ == "__main__":
    main()
