"""The contract of `Agent` and its traits as tests to inherit."""

from __future__ import annotations

import json
import math

import numpy as np

from vlnbench.interfaces import Action, Agent, Episode, Observation, Pose, Scalar, StandsFor
from vlnbench.traits import ActsAhead, Describes, Remarks, Reports, Represents


class AgentConformance:
    """Every `Agent` passes these. Override `make_agent`; `make_episode` and `observe` fit most agents."""

    def make_agent(self) -> Agent:
        """The agent under test; every call makes another one."""
        raise NotImplementedError

    def make_episode(self) -> Episode:
        """An episode that the agent can be given."""
        return Episode(
            episode_id="1",
            trajectory_id="1",
            scene_id="scene.glb",
            start_position=(0.0, 0.0, 0.0),
            start_rotation=(0.0, 0.0, 0.0, 1.0),
            instruction="Walk past the sofa and stop at the door.",
            goals=((0.0, 0.0, -3.0),),
        )

    def observe(self, agent: Agent, step: int) -> Observation:
        """An observation with every sensor filled in, cut down to what the agent may see."""
        camera = agent.expects
        height, width = camera.height or 48, camera.width or 64
        noise = np.random.default_rng(step)
        full = Observation(
            instruction=self.make_episode().instruction,
            step=step,
            rgb=noise.integers(0, 256, (height, width, 3), dtype=np.uint8),
            depth=noise.random((height, width), dtype=np.float32) * 10,
            pose=Pose((0.0, 0.0, -0.25 * step), (0.0, 0.0, 0.0, 1.0)),
            oracle_action=Action.MOVE_FORWARD,
        )
        return full.for_agent(agent.sensors)

    def run(self, agent: Agent, slots: tuple[int, ...], steps: int = 5, seed: int = 7) -> dict[int, list[Action]]:
        """Actions per slot, all slots in the same episode; a slot ends when it stops."""
        episode = self.make_episode() if agent.privileged else self.make_episode().for_agent()
        for slot in slots:
            agent.reset(slot, episode, seed)
        taken: dict[int, list[Action]] = {slot: [] for slot in slots}
        for step in range(steps):
            running = [slot for slot in slots if Action.STOP not in taken[slot]]
            if not running:
                break
            actions = agent.act({slot: self.observe(agent, step) for slot in running})
            assert set(actions) == set(running), "one action for every slot that was given, and no other"
            for slot, action in actions.items():
                taken[slot].append(Action(action))
        return taken

    def test_implements_the_protocol(self) -> None:
        assert isinstance(self.make_agent(), Agent)

    def test_acts_in_every_slot(self) -> None:
        agent = self.make_agent()
        assert all(self.run(agent, (0, 3)).values())
        agent.close()

    def test_a_slot_does_not_feel_its_neighbors(self) -> None:
        agent = self.make_agent()
        alone = self.run(agent, (0,))[0]
        together = self.run(agent, (0, 1, 2))
        assert list(together.values()) == [alone] * 3
        agent.close()

    def test_the_same_seed_gives_the_same_actions(self) -> None:
        first, second = self.make_agent(), self.make_agent()
        assert self.run(first, (0,)) == self.run(second, (0,))
        first.close()
        second.close()

    def test_its_identity_is_what_a_manifest_can_hold(self) -> None:
        agent = self.make_agent()
        assert json.loads(json.dumps(dict(agent.identity), allow_nan=False)) == dict(agent.identity)
        assert all(isinstance(value, Scalar) for value in agent.identity.values())
        agent.close()

    def test_traits_that_it_has_keep_their_types(self) -> None:
        agent = self.make_agent()
        self.run(agent, (0, 3))
        if isinstance(agent, Describes):
            assert isinstance(agent.description, str)
        if isinstance(agent, Remarks):
            assert isinstance(agent.remarks, str)
        if isinstance(agent, Represents):
            assert isinstance(agent.stands_for, StandsFor)
        if isinstance(agent, Reports):
            for slot in (0, 3):
                assert all(isinstance(name, str) for name in agent.report(slot))
                assert all(math.isfinite(count) for count in agent.report(slot).values())
        agent.close()

    def test_what_it_does_ahead_is_what_it_would_have_done(self) -> None:
        agent = self.make_agent()
        if isinstance(agent, ActsAhead):
            asked = self.run(agent, (0,), steps=40)[0]
            agent.reset(0, self.make_episode().for_agent(), 7)
            taken: list[Action] = []
            while len(taken) < 40 and Action.STOP not in taken:
                taken.append(Action(agent.act({0: self.observe(agent, len(taken))})[0]))
                taken += agent.ahead(0)
            assert taken[: len(asked)] == asked
        agent.close()

    def test_closing_twice_is_harmless(self) -> None:
        agent = self.make_agent()
        agent.close()
        agent.close()
