"""Policies written to the interfaces of VLN-CE and of habitat-baselines, as agents."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from agents.habitat_policy import PolicyAgent
from tests.fakes import make_episode
from vlnbench.conformance import AgentConformance
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Agent, Observation
from vlnbench.rollout.agent_options import DeviceOptions
from vlnbench.rollout.agents import load_agent
from vlnbench.traits import FeelsActions

SIZE = 8


class Recurrent(nn.Module):
    """A GRU over the first color, the first depth, first word and previous action. `form`: what `act` returns."""

    def __init__(self, form: str = "vln-ce") -> None:
        super().__init__()
        self.form = form
        with torch.random.fork_rng():
            torch.manual_seed(3)
            self.cell = nn.GRUCell(6, SIZE)
            self.head = nn.Linear(SIZE, 4)
        self.seen: list[dict[str, Tensor]] = []
        self.calls: list[tuple[Tensor, Tensor]] = []

    def act(
        self,
        observations: Mapping[str, Tensor],
        rnn_states: Tensor,
        prev_actions: Tensor,
        masks: Tensor,
        deterministic: bool,
    ) -> Any:
        self.seen.append(dict(observations))
        self.calls.append((prev_actions, masks))
        rgb = observations["rgb"][:, 0, 0].float() / 32 - 4
        depth = observations["depth"][:, 0, 0]
        word = observations["instruction"][:, :1].float() / 10
        state = self.cell(
            torch.cat([rgb, depth, word, (prev_actions + 1) * masks / 4], 1), rnn_states[:, 0] * masks
        )
        logits = self.head(state) * 20
        actions = (
            logits.argmax(1, keepdim=True)
            if deterministic
            else torch.distributions.Categorical(logits=logits).sample()[:, None]
        )
        states = state[:, None]
        if self.form == "vln-ce":
            return actions, states
        if self.form == "baselines":
            return torch.zeros(len(actions), 1), actions, torch.zeros(len(actions), 1), states
        if self.form == "later":
            return SimpleNamespace(actions=actions, rnn_hidden_states=states)
        return [actions]


class Evaluated(PolicyAgent):
    state_size = (1, SIZE)
    form = "vln-ce"

    def make_policy(self) -> Recurrent:
        return Recurrent(self.form)


class Sampling(Evaluated):
    deterministic = False


def observation(step: int, seed: int = 0) -> Observation:
    rng = np.random.default_rng((step, seed))
    rgb = rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Observation("Go.", step, rgb=rgb, depth=rng.uniform(0, 10, (6, 8)).astype(np.float32))


def episode(number: int, tokens: tuple[int, ...] = (5, 2)) -> Any:
    from dataclasses import replace

    return replace(make_episode(number), instruction_tokens=tokens)


def walk(agent: Agent, steps: int = 12, seed: int = 0) -> list[Action]:
    agent.reset(0, episode(1), seed)
    return [agent.act({0: observation(step)})[0] for step in range(steps)]


class TestGreedy(AgentConformance):
    def make_agent(self) -> Agent:
        return _WithWords(DeviceOptions(device="cpu"))


class _WithWords(Evaluated):
    def tokens(self, episode: Any) -> tuple[int, ...]:
        return (7,)


def made(kind: type[Evaluated] = Evaluated, **options: Any) -> Evaluated:
    return kind(DeviceOptions(device="cpu", **options))


def policy_of(agent: Evaluated) -> Recurrent:
    return agent._policy  # type: ignore[no-any-return]


def test_it_is_loaded_by_import_string_with_its_options() -> None:
    agent = load_agent(f"{__name__}:Evaluated", DeviceOptions(device="cpu"))
    assert isinstance(agent, Evaluated)
    assert isinstance(agent, FeelsActions)
    assert agent.identity["weights"] == made().identity["weights"] != "none"


def test_it_acts_as_the_trainers_own_loop_does() -> None:
    """Step by step as VLN-CE's evaluation calls the policy: states carried, masks zero at first."""
    policy = Recurrent()
    state, previous, mask = torch.zeros(1, 1, SIZE), torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, 1).bool()
    expected = []
    for step in range(12):
        seen = observation(step)
        assert seen.rgb is not None
        assert seen.depth is not None
        tokens = torch.zeros(1, 200, dtype=torch.long)
        tokens[0, :2] = torch.tensor([5, 2])
        batch = {
            "rgb": torch.from_numpy(seen.rgb)[None],
            "depth": torch.from_numpy(seen.depth)[None, ..., None] / 10,
            "instruction": tokens,
        }
        with torch.no_grad():
            actions, state = policy.act(batch, state, previous, mask, deterministic=True)
        previous, mask = actions, torch.ones(1, 1).bool()
        expected.append(int(actions))
    agent = made()
    assert walk(agent) == expected
    assert len(set(expected)) > 1
    shown = policy_of(agent).seen[0]
    assert {name: (tuple(value.shape), value.dtype) for name, value in shown.items()} == {
        "rgb": ((1, 6, 8, 3), torch.uint8),
        "depth": ((1, 6, 8, 1), torch.float32),
        "instruction": ((1, 200), torch.int64),
    }


@pytest.mark.parametrize("form", ["baselines", "later"])
def test_what_other_versions_return_is_read(form: str) -> None:
    kind = type("Other", (Evaluated,), {"form": form})
    assert walk(made(kind)) == walk(made())


def test_a_return_value_of_another_form_is_refused() -> None:
    with pytest.raises(TypeError, match=r"returned list; expected \(actions, rnn_states\)"):
        walk(made(type("Odd", (Evaluated,), {"form": "odd"})), steps=1)


def test_slots_do_not_touch_each_other() -> None:
    agent, alone = made(max_batch=2), made()
    numbers = (1, 2, 3)
    for slot in numbers:
        agent.reset(slot, episode(slot, (slot,)), 0)
    together = [agent.act({slot: observation(step, slot) for slot in numbers}) for step in range(6)]
    for slot in numbers:
        alone.reset(0, episode(slot, (slot,)), 0)
        assert [alone.act({0: observation(step, slot)})[0] for step in range(6)] == [
            each[slot] for each in together
        ]
    assert [len(seen["rgb"]) for seen in policy_of(agent).seen[:2]] == [2, 1]


def test_sampling_follows_the_episodes_seed_and_leaves_the_global_one_alone() -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = walk(made(Sampling), seed=4)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(3)
    assert walk(made(Sampling), seed=4) == first
    assert any(walk(made(Sampling), seed=seed) != first for seed in range(5, 15))


def test_transforms_and_what_was_done_reach_the_policy() -> None:
    halve = lambda batch: {**batch, "rgb": batch["rgb"][:, ::2, ::2]}  # noqa: E731
    agent = made(type("Halved", (Evaluated,), {"transforms": (halve,), "depth_range_m": None}))
    agent.reset(0, episode(1), 0)
    agent.act({0: observation(0)})
    agent.feel(0, Action.TURN_RIGHT)
    agent.act({0: observation(1)})
    policy = policy_of(agent)
    assert policy.seen[0]["rgb"].shape == (1, 3, 4, 3)
    assert float(policy.seen[0]["depth"].max()) > 5
    assert [(int(previous), bool(mask)) for previous, mask in policy.calls] == [(0, False), (3, True)]


def test_episodes_without_words_are_one_line() -> None:
    with pytest.raises(UsageError, match=r"'Evaluated': episodes of this dataset have no instruction_tokens"):
        made().reset(0, make_episode(1), 0)
