"""The contract of `Agent` and its traits as tests to inherit."""

from __future__ import annotations

import builtins
import copy
import gc
import json
import math
import random
import sys
import tracemalloc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest

from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Agent, Episode, Observation, Pose, Scalar, StandsFor
from vlnbench.rollout.agent_options import AgentOptions, DeviceOptions, TakesOptions
from vlnbench.rollout.answers import told
from vlnbench.traits import ActsAhead, Describes, Remarks, Reports, Represents, TellsAnswers


class AgentConformance:
    """Every `Agent` passes these. Override `make_agent`; the other methods fit most agents.

    Not seen by them: what an agent does wrong only after `steps` steps, or only with other episodes than these.
    """

    steps: int = 16
    """How long episodes are at most; `observe` is asked for steps below it, other tests for up to 40."""
    slots: tuple[int, ...] = (0, 1, 2, 3, 7)
    does_not_count: frozenset[str] = frozenset()
    """Options that change nothing that the agent does, so that its identity leaves them out."""

    def make_agent(self) -> Agent:
        """The agent under test; every call makes another one."""
        raise NotImplementedError

    def make_options(self, kind: TakesOptions) -> AgentOptions:
        """Options of which an agent can be made; each is changed in turn."""
        return kind.options_type()

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

    def begin(self, agent: Agent, slot: int, number: int = 0, seed: int = 7) -> None:
        """Begin one of several episodes, which differ in what is told and seen, and in their seeds."""
        agent.reset(slot, self._episode(agent, number), seed + number)

    def ask(self, agent: Agent, steps: Mapping[int, tuple[int, int]]) -> dict[int, Action]:
        """Actions by slot for {slot: (number of its episode, step)}; what was shown must stay as it is."""
        shown = {slot: self._shown(agent, *step) for slot, step in steps.items()}
        before = {slot: (_bytes(each.rgb), _bytes(each.depth)) for slot, each in shown.items()}
        actions = agent.act(shown)
        assert set(actions) == set(shown), "one action for every slot that was given, and no other"
        for slot, each in shown.items():
            assert before[slot] == (_bytes(each.rgb), _bytes(each.depth)), "an observation was written to"
        return {slot: Action(action) for slot, action in actions.items()}

    def run(self, agent: Agent, slots: tuple[int, ...], steps: int = 5, seed: int = 7) -> dict[int, list[Action]]:
        """Actions per slot, all slots in the same episode; a slot ends when it stops."""
        for slot in slots:
            self.begin(agent, slot, seed=seed)
        taken: dict[int, list[Action]] = {slot: [] for slot in slots}
        for step in range(steps):
            running = [slot for slot in slots if Action.STOP not in taken[slot]]
            for slot, action in self.ask(agent, dict.fromkeys(running, (0, step))).items() if running else ():
                taken[slot].append(action)
        return taken

    def run_interleaved(self, agent: Agent) -> list[list[Action]]:
        """Actions of an episode per slot. Each begins later than the one before; not all act every time."""
        draw, turn = random.Random(0), 0
        taken: list[list[Action]] = []
        while len(taken) < len(self.slots) or any(map(self._goes_on, taken)):
            if turn % 2 == 0 and len(taken) < len(self.slots):
                self.begin(agent, self.slots[len(taken)], len(taken))
                taken.append([])
            turn += 1
            running = [number for number, actions in enumerate(taken) if self._goes_on(actions)]
            asked = draw.sample(running, draw.randint(1, len(running))) if running else []
            given = {self.slots[number]: (number, len(taken[number])) for number in asked}
            for slot, action in self.ask(agent, given).items() if given else ():
                taken[self.slots.index(slot)].append(action)
        return taken

    def run_alone(self, agent: Agent, number: int, slot: int = 0, steps: int | None = None) -> list[Action]:
        """Actions of one of the episodes, while no other runs."""
        self.begin(agent, slot, number)
        taken: list[Action] = []
        while self._goes_on(taken, steps):
            taken.append(self.ask(agent, {slot: (number, len(taken))})[slot])
        return taken

    def _goes_on(self, taken: list[Action], steps: int | None = None) -> bool:
        return Action.STOP not in taken and len(taken) < (steps or self.steps)

    def _episode(self, agent: Agent, number: int) -> Episode:
        episode = self.make_episode()
        if number:
            told = f"{episode.instruction} Then go on to door {number}."
            episode = replace(episode, episode_id=f"{episode.episode_id}-{number}", instruction=told)
        return episode if agent.privileged else episode.for_agent()

    def _shown(self, agent: Agent, number: int, step: int) -> Observation:
        seen = self.observe(agent, (step + 3 * number) % self.steps if number else step)
        told = self._episode(agent, number).instruction
        return copy.deepcopy(replace(seen, step=step, instruction=told))  # `observe` may give the same array again

    def test_implements_the_protocol(self) -> None:
        assert isinstance(self.make_agent(), Agent)

    def test_telling_changes_nothing(self) -> None:
        """Actions are the same whether or not it is asked what its model said, which can be kept."""
        agent, silent = self.make_agent(), self.make_agent()
        if not isinstance(agent, TellsAnswers):
            pytest.skip("it has no model that says anything")
        self.begin(agent, 3, 1)
        taken: list[Action] = []
        while self._goes_on(taken):
            taken.append(self.ask(agent, {3: (1, len(taken))})[3])
            for answer in told(agent, 3, taken[-1:]):
                assert not answer.note.startswith("not told"), answer.note
            assert not agent.answered(3), "what was said is told once"
        assert taken == self.run_alone(silent, 1, 3)

    def test_acts_in_every_slot(self) -> None:
        agent = self.make_agent()
        assert all(self.run(agent, (0, 3)).values())
        agent.close()

    def test_a_slot_does_not_feel_its_neighbors(self) -> None:
        agent, other = self.make_agent(), self.make_agent()
        together = self.run_interleaved(agent)
        alone = [self.run_alone(other, number) for number in range(len(self.slots))]
        assert together == alone, "episodes that run at once end otherwise than one by one"
        assert self.run_alone(agent, 1, self.slots[-1]) == alone[1], "a slot remembers the episode before"
        agent.close()
        other.close()

    def test_the_same_seed_gives_the_same_actions(self) -> None:
        taken = []
        for salt in (1, 2):
            with _hashing_strings_otherwise(salt):  # as in another process
                agent = self.make_agent()
                taken.append(self.run_alone(agent, 1))
                agent.close()
        assert taken[0] == taken[1], "it acts otherwise when it is made again; does it use hash() of a string?"

    def test_it_lets_go_of_what_it_saw(self) -> None:
        agent = self.make_agent()
        if agent.sensors & {"rgb", "depth"}:
            steps = min(8, self.steps)
            self.run_alone(agent, 0, steps=steps)  # what an agent makes once is made
            held = []
            tracemalloc.start()
            try:
                for start in (1, 4):  # what libraries make on the way they make once
                    for number in range(start, start + 3):
                        self.run_alone(agent, number, steps=steps)
                    self.begin(agent, 0)
                    gc.collect()
                    held.append(tracemalloc.get_traced_memory()[0])
            finally:
                tracemalloc.stop()
            kept = held[1] - held[0]
            shown = [self._shown(agent, number, step) for number in range(1, 4) for step in range(steps)]
            size = sum(len(_bytes(each.rgb)) + len(_bytes(each.depth)) for each in shown)
            assert kept < size / 2, f"it keeps frames of episodes that ended: {kept} of {size} bytes"
        agent.close()

    def test_options_that_change_what_it_does_are_in_its_identity(self) -> None:
        agent = self.make_agent()
        kind: Any = type(agent)
        if not isinstance(kind, TakesOptions) or isinstance(agent, Represents):
            return
        try:
            options = self.make_options(kind)
            identity = _made(kind, options).identity
        except UsageError as error:
            pytest.skip(f"no agent is made from make_options(): {error}")
        ignored = self.does_not_count | {each.name for each in fields(DeviceOptions)}
        for name, value in _other_values(options):
            if name not in ignored:
                try:
                    other = _made(kind, replace(options, **{name: value}))
                except UsageError:
                    continue
                assert other.identity != identity, f"option {name} is not in its identity; see does_not_count"
                other.close()
        agent.close()

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


def _bytes(sensed: np.ndarray[Any, Any] | None) -> bytes:
    return b"" if sensed is None else sensed.tobytes()


@contextmanager
def _hashing_strings_otherwise(salt: int) -> Iterator[None]:
    """`hash` of strings and of what holds them gives other numbers, as it does in every process."""
    plain = builtins.hash

    def salted(value: object, /) -> int:
        found = plain(value)
        of_key = sys._getframe(1).f_code.co_name == "__hash__"  # that of a class, for its place in a dict
        return found if of_key or not isinstance(value, str | bytes | tuple) else plain((found, salt))

    builtins.hash = salted
    try:
        yield
    finally:
        builtins.hash = plain


def _made(kind: Any, options: AgentOptions) -> Agent:
    made: Agent = kind(options)
    return made


def _other_values(options: AgentOptions) -> Iterator[tuple[str, Any]]:
    """Each option that is a number, a switch or a choice, with another value."""
    hints = get_type_hints(type(options))
    for each in fields(options):
        value, hint = getattr(options, each.name), hints[each.name]
        if get_origin(hint) is Literal:
            yield each.name, next(choice for choice in get_args(hint) if choice != value)
        elif isinstance(value, bool):
            yield each.name, not value
        elif isinstance(value, int | float):
            yield each.name, value + 1
