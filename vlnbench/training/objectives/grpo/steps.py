"""Rollouts without a simulator: answers to windows of collected sets, compared with what the expert did."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from vlnbench.interfaces import Action
from vlnbench.rollout.episode import episode_seed
from vlnbench.training import data
from vlnbench.training.data import Schedule
from vlnbench.training.family.policy import Policy, Questions
from vlnbench.training.family.trains import Trains
from vlnbench.training.objectives.grpo.options import GRPOOptions
from vlnbench.training.objectives.grpo.rewards import Completion, Rewards
from vlnbench.training.objectives.grpo.rollouts import Rollout, RolloutRequest


class Steps:
    """`Rollouts` whose prompts are windows; where in a window the network is asked is drawn."""

    def __init__(self, options: GRPOOptions, trains: Trains) -> None:
        self.rewards = Rewards(options.rewards, "steps")
        self._options = options
        self._sets = data.read_sets(options, trains)
        self.prompts = sum(each.windows for each in self._sets)
        self.longest = options.answer_tokens

    def manifest(self) -> Mapping[str, Any]:
        return {
            "data": {each.name: {"windows": each.windows, "weight": each.weight} for each in self._sets},
            "data_sha256": data.digest(self._sets),
        }

    def describe(self) -> str:
        return data.format_sets(self._sets, Schedule(0, 0, self.prompts)).partition("\n\n")[0]

    def counts(self) -> Mapping[str, Any]:
        return data.count(self._sets)

    def texts(self) -> Iterator[str]:
        for each in self._sets:
            yield from each.content.texts()

    def begin(self, policy: Policy, beat: Callable[[], None]) -> None:
        self._policy = policy
        self._questions: Questions = policy.questions([each.content for each in self._sets])
        self.prompts = len(self._questions)

    def make(self, requests: Sequence[RolloutRequest], update: int) -> list[Rollout]:
        seed = self._options.seed
        asked = [
            self._questions.question(request.prompt, f"{seed}/{request.draw}/{request.prompt}")
            for request in requests
        ]
        seeds = [episode_seed(seed, f"{request.draw}/{request.prompt}", request.member) for request in requests]
        answers = self._policy.answer([each.prompt for each in asked], seeds)
        made = []
        for request, question, answer in zip(requests, asked, answers, strict=True):
            completion = Completion(answer.formed / answer.answers, answer.actions, question.expected)
            values = self.rewards.of(completion, f"window {request.prompt}")
            stopped = Action.STOP in answer.actions
            right = answer.actions == question.expected
            made.append(Rollout(answer, tuple(values), len(answer.actions), stopped, right, completion=completion))
        return made

    def close(self) -> None:
        """Nothing was started."""
