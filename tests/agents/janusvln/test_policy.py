"""JanusVLN learns from rewards: it is trained on what it drew, with what VGGT remembers of frames not shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agents.janusvln.options import PARTS
from agents.janusvln.samples import GEOMETRIES, JanusVLNPolicy
from tests.agents.janusvln.test_family import Made
from tests.agents.janusvln.tiny import IMAGE
from tests.fakes import make_episode
from tests.training.objectives.grpo.test_learner import ALONE, Engine
from tests.training.rewarded import rewarded
from vlnbench.interfaces import Action, Observation
from vlnbench.training.family.policy import Recorded, Sampling
from vlnbench.training.objectives.grpo.groups import ScoredRollout, Update
from vlnbench.training.objectives.grpo.learner import Learner
from vlnbench.training.objectives.grpo.reference import WithoutAdapters, make_reference
from vlnbench.training.objectives.grpo.tally import Tally
from vlnbench.training.parts import freeze


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("janusvln"), history=2)


def policy_of(made: Made, **sampling: Any) -> JanusVLNPolicy:
    policy = made.family.policy(made.model, made.base, made.options, Sampling(1.0, answer_tokens=3, **sampling))
    assert isinstance(policy, JanusVLNPolicy)
    policy.renew()
    return policy


def walk(policy: JanusVLNPolicy, seeds: list[int], steps: int = 5) -> list[Recorded]:
    """Walks side by side, one per seed; STOP is done like a step."""
    agent = policy.agent()
    noise = np.random.default_rng(2)
    for slot, seed in enumerate(seeds):
        agent.reset(slot, make_episode(1), seed)
    done: dict[int, Action] = {}
    for step in range(steps):
        frame = noise.integers(0, 256, (105, 140, 3), dtype=np.uint8)
        left = [slot for slot in range(len(seeds)) if not policy.is_used_up(slot)]
        done = agent.act({slot: Observation("", step, rgb=frame) for slot in left}) if left else done
    return [policy.recorded("1", seed) for seed in seeds]


@pytest.mark.slow
def test_it_is_learned_from_rewards_as_it_was_drawn(made: Made) -> None:
    """Ratio 1, a gradient in every part, and the log-probabilities of acting, which a question alone lacks."""
    recorded = walk(policy_of(made), [5, 6])
    assert [each.answers for each in recorded] == [5, 5]
    assert recorded[0].samples[0].labels != recorded[1].samples[0].labels
    given = {**vars(made.options), "objective": "grpo", "rollouts": "episodes", "batch": 4, "accumulation": 3}
    options = rewarded(type(made.options))(**given, group=2)
    tally = Tally(ALONE)
    learner = Learner(options, made.family, ALONE, tally, None)
    judged = tuple(ScoredRollout(each, gain) for each, gain in zip(recorded, (1.0, -1.0), strict=True))
    learner.take(Update(judged, tuple(sum(each.tokens) for each in recorded), recorded[0].samples[0]), 3)
    made.model.train()
    for loss in learner.losses(Engine(made.model)):
        loss.backward()  # type: ignore[no-untyped-call]
    told = tally.take()
    assert told["ratio"] == 1.0
    assert told["drawn_apart"] < 1e-4
    moved = {
        made.family.part_of(name)
        for name, each in made.model.named_parameters()
        if each.grad is not None and bool((each.grad != 0).any())
    }
    assert moved == set(PARTS)
    last = recorded[0].samples[-1]
    (kept,) = last.geometries
    (alone,) = made.model.final_geometries([last.frames])
    assert kept.features.shape == alone.shape
    assert float((kept.features - alone).abs().max()) > 1e-4, "two of five frames are not shown"
    batch = made.family.collate(recorded[0].samples)
    assert len(batch[GEOMETRIES].known) == 5


def test_the_reference_has_the_output_layer_of_the_start(tmp_path: Path) -> None:
    """Beside adapters, --train-head trains one layer that cannot be taken away as adapters can."""
    made = Made(tmp_path, history=2, tunable_parts=())
    (sample,) = walk(policy_of(made), [5], steps=1)[0].samples
    batch = made.family.collate([sample])
    given = {"train_head": True, "lora_rank": 2, "lora_dropout": 0.0, "group": 2, "beta": 0.1}
    options = {**vars(made.options), **given, "objective": "grpo", "rollouts": "steps"}
    chosen = rewarded(type(made.options))(**options)

    def scores() -> torch.Tensor:
        found: torch.Tensor = made.family.log_probabilities(made.model, dict(batch), 1.0).log_probabilities
        return found

    first = scores().detach()
    freeze(made.model, made.family, chosen)
    reference = make_reference(made.model, chosen, ALONE)
    assert isinstance(reference, WithoutAdapters)
    optimizer = torch.optim.SGD([each for each in made.model.parameters() if each.requires_grad], lr=1.0)
    scores().sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    trained = scores()
    assert not torch.allclose(trained, first, atol=1e-3)
    with torch.no_grad(), reference.used():
        assert torch.equal(scores(), first)
    assert torch.equal(scores(), trained), "and the network goes on as it was trained"
    trained.sum().backward()  # type: ignore[no-untyped-call]


@pytest.mark.slow
def test_what_is_drawn_depends_on_the_seed_alone_and_ends_with_the_answers(made: Made) -> None:
    policy = policy_of(made)
    together = walk(policy, [1, 2], steps=3)
    alone = [walk(policy, [seed], steps=3)[0] for seed in (1, 2)]
    drawn = [[sample.labels for sample in each.samples] for each in together]
    assert drawn == [[sample.labels for sample in each.samples] for each in alone]
    for each in walk(policy_of(made, turn_cap=2), [1, 2]):
        assert (each.answers, each.cut) == (2, True)


@pytest.mark.parametrize("factor", [1000, -1000])
def test_the_image_token_is_never_drawn_and_takes_no_share(tmp_path: Path, factor: int) -> None:
    """A drawn one would ask for a frame that nobody gave; the others add up to 1 without it."""
    made = Made(tmp_path, history=2)
    with torch.no_grad():
        head = made.model.lm_head.weight
        head[IMAGE] = factor * head[IMAGE]  # far above all others for some states
    policy = policy_of(made)
    frame = torch.zeros(1, 84, 140, 3, dtype=torch.uint8)
    asked = (policy._prompts.question("Go.", 1), frame)
    found = policy.answer([asked] * 8, list(range(8)))
    assert all(IMAGE not in each.samples[0].labels for each in found)
    batch = made.family.collate(found[0].samples)
    batch[GEOMETRIES] = [batch[GEOMETRIES].known[places] for places in batch[GEOMETRIES].order]
    with torch.no_grad():
        logits = made.model(**batch, want_logits=False, at_labels=True).logits
    assert float(logits.softmax(-1)[:, IMAGE].max()) == 0
