"""Groups of rollouts for an update: made on all processes, judged together, replaced where they teach nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from vlnbench.errors import RunError
from vlnbench.training.family.policy import Recorded
from vlnbench.training.objectives.grpo.kept import Keeper, encode
from vlnbench.training.objectives.grpo.loss import advantages, without_spread
from vlnbench.training.objectives.grpo.options import GRPOOptions
from vlnbench.training.objectives.grpo.rollouts import Rollout, RolloutRequest, Rollouts, other_prompts, prompts_of
from vlnbench.training.objectives.grpo.tally import Tally
from vlnbench.training.setup import Process


@dataclass(frozen=True)
class ScoredRollout:
    """A rollout of this process: what was recorded, and how much better than its group it was."""

    recorded: Recorded
    advantage: float


@dataclass(frozen=True)
class Update:
    """What an update learns from: completions of this process, and the tokens of every completion that counts, of
    all processes. spare: a window, for passes from which nothing is to be learned."""

    mine: tuple[ScoredRollout, ...]
    lengths: tuple[int, ...]
    spare: Any


@dataclass
class _Group:
    """The completions of a prompt by member: a process knows what its own are (`Rollout`), and of all the rewards.

    advantages: of all members, where something is learned from them.
    """

    prompt: int
    mine: dict[int, Rollout]
    shared: list[dict[str, Any]]
    advantages: Sequence[float | None] = ()

    @property
    def missing(self) -> str:
        """Why the group does not count, empty where it does."""
        return next((each["missing"] for each in self.shared if each["missing"]), "")


class Grouping:
    """Makes the groups of updates."""

    def __init__(self, options: GRPOOptions, rollouts: Rollouts, process: Process, tally: Tally) -> None:
        self._options, self._rollouts = options, rollouts
        self._process, self._tally = process, tally
        self.size = options.group_size(process.world_size)
        self.count = options.completions(process.world_size) // self.size
        self.dull = 0
        """Updates so far in which no group taught anything."""
        self._spare: Any = None
        self.keeper: Keeper | None = None
        """Keeps what was done, on the first process of a run."""

    def make(self, number: int) -> Update:
        """The groups of an update (from 1). Raises RunError if all rollouts failed."""
        options, seed = self._options, self._options.seed
        chosen = prompts_of(number, self.count, self._rollouts.prompts, seed)
        groups, tried = self._run([(prompt, str(number)) for prompt in chosen], number), list(chosen)
        replaced: list[_Group] = []
        for attempt in range(1, options.resamples + 1 if options.even_groups == "resample" else 1):
            places = [place for place, group in enumerate(groups) if group.missing or self._is_dull(group)]
            if not places:
                break
            replaced += [groups[place] for place in places]
            self._count_missing(replaced[-len(places) :])
            taken = [prompt for place, prompt in enumerate(chosen) if place not in places]
            others = other_prompts(
                number, attempt, len(places), self._rollouts.prompts, seed, taken=taken, tried=tried
            )
            tried += others
            made = self._run([(prompt, f"{number}.{attempt}") for prompt in others], number)
            for place, prompt, group in zip(places, others, made, strict=True):
                groups[place], chosen[place] = group, prompt
            self._count("resampled", len(places))
        self._count_missing(groups)
        if all(group.missing == "failed" for group in groups):
            notes = [each["note"] for group in groups for each in group.shared if each["note"]]
            raise RunError(f"update {number}: all rollouts failed; the last: {notes[-1]}")
        update = self._judge(groups)
        if self.keeper is not None:
            self.keeper.keep(
                number, [line for group in [*replaced, *groups] for line in self._lines(number, group)]
            )
        return update

    def _lines(self, number: int, group: _Group) -> Iterator[dict[str, Any]]:
        """A group as it is kept."""
        names = [part.name for part in self._rollouts.rewards.parts]
        for member, (each, advantage) in enumerate(zip_longest(group.shared, group.advantages)):
            rewards = dict(zip(names, each["rewards"], strict=False))  # none of what does not count
            judged = {"rewards": rewards, "advantage": advantage, "missing": each["missing"], "note": each["note"]}
            yield {
                "update": number,
                "prompt": group.prompt,
                "member": member,
                **judged,
                "completion": each["completion"],
            }

    def _run(self, chosen: Sequence[tuple[int, str]], number: int) -> list[_Group]:
        """Make groups, each process its share of the completions, and tell each other the rewards."""
        size, world = self.size, self._process.world_size
        every = [(place, member) for place in range(len(chosen)) for member in range(size)]
        mine = every[self._process.rank :: world]
        requests = [RolloutRequest(chosen[place][0], member, chosen[place][1]) for place, member in mine]
        made = dict(zip(mine, self._rollouts.make(requests, number), strict=True))
        told: list[Any] = [None] * world
        here = {key: _shared(each) for key, each in made.items()}
        if world == 1:
            told = [here]
        else:
            torch.distributed.all_gather_object(told, here)
        known = {key: each for found in told for key, each in found.items()}
        self._describe(made.values())
        groups = []
        for place in range(len(chosen)):
            own = {member: made[place, member] for member in range(size) if (place, member) in made}
            groups.append(_Group(chosen[place][0], own, [known[place, member] for member in range(size)]))
        return groups

    def _judge(self, groups: Sequence[_Group]) -> Update:
        """Advantages of the groups that count, and the warning where nothing is to be learned."""
        options = self._options
        whole = [group for group in groups if not group.missing]
        dull = [self._is_dull(group) for group in whole]
        if self._process.first:
            self._tally.add("no_spread", sum(dull), len(dull))
        if all(dull):
            self.dull += 1
        kept = (
            whole
            if options.even_groups == "keep"
            else [each for each, flat in zip(whole, dull, strict=True) if not flat]
        )
        self._keep_a_spare(groups)
        if not kept:
            return Update((), (), self._spare)
        judged = advantages(self._rewards(kept), options.reward_scaling).tolist()
        for group, gains in zip(kept, judged, strict=True):
            group.advantages = gains
        mine = [
            ScoredRollout(made.recorded, gains[member])
            for group, gains in zip(kept, judged, strict=True)
            for member, made in group.mine.items()
            if made.recorded is not None
        ]
        lengths = tuple(each["tokens"] for group in kept for each in group.shared)
        return Update(tuple(mine), lengths, self._spare)

    def _keep_a_spare(self, groups: Sequence[_Group]) -> None:
        """A window of this process, of this update or of one before it."""
        recorded = (each.recorded for group in groups for each in group.mine.values())
        windows = (sample for each in recorded if each is not None for sample in each.samples)
        self._spare = next(windows, self._spare)
        if self._spare is None:
            raise RunError("a process has nothing of an update: all of its rollouts failed; try --envs 1")

    def _rewards(self, groups: Sequence[_Group]) -> Tensor:
        total = self._rollouts.rewards.total
        rows = [[total(each["rewards"]) for each in group.shared] for group in groups]
        return torch.tensor(rows, dtype=torch.float64)

    def _is_dull(self, group: _Group) -> bool:
        return not group.missing and bool(without_spread(self._rewards([group]))[0])

    def _count_missing(self, groups: Sequence[_Group]) -> None:
        for kind in ("unreachable", "failed"):
            self._count(kind, sum(group.missing == kind for group in groups))

    def _count(self, name: str, number: int) -> None:
        if self._process.first:
            self._tally.add(name, number)

    def _describe(self, made: Any) -> None:
        """Add what this process's completions were like."""
        tally, rewards = self._tally, self._rollouts.rewards
        for each in made:
            tally.add("simulator_s", each.simulator_s)
            if each.recorded is None or each.missing:
                continue
            tally.add("reward", rewards.total(each.rewards))
            for part, value in zip(rewards.parts, each.rewards, strict=True):
                tally.add(f"reward_{part.name}", value)
            tally.add("actions", each.steps)
            tally.add("answers", each.recorded.answers)
            tally.add("tokens", sum(each.recorded.tokens))
            tally.add("formed", each.recorded.formed, each.recorded.answers)
            tally.add("stopped", float(each.stopped))
            tally.add("cut", float(each.recorded.cut))
            if each.success is not None:
                tally.add("success", float(each.success))


def _shared(made: Rollout) -> dict[str, Any]:
    """What other processes have to know of a completion."""
    tokens = 0 if made.recorded is None else sum(made.recorded.tokens)
    completion = None if made.completion is None else encode(made.completion)
    told = {"rewards": made.rewards, "tokens": tokens, "missing": made.missing, "note": made.note}
    return {**told, "completion": completion}
