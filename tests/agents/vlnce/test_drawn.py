"""CMA and Seq2Seq learn from rewards: what is drawn in a walk is what is trained on, and nothing else decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agents.common.prompts.words import words_of
from agents.vlnce.checkpoint import save_folder
from agents.vlnce.family import TABLE, VLNCEPolicy
from agents.vlnce.network import Learner, Policy
from agents.vlnce.options import FAMILY as SPEC
from agents.vlnce.options import PARTS, PRESETS, VLNCETraining
from tests.agents.vlnce.walks import write_walks
from tests.fakes import make_episode
from tests.families import Whole
from tests.training.objectives.grpo.test_learner import ALONE, Engine
from tests.training.rewarded import rewarded
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Observation
from vlnbench.training.family.policy import Recorded, Sampling
from vlnbench.training.family.trains import rule_of
from vlnbench.training.objectives.grpo.groups import ScoredRollout, Update
from vlnbench.training.objectives.grpo.learner import Learner as Losses
from vlnbench.training.objectives.grpo.tally import Tally
from vlnbench.training.setup import Process

TEXTS = ("Walk to the red chair and stop.", "Turn left.")
FAMILY: Any = Whole(SPEC)


def learner_of(kind: str) -> Learner:
    """A small network whose actions are not all alike."""
    preset = PRESETS[f"{kind}-tiny"]
    vocabulary = tuple(sorted({word for text in TEXTS for word in words_of(text)}))
    network = replace(preset.network, vocab_size=len(vocabulary) + 2, tune_rgb=True, tune_depth=True)
    torch.manual_seed(3)
    return Learner(replace(preset, network=network, vocabulary=vocabulary))


def options(**changes: Any) -> Any:
    settings: dict[str, Any] = {"objective": "grpo", "rollouts": "steps", "group": 2, "batch": 8}
    return rewarded(VLNCETraining)(checkpoint="", out=Path(), **(settings | changes))


def policy_of(learner: Learner, **sampling: Any) -> VLNCEPolicy:
    made = VLNCEPolicy(learner, Sampling(1.0, **sampling))
    made.renew()
    return made


def walk(policy: VLNCEPolicy, seeds: Mapping[int, int], steps: int = 7) -> list[Recorded]:
    """Walks side by side, by slot one of a seed; every second has another instruction."""
    agent = policy.agent()
    noise = np.random.default_rng(5)
    seen = [
        (noise.integers(0, 256, (480, 640, 3), dtype=np.uint8), noise.random((480, 640))) for _ in range(steps)
    ]
    for slot, seed in seeds.items():
        agent.reset(slot, replace(make_episode(1), instruction=TEXTS[seed % 2]), seed)
    left = set(seeds)
    for step, (rgb, depth) in enumerate(seen):
        frame = Observation("", step, rgb=rgb, depth=(10 * depth).astype(np.float32))
        done = agent.act(dict.fromkeys(sorted(left), frame)) if left else {}
        left -= {slot for slot, action in done.items() if action is Action.STOP}
    return [policy.recorded("1", seed) for seed in seeds.values()]


def learned(model: Learner, recorded: list[Recorded], **changes: Any) -> tuple[dict[str, Any], dict[str, float]]:
    """The gradients of an update and what was told of it."""
    gains = [1.0, -0.5, 0.25, -0.75][: len(recorded)]
    judged = tuple(ScoredRollout(each, gain) for each, gain in zip(recorded, gains, strict=True))
    tally, chosen = Tally(ALONE), options(**changes)
    losses = Losses(chosen, FAMILY, ALONE, tally, None)
    losses.take(Update(judged, tuple(sum(each.tokens) for each in recorded), recorded[0].samples[0]), 24)
    model.zero_grad(set_to_none=True)
    for loss in losses.losses(Engine(model.train())):
        (loss / chosen.accumulation).backward()  # type: ignore[no-untyped-call]
    return {name: each.grad for name, each in model.named_parameters() if each.grad is not None}, tally.take()


@pytest.mark.parametrize("kind", ["cma", "seq2seq"])
def test_it_is_learned_from_rewards(kind: str) -> None:
    """Ratio 1, log-probabilities that agree with those of acting, and a gradient in every part."""
    model = learner_of(kind)
    recorded = walk(policy_of(model), {0: 1, 1: 2, 2: 3, 3: 4})
    assert len({str(each.samples[0].labels.tolist()) for each in recorded}) > 1
    gradients, told = learned(model, recorded)
    assert told["ratio"] == 1.0
    assert told["clipped"] == 0.0
    assert told["drawn_apart"] < 1e-5
    moved = {rule_of(TABLE, name).part for name, each in gradients.items() if bool((each != 0).any())}
    assert moved == set(PARTS)
    split, _ = learned(model, recorded[::-1][::-1], batch=1, accumulation=8)
    largest = max(float(each.abs().max()) for each in gradients.values())
    assert all(float((split[name] - each).abs().max()) < 1e-4 * largest for name, each in gradients.items())


def test_what_is_drawn_depends_on_the_seed_alone() -> None:
    policy = policy_of(learner_of("cma"))
    together = walk(policy, {0: 1, 1: 2, 2: 3})
    alone = [walk(policy, {7: seed})[0] for seed in (1, 2, 3)]
    drawn = [each.samples[0].labels.tolist() for each in together]
    assert drawn == [each.samples[0].labels.tolist() for each in alone]
    with pytest.raises(KeyError):
        policy.recorded("1", 1)


def test_a_walk_ends_when_its_answers_are_used_up() -> None:
    for each in walk(policy_of(learner_of("cma"), turn_cap=2), {0: 1, 1: 2, 2: 3, 3: 4}):
        assert each.answers == each.formed == each.tokens[0] <= 2
        assert each.cut == (each.answers == 2) or not each.cut


def test_questions_are_steps_of_walks(tmp_path: Path) -> None:
    """The expert's action at a step that is an example, what was done before, and what is drawn in its place."""
    write_walks(tmp_path, "R2R")
    content = FAMILY.read_set(tmp_path / "R2R", options())
    model = learner_of("cma")
    policy = policy_of(model)
    questions = policy.questions([content])
    assert len(questions) == 3
    for index, walked in enumerate(content.walks):
        wanted = walked.labels or walked.actions
        for seed in range(12):
            question = questions.question(index, str(seed))
            step = question.prompt.labels.shape[1] - 1
            assert step not in walked.strays
            assert question.expected == (wanted[step],)
            assert question.prompt.previous.tolist() == [[0, *walked.actions[:step]]]
            assert question.prompt.weights.tolist() == [[0] * step + [1]]
            (answer,) = policy.answer([question.prompt], [seed])
            (sample,) = answer.samples
            assert sample.labels[0, -1] == int(answer.actions[0])
            assert sample.labels[0, :-1].tolist() == question.prompt.labels[0, :-1].tolist()
    assert {len(questions.question(0, str(seed)).prompt.words[0]) for seed in range(12)} == {5, 8}


def test_what_has_no_meaning_here_is_refused() -> None:
    for changes, message in (
        ({"progress_weight": 0.5}, "--progress-weight: for --objective supervised"),
        ({"mirror": 0.5}, "--mirror: for --objective supervised"),
        ({"rollouts": "episodes", "expert_prefix": 0.5}, "--expert-prefix: these networks go by what"),
    ):
        with pytest.raises(UsageError) as caught:
            options(**changes).check()
        assert str(caught.value).startswith(message)


def test_the_progress_monitor_of_a_checkpoint_stays(tmp_path: Path) -> None:
    learner = learner_of("cma")
    config = replace(learner.whole, network=replace(learner.whole.network, progress_monitor=True))
    save_folder(Policy(config.network), config, tmp_path / "base")
    family: Any = Whole(SPEC)
    placement = family.placement(options(), Process(0, 0, 1, torch.device("cpu")).device)
    loaded = family.load(tmp_path / "base", options(), placement)
    assert loaded.whole.network.progress_monitor, "it is saved as it was"
    name = "net.progress_monitor.weight"
    assert rule_of(family.parts(loaded, options()), name).trains == "never", "nothing of the loss looks at it"
    assert rule_of(family.parts(loaded, VLNCETraining(checkpoint="", out=Path())), name).trains == "with its part"
