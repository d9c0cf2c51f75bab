"""An agent of one's own: turns where the text says so, and walks on where depth shows room.

cd examples
vlnbench eval --agent custom_agent:Follower --data-root ../data --episodes 20
"""

from __future__ import annotations

import re

from agents.base import EpisodeAgent
from vlnbench.interfaces import Action, Conventions, Episode, Observation, Sensor

TURN_DEG = 15.0
STEPS_PER_CLAUSE = 9
CLEAR_M = 0.6


class Follower(EpisodeAgent):
    """Reads the instruction clause by clause; every clause is a turn and a few steps ahead."""

    sensors: frozenset[Sensor] = frozenset({"depth"})  # nothing else is rendered
    expects = Conventions(turn_deg=TURN_DEG)  # a benchmark with other turns is refused before the run

    def begin(self, episode: Episode, seed: int) -> None:
        """State of one episode. What is set here cannot leak into the next."""
        self.plan: list[Action] = []
        for clause in re.split(r"[.,;]| and | then ", episode.instruction.lower()):
            side = re.search(r"\b(left|right)\b", clause)
            if side and "turn" in clause:
                turn = Action.TURN_LEFT if side[1] == "left" else Action.TURN_RIGHT
                self.plan += [turn] * round(90 / TURN_DEG)
            self.plan += [Action.MOVE_FORWARD] * (STEPS_PER_CLAUSE if clause.strip() else 0)
        self.avoided = 0

    def act_one(self, observation: Observation) -> Action:
        """The next action; `observation.depth` is float32 (height, width) in meters."""
        if not self.plan:
            return Action.STOP
        assert observation.depth is not None
        height, width = observation.depth.shape
        ahead = observation.depth[height // 3 : height * 5 // 6, width * 2 // 5 : width * 3 // 5].min()
        if self.plan[0] == Action.MOVE_FORWARD and ahead < CLEAR_M and self.avoided < 360 / TURN_DEG:
            self.avoided += 1
            return Action.TURN_RIGHT
        self.avoided = 0
        return self.plan.pop(0)
