from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from agents.streamvln.training.options import StreamVLNTraining
from tests.training.rewarded import rewarded
from vlnbench.errors import RunError
from vlnbench.training.objectives.grpo.groups import Grouping, Update
from vlnbench.training.objectives.grpo.rewards import Rewards
from vlnbench.training.objectives.grpo.rollouts import Made, Pick, other_prompts, prompts_of
from vlnbench.training.objectives.grpo.tally import Tally
from vlnbench.training.policy import Recorded
from vlnbench.training.setup import Process

ALONE = Process(0, 0, 1, torch.device("cpu"))


class Scripted:
    """Rollouts whose rewards are a function of prompt and member; answers have as many tokens as the member is."""

    longest = 8

    def __init__(self, reward: Callable[[int, int], float | str], prompts: int = 40) -> None:
        self.prompts, self._reward = prompts, reward
        self.rewards = Rewards(["format"], "steps")
        self.asked: list[Pick] = []

    def make(self, picks: Sequence[Pick], update: int) -> list[Made]:
        self.asked += picks
        return [self._made(pick) for pick in picks]

    def _made(self, pick: Pick) -> Made:
        found = self._reward(pick.prompt, pick.member)
        recorded = Recorded((f"{pick.prompt}.{pick.member}",), (pick.member + 1,), (), 1, 1)
        if isinstance(found, str):
            kept = recorded if found == "unreachable" else None
            return Made(kept, missing=found, note=f"a walk in episode {pick.prompt}: it broke")
        return Made(recorded, (found,), pick.member)


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
    draws = {(pick.prompt, pick.member, pick.draw) for pick in rollouts.asked}
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


def test_every_prompt_has_its_turn_and_a_resumed_run_finds_it() -> None:
    epoch = [prompts_of(update, 2, 10, seed=3) for update in range(1, 6)]
    assert sorted(prompt for found in epoch for prompt in found) == list(range(10))
    over = prompts_of(2, 7, 10, seed=3)  # three of this epoch, four of the next
    assert len(over) == 7
    assert prompts_of(4, 2, 10, seed=3) == epoch[3]
    assert other_prompts(1, 1, 3, 10, 3) == other_prompts(1, 1, 3, 10, 3) != other_prompts(1, 2, 3, 10, 3)
