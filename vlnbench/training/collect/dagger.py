"""Walks in which a model drives and the expert puts it back on its way (DAgger with p = 0).

The rules are those of StreamVLN's collector (arXiv 2507.05240): the expert follows shortest paths to the next
waypoint of the reference path that has not been reached. It takes over until that waypoint when the model stops
far from the goal, or has disagreed with it too often. What is stored are the actions that were done, whoever chose
them. Kept are walks that reach the goal and show a detour: what the reference walks do not.

Where the rules leave something open, this module does the following. A waypoint counts as reached before actions
are compared. Disagreements are counted since the start or the last time the expert took over; reaching a waypoint
does not clear them. A STOP of the model near the goal is a disagreement, but the expert acts for this one step
only. The walk ends when the last waypoint is reached, so that the STOP there, which training adds, is right. The
length of a walk is compared with the shortest path from start to goal, also where the reference path is longer
(RxR). While the expert drives, the model sees every frame; the next time it is asked it begins its window anew,
for it knows nothing of what was done instead of its answers. Episodes that share a path are walked each on its
own, for their instructions lead elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, runtime_checkable

from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Agent, Embodiment, Episode, Observation, Vec3
from vlnbench.rollout.agents import AgentFacts
from vlnbench.rollout.episode import SLOT, episode_seed
from vlnbench.training.collect.walk import GOAL_RADIUS_M, PLACEHOLDER_ACTION, Done, GuidedEnv, Verdict, waypoints
from vlnbench.traits import Watches

REACHED_M = 1.8
"""How close to a waypoint counts as reached; the last one takes GOAL_RADIUS_M."""
DISAGREEMENTS_PER_ACTION, MOST_DISAGREEMENTS = 0.8, 12
"""The expert takes over above this many disagreements: per mean number of reference actions between waypoints, and
in all."""
KEPT_WITHIN_M = 0.5
CORRECTED_BELOW, UNCORRECTED_BELOW = 0.93, 0.85
"""Kept are walks that end so near the goal, and whose shortest path is less than this part of their length: with
and without the expert having taken over."""


def check_driver(agent: AgentFacts, body: Embodiment, corrected: bool = True) -> None:
    """Raise UsageError for an agent that does not fit the body or, if it is to be `corrected`, cannot be."""
    conflicts = agent.expects.conflicts(body)
    if conflicts:
        listed = ", ".join(f"{name} {wanted} (it has {has})" for name, (wanted, has) in conflicts.items())
        raise UsageError(f"agent {agent.name!r} does not fit the body that walks: needs {listed}")
    if corrected and not agent.watches:
        raise UsageError(
            f"agent {agent.name!r} cannot be corrected, it lacks watch(observations); derive it from "
            "agents.base.EpisodeAgent"
        )


@dataclass(frozen=True, slots=True)
class Correction:
    """The guide that lets an agent drive and corrects it.

    `success_m`: a STOP this far from the goal (meters, geodesic) or farther is wrong.
    """

    success_m: float

    def route(self, agent: Agent) -> CorrectedRoute:
        """Raises TypeError for an agent that cannot be corrected."""
        if not isinstance(agent, CorrectableAgent):
            raise TypeError("the agent cannot be corrected: it lacks watch(observations)")
        return CorrectedRoute(agent, self.success_m)


@runtime_checkable
class CorrectableAgent(Agent, Watches, Protocol):
    """An agent whose actions may be overruled."""


class CorrectedRoute:
    """The route that an agent takes with the expert's corrections."""

    def __init__(self, agent: CorrectableAgent, success_m: float) -> None:
        self._agent = agent
        self._success_m = success_m
        self._corrected = False

    def steps(self, env: GuidedEnv, episode: Episode) -> Iterator[Done]:
        """The walk until the last waypoint is reached."""
        observation = env.reset(episode)
        agent = self._agent
        agent.reset(
            SLOT,
            episode if agent.privileged else episode.for_agent(),
            episode_seed(0, episode.episode_id, 0),
        )
        self._corrected = expert_drives = False
        disagreements, most = 0, _most_disagreements(episode)
        yield Done(PLACEHOLDER_ACTION, observation)
        ahead = waypoints(episode)
        while ahead:
            action = env.shortest_path_action(ahead[0], REACHED_M if len(ahead) > 1 else GOAL_RADIUS_M)
            if action == Action.STOP:
                ahead, expert_drives = ahead[1:], False
                continue
            seen = {SLOT: observation.for_agent(agent.sensors)}
            if not expert_drives:
                chosen = Action(agent.act(seen)[SLOT])
                disagreements += chosen != action
                if disagreements > most or (chosen == Action.STOP and self._is_far(env, episode, observation)):
                    self._corrected = expert_drives = True
                    disagreements = 0
                elif chosen != Action.STOP:
                    observation = env.step(chosen)
                    yield Done(int(chosen), observation)
                    continue
            agent.watch(seen)
            observation = env.step(action)
            yield Done(int(action), observation)

    def verdict(self, env: GuidedEnv, episode: Episode, positions: Sequence[Vec3]) -> Verdict:
        """Judge the walk that `steps` took last."""
        if not env.geodesic_distance(positions[-1], episode.goals) < KEPT_WITHIN_M:
            return Verdict(False, f"ended {KEPT_WITHIN_M:g} m or more from the goal")
        shortest = env.geodesic_distance(positions[0], episode.goals)
        length = sum(math.dist(before, after) for before, after in pairwise(positions))
        ratio = shortest / max(shortest, length)
        if self._corrected and ratio < CORRECTED_BELOW:
            return Verdict(True, "the expert took over")
        if ratio < UNCORRECTED_BELOW:
            return Verdict(True, "a detour without the expert")
        return Verdict(False, "no detour worth keeping")

    def _is_far(self, env: GuidedEnv, episode: Episode, observation: Observation) -> bool:
        assert observation.pose is not None
        return not env.geodesic_distance(observation.pose.position, episode.goals) < self._success_m


def _most_disagreements(episode: Episode) -> float:
    """How many disagreements are tolerated; reference actions between waypoints are a whole number, at least 1."""
    assert episode.ground_truth is not None
    legs = max(1, len(waypoints(episode)) - 1)
    per_leg = max(1, len(episode.ground_truth.actions) // legs)
    return min(DISAGREEMENTS_PER_ACTION * per_leg, MOST_DISAGREEMENTS)
