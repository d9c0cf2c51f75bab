from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agents.streamvln.options import StreamVLNTraining
from tests.training.rewarded import rewarded
from vlnbench.errors import RunError
from vlnbench.training.family.policy import Recorded
from vlnbench.training.objectives.grpo.groups import Grouping, Update
from vlnbench.training.objectives.grpo.rewards import Rewards
from vlnbench.training.objectives.grpo.rollouts import Rollout, RolloutRequest, other_prompts, prompts_of
from vlnbench.training.objectives.grpo.tally import Tally
from vlnbench.training.setup import Process

ALONE = Process(0, 0, 1, torch.device("cpu"))


class Scripted:
    """Rollouts whose rewards are a function of prompt and member; answers have as many tokens as the member is."""

    longest = 8

    def __init__(self, reward: Callable[[int, int], float | str], prompts: int = 40) -> None:
        self.prompts, self._reward = prompts, reward
        self.rewards = Rewards(["format"], "steps")
        self.asked: list[RolloutRequest] = []

    def make(self, requests: Sequence[RolloutRequest], update: int) -> list[Rollout]:
        self.asked += requests
        return [self._made(request) for request in requests]

    def _made(self, request: RolloutRequest) -> Rollout:
        found = self._reward(request.prompt, request.member)
        recorded = Recorded((f"{request.prompt}.{request.member}",), (request.member + 1,), (), 1, 1)
        if isinstance(found, str):
            kept = recorded if found == "unreachable" else None
            return Rollout(kept, missing=found, note=f"a walk in episode {request.prompt}: it broke")
        return Rollout(recorded, (found,), request.member)


def grouping(rollouts: Any, **changes: Any) -> tuple[Grouping, Tally]:
    settings: dict[str, Any] = {
        "batch": 8,
        "accumulation": 1,
        "group": 4,
        "rollouts": "steps",
        "objective": "grpo",
    }
    options = rewarded(StreamVLNTraining)(checkpoint="", out=Path(), **(settings | changes))
    tally = Tally(ALONE)
    return Grouping(options, rollouts, ALONE, tally), tally


def samples(update: Update) -> list[str]:
    return [each.recorded.samples[0] for each in update.mine]


def test_advantages_are_within_the_group() -> None:
    made, tally = grouping(Scripted(lambda prompt, member: prompt + member), reward_scaling="none")
    update = made.make(1)
    assert [each.advantage for each in update.mine] == [-1.5, -0.5, 0.5, 1.5] * 2
    assert update.lengths == (1, 2, 3, 4) * 2
    assert tally.take()["no_spread"] == 0.0


def test_groups_without_spread_are_left_out_or_kept() -> None:
    def reward(prompt: int, member: int) -> float:
        return float(member) if prompt == chosen[0] else 0.5

    chosen = prompts_of(1, 2, 40, seed=0)
    left, tally = grouping(Scripted(reward))
    assert {name.partition(".")[0] for name in samples(left.make(1))} == {str(chosen[0])}
    assert tally.take()["no_spread"] == 0.5
    kept, _ = grouping(Scripted(reward), even_groups="keep")
    update = kept.make(1)
    assert len(update.mine) == 8
    assert [each.advantage for each in update.mine[4:]] == [0.0] * 4


def test_groups_without_spread_are_made_of_other_prompts() -> None:
    rollouts = Scripted(lambda prompt, member: float(member) if prompt % 2 else 0.5)
    made, tally = grouping(rollouts, even_groups="resample", resamples=20)
    update = made.make(1)
    assert len(update.mine) == 8
    assert all(int(name.partition(".")[0]) % 2 for name in samples(update))
    assert tally.take()["resampled"] >= 0
    draws = {(request.prompt, request.member, request.draw) for request in rollouts.asked}
    assert len(draws) == len(rollouts.asked), "nothing is drawn twice"


def test_nothing_to_learn_from_is_no_update() -> None:
    made, tally = grouping(Scripted(lambda *_: 0.5))
    update = made.make(1)
    assert update.mine == ()
    assert update.spare
    assert made.dull == 1
    assert tally.take()["no_spread"] == 1.0


def test_goals_that_cannot_be_reached_drop_the_group() -> None:
    chosen = prompts_of(1, 2, 40, seed=0)
    made, tally = grouping(
        Scripted(lambda prompt, member: "unreachable" if prompt == chosen[1] else float(member))
    )
    assert {name.partition(".")[0] for name in samples(made.make(1))} == {str(chosen[0])}
    found = tally.take()
    assert (found["unreachable"], found["failed"]) == (1, 0)
    assert found["reward"] == 1.5, "of the others alone"


def test_a_failed_rollout_drops_its_group_and_all_of_them_end_the_run() -> None:
    chosen = prompts_of(1, 2, 40, seed=0)
    one, tally = grouping(
        Scripted(lambda prompt, member: "failed" if (prompt, member) == (chosen[0], 2) else float(member))
    )
    assert len(one.make(1).mine) == 4
    assert tally.take()["failed"] == 1
    every, _ = grouping(Scripted(lambda *_: "failed"))
    with pytest.raises(RunError, match="update 1: all rollouts failed; the last: a walk in episode"):
        every.make(1)


@pytest.mark.parametrize("even_groups", ["skip", "resample"])
@pytest.mark.parametrize(("prompts", "batch", "group"), [(6, 8, 2), (5, 8, 2), (4, 8, 2), (50, 16, 2), (3, 4, 4)])
def test_no_update_has_a_prompt_twice(prompts: int, batch: int, group: int, even_groups: str) -> None:
    """Also where an epoch's prompts are no multiple of an update's, and where dull groups are replaced."""
    rollouts = Scripted(lambda prompt, member: float(member) if prompt % 2 else 0.5, prompts)
    made, _ = grouping(rollouts, batch=batch, group=group, even_groups=even_groups, resamples=3)
    for number in range(1, 31):
        rollouts.asked.clear()
        update = made.make(number)
        learned = [name.partition(".")[0] for name in samples(update)]
        assert len(set(learned)) * group == len(learned)
        assert len(set(rollouts.asked)) == len(rollouts.asked), "nothing is drawn twice"


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 300), st.integers(0, 3))
def test_every_prompt_has_its_turn_and_a_resumed_run_finds_it(few: int, more: int, update: int, seed: int) -> None:
    count, prompts = min(few, more), max(few, more)
    found = prompts_of(update, count, prompts, seed)
    assert found == prompts_of(update, count, prompts, seed)
    assert len(set(found)) == len(found) == count
    assert set(found) <= set(range(prompts))
    per_epoch = prompts // count
    first = (update - 1) // per_epoch * per_epoch + 1
    epoch = [
        prompt for each in range(first, first + per_epoch) for prompt in prompts_of(each, count, prompts, seed)
    ]
    assert len(set(epoch)) == len(epoch) == per_epoch * count, "each once in an epoch"


@given(st.integers(1, 12), st.integers(0, 12), st.data())
def test_other_prompts_are_new_ones_where_there_are_any(count: int, more: int, data: st.DataObject) -> None:
    prompts = count + more
    chosen = data.draw(st.permutations(range(prompts)))[:count]
    kept = chosen[: data.draw(st.integers(0, count - 1))]
    wanted = count - len(kept)
    found = other_prompts(1, 1, wanted, prompts, 3, taken=kept, tried=chosen)
    assert len(set(found)) == wanted
    assert not set(found) & set(kept)
    assert more < wanted or not set(found) & set(chosen)


def test_a_process_whose_rollouts_have_no_window_takes_one_of_an_earlier_update() -> None:
    rollouts = Scripted(lambda *_: 0.5)
    made, _ = grouping(rollouts)
    spare = made.make(1).spare
    whole = rollouts._made
    rollouts._made = lambda request: replace(whole(request), recorded=Recorded((), (), (), 0, 0))  # type: ignore[method-assign]
    assert made.make(2).spare == spare
    nothing, _ = grouping(rollouts)
    with pytest.raises(RunError, match="a process has nothing of an update"):
        nothing.make(1)
