"""Walks in which expert and model take turns by chance, and every state is labeled by the expert (DAgger).

VLN-CE's form of it (arXiv 2004.02857, after arXiv 1011.0686): before every step a chance decides who acts; what is
learned at every frame is what the expert would do there, whoever acts. The expert follows the shortest path to the
goal. A walk ends with the STOP that is done, which may be wrong; what was done is what the model is told it did.
The expert stops closer to the goal than a model that drives alone comes: where it is to stop further away, and
STOP to be learned, `stop_within` says so.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Agent, Episode, Observation, Scalar, Sensor, StandsFor, Vec3
from vlnbench.rollout.agent_options import AgentOptions
from vlnbench.rollout.agents import code_digest, load_agent, recorded_name
from vlnbench.rollout.episode import SLOT, episode_seed
from vlnbench.training.collect.walk import PLACEHOLDER_ACTION, Done, GuidedEnv, Verdict
from vlnbench.traits import Describes, FeelsActions, Represents


@dataclass(frozen=True, kw_only=True)
class MixedOptions(AgentOptions):
    """Who drives beside the expert, and the chance with which the expert acts instead, at every step anew.

    overrule_stops: where the driver would stop and the expert would not, the expert acts from then on.
    """

    driver: str
    driver_options: AgentOptions = field(default_factory=AgentOptions)
    expert_share: float
    overrule_stops: bool = False

    @property
    def device_choice(self) -> str:
        return self.driver_options.device_choice


class Mixed:
    """An agent whose actions are the expert's by chance, drawn from the episode's seed."""

    options_type = MixedOptions

    def __init__(self, options: MixedOptions) -> None:
        """Raises UsageError where the expert would act beside a driver that goes on as if it had acted itself."""
        driver = load_agent(options.driver, options.driver_options)
        if (options.expert_share or options.overrule_stops) and not isinstance(driver, FeelsActions):
            raise UsageError(
                f"agent {options.driver!r} cannot drive beside the expert, it lacks feel(slot, action); it can "
                "drive alone (--relabel 0), and --dagger without --relabel corrects it by StreamVLN's rules"
            )
        self._driver: Agent = driver
        self._share, self._overrules = options.expert_share, options.overrule_stops
        self._draws: dict[int, random.Random] = {}
        self._taken: set[int] = set()
        self.sensors: frozenset[Sensor] = driver.sensors | {"oracle_action"}
        self.privileged = driver.privileged
        self.expects = driver.expects
        place = driver.stands_for.place if isinstance(driver, Represents) else {}
        self.stands_for = StandsFor(recorded_name(driver, options.driver), code_digest(driver), place)

    @property
    def identity(self) -> Mapping[str, Scalar]:
        """The driver's."""
        return self._driver.identity

    @property
    def description(self) -> str:
        """The driver's, if it has one."""
        return self._driver.description if isinstance(self._driver, Describes) else ""

    def reset(self, slot: int, episode: Episode, seed: int) -> None:
        self._draws[slot] = random.Random(seed)
        self._taken.discard(slot)
        self._driver.reset(slot, episode, seed)

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        driver = self._driver
        actions = driver.act({slot: seen.for_agent(driver.sensors) for slot, seen in observations.items()})
        for slot, seen in observations.items():
            assert seen.oracle_action is not None
            if self._overrules and actions[slot] == Action.STOP != seen.oracle_action:
                self._taken.add(slot)
            if self._draws[slot].random() < self._share or slot in self._taken:
                actions[slot] = seen.oracle_action
                assert isinstance(driver, FeelsActions)
                driver.feel(slot, seen.oracle_action)
        return actions

    def close(self) -> None:
        self._driver.close()


@dataclass(frozen=True, slots=True)
class Relabeling:
    """The guide of such walks: seed of the draws, after how many actions a walk is cut, and how far from the goal
    (meters, geodesic) the expert stops whatever it would do otherwise, None: nowhere."""

    seed: int
    longest: int
    stop_within: float | None = None

    def route(self, agent: Agent) -> RelabeledRoute:
        """The walk that the agent makes."""
        return RelabeledRoute(agent, self)


class RelabeledRoute:
    """Where the agent goes, with the expert's action at every frame."""

    def __init__(self, agent: Agent, rules: Relabeling) -> None:
        self._agent, self._rules = agent, rules

    def steps(self, env: GuidedEnv, episode: Episode) -> Iterator[Done]:
        """The walk until the STOP that is done; the frame before it is the last."""
        agent, observation = self._agent, env.reset(episode)
        shown = episode if agent.privileged else episode.for_agent()
        agent.reset(SLOT, shown, episode_seed(self._rules.seed, episode.episode_id, 0))
        label = self._label(env, episode, observation)
        yield Done(PLACEHOLDER_ACTION, observation, label=label)
        for _ in range(self._rules.longest):
            seen = replace(observation, oracle_action=label)
            action = Action(agent.act({SLOT: seen.for_agent(agent.sensors)})[SLOT])
            if action is Action.STOP:
                return
            observation = env.step(action)
            label = self._label(env, episode, observation)
            yield Done(int(action), observation, label=label)

    def verdict(self, env: GuidedEnv, episode: Episode, positions: Sequence[Vec3]) -> Verdict:
        """Keep every walk."""
        return Verdict(True, None)

    def _label(self, env: GuidedEnv, episode: Episode, observation: Observation) -> Action:
        """What the expert does at a frame, and is to be learned."""
        if observation.oracle_action is None:
            raise TypeError("the environment knows no expert: it lacks the sensor oracle_action")
        within = self._rules.stop_within
        if within is None:
            return observation.oracle_action
        assert observation.pose is not None
        there = env.geodesic_distance(observation.pose.position, episode.goals) <= within
        return Action.STOP if there else observation.oracle_action
