"""What a step costs behind the wire: `python -m benchmarks.rollout.remote`, on one machine."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np

from agents.base import EpisodeAgent
from tests.fakes import make_episode
from tests.served import connected
from vlnbench.interfaces import Action, Agent, Observation

FORWARD = "benchmarks.rollout.remote"


class Forward(EpisodeAgent):
    """Does nothing but answer."""

    sensors = frozenset({"rgb", "depth"})

    def act_one(self, observation: Observation) -> Action:
        return Action.MOVE_FORWARD


def milliseconds(agent: Agent, slots: int, rgb: bool, depth: bool, steps: int = 100) -> float:
    """Median time of `act` per call, with frames of 640×480."""
    noise = np.random.default_rng(0)
    frame = noise.integers(0, 256, (480, 640, 3), dtype=np.uint8) if rgb else None
    far = noise.random((480, 640), dtype=np.float32) if depth else None
    for slot in range(slots):
        agent.reset(slot, make_episode(slot), slot)
    times = []
    for step in range(steps):
        seen = {slot: Observation("Walk ahead.", step, frame, far) for slot in range(slots)}
        start = time.perf_counter()
        agent.act(seen)
        times.append(time.perf_counter() - start)
    return 1000 * float(np.median(times))


def main() -> None:
    print("| observation | episodes at once | MB | ms here | ms remote |\n|---|---|---|---|---|")
    command = [sys.executable, "-m", "vlnbench", "serve", "--agent", f"{FORWARD}:Forward", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        client = connected(server.stderr.readline().split(" at ")[1].split(";")[0])
        for name, rgb, depth in (("nothing", False, False), ("RGB", True, False), ("RGB and depth", True, True)):
            for slots in (1, 4):
                size = slots * (rgb * 480 * 640 * 3 + depth * 480 * 640 * 4) / 1e6
                here, there = (milliseconds(agent, slots, rgb, depth) for agent in (Forward(), client))
                print(f"| {name} | {slots} | {size:.2f} | {here:.3f} | {there:.2f} |")
        client.close()
        server.terminate()


if __name__ == "__main__":
    main()
