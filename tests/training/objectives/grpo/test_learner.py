from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from agents.common.packing.loss import pack
from agents.streamvln.family import create
from agents.streamvln.network import load
from agents.streamvln.options import FAMILY as STREAMVLN
from agents.streamvln.options import StreamVLNTraining
from agents.streamvln.samples import StreamVLNPolicy
from tests.fakes import make_episode
from tests.families import Whole
from tests.training.rewarded import rewarded
from tests.training.workshop import SMALL, TEXTS
from vlnbench.interfaces import Action, Observation
from vlnbench.training.family.policy import Recorded, Sampling
from vlnbench.training.objectives.grpo.groups import ScoredRollout, Update
from vlnbench.training.objectives.grpo.learner import Learner
from vlnbench.training.objectives.grpo.reference import FrozenCopy, WithoutAdapters, make_reference
from vlnbench.training.objectives.grpo.tally import Tally
from vlnbench.training.parts import freeze
from vlnbench.training.setup import Process

ALONE = Process(0, 0, 1, torch.device("cpu"))


class Engine(nn.Module):
    """What of DeepSpeed's engine the learner needs."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.ends: list[bool] = []

    def forward(self, *arguments: Any, **named: Any) -> Any:
        return self.module(*arguments, **named)

    def set_gradient_accumulation_boundary(self, last: bool) -> None:
        self.ends.append(last)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("grpo") / "base"
    create(SMALL, folder, TEXTS * 20, seed=0)
    return folder


def options(**changes: Any) -> Any:
    settings: dict[str, Any] = {"batch": 8, "accumulation": 1, "group": 4, "rollouts": "steps"}
    usual = dict(StreamVLNTraining.BEFORE)
    small = {"frames": 8, "history": 2, "objective": "grpo", "gradient_checkpointing": False}
    return rewarded(StreamVLNTraining)(checkpoint="", out=Path(), **(usual | settings | small | changes))


def policy_of(base: Path, model: Any, **changes: Any) -> StreamVLNPolicy:
    sampling = Sampling(changes.pop("temperature", 1.0), answer_tokens=6, **changes)
    made = StreamVLNPolicy(model, base, options(), sampling)
    made.renew()
    return made


def walk(policy: StreamVLNPolicy, seeds: list[int], steps: int = 14) -> list[Recorded]:
    """Walks side by side, one per seed, over frames of all colors; STOP is done like a step."""
    agent = policy.agent()
    rng = random.Random(5)
    colors = [[rng.randrange(256) for _ in range(3)] for _ in range(steps)]
    episode = replace(make_episode(1), instruction=TEXTS[0])
    for slot, seed in enumerate(seeds):
        agent.reset(slot, episode, seed)
    left = set(range(len(seeds)))
    for step, color in enumerate(colors):
        frame = np.full((24, 32, 3), color, dtype=np.uint8)
        done = agent.act({slot: Observation("", step, rgb=frame) for slot in sorted(left)}) if left else {}
        left -= {slot for slot, action in done.items() if action is Action.STOP}
    return [policy.recorded("1", seed) for seed in seeds]


@pytest.fixture(scope="module")
def walked(base: Path) -> tuple[Any, list[Recorded]]:
    model = load(base)
    return model, walk(policy_of(base, model, temperature=1.5), [11, 12, 13, 14])


def learned(model: Any, update: Update, **changes: Any) -> tuple[float, dict[str, torch.Tensor], dict[str, float]]:
    """The loss of an update, the gradients, and what was told of it."""
    chosen, tally = options(**changes), Tally(ALONE)
    learner = Learner(chosen, Whole(STREAMVLN), ALONE, tally, make_reference(model, chosen, ALONE))
    learner.take(update, longest=24)
    model.zero_grad(set_to_none=True)
    total = 0.0
    for loss in learner.losses(Engine(model)):
        (loss / chosen.accumulation).backward()  # type: ignore[no-untyped-call]
        total += loss.item() / chosen.accumulation
    gradients = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    return total, gradients, tally.take()


def update_of(recorded: list[Recorded], advantages: list[float]) -> Update:
    judged = [ScoredRollout(each, gain) for each, gain in zip(recorded, advantages, strict=True)]
    lengths = tuple(sum(each.tokens) for each in recorded)
    return Update(tuple(judged), lengths, recorded[0].samples[0])


def largest(gradients: dict[str, torch.Tensor]) -> float:
    return max(float(each.abs().max()) for each in gradients.values())


def apart(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> float:
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first) / largest(first)


GAINS = [1.0, -0.5, 0.25, -0.75]


def test_what_is_drawn_depends_on_the_seed_and_not_on_what_is_beside_it(
    base: Path, walked: tuple[Any, list[Recorded]]
) -> None:
    model, together = walked
    policy = policy_of(base, model, temperature=1.5)
    alone = [walk(policy, [seed])[0] for seed in (11, 12, 13, 14)]
    drawn = [[sample.labels for sample in each.samples] for each in together]
    assert drawn == [[sample.labels for sample in each.samples] for each in alone]
    assert len({str(each) for each in drawn}) == 4


def test_the_first_update_has_a_ratio_of_exactly_1(walked: tuple[Any, list[Recorded]]) -> None:
    model, recorded = walked
    for packed in (False, True):
        pack(model, options(gradient_checkpointing=not packed))
        _, gradients, told = learned(model, update_of(recorded, GAINS), temperature=1.5)
        assert told["ratio"] == 1.0
        assert told["clipped"] == 0.0
        assert told["drawn_apart"] < 1e-4, "the network draws from the log-probabilities that it is trained on"
        assert told["entropy"] > 0
        assert largest(gradients) > 0
    model.packed_loss = None


@pytest.mark.parametrize("aggregation", ["grpo", "dapo", "dr_grpo"])
def test_neither_order_nor_batches_change_the_update(walked: tuple[Any, list[Recorded]], aggregation: str) -> None:
    model, recorded = walked
    loss, gradients, _ = learned(model, update_of(recorded, GAINS), aggregation=aggregation)
    turned = update_of(recorded[::-1], GAINS[::-1])
    for changes in ({"batch": 8}, {"batch": 1, "accumulation": 8}, {"batch": 2, "accumulation": 4}):
        other, others, _ = learned(model, turned, aggregation=aggregation, **changes)
        assert other == pytest.approx(loss, rel=1e-4, abs=1e-6)
        assert apart(gradients, others) < 1e-4


def test_the_loss_is_the_sum_of_its_definition(walked: tuple[Any, list[Recorded]]) -> None:
    """In the first update every ratio is 1: what is left are the advantages with the weights of the tokens."""
    model, recorded = walked
    lengths = [sum(each.tokens) for each in recorded]
    wanted = {
        "grpo": -sum(GAINS) / 4,
        "dapo": -sum(gain * length for gain, length in zip(GAINS, lengths, strict=True)) / sum(lengths),
        "dr_grpo": -sum(gain * length for gain, length in zip(GAINS, lengths, strict=True)) / (4 * 24),
    }
    for aggregation, loss in wanted.items():
        found, _, _ = learned(model, update_of(recorded, GAINS), aggregation=aggregation)
        assert found == pytest.approx(loss, abs=1e-5), aggregation


@pytest.mark.parametrize("passes", [1, 2, 4])
def test_an_answer_without_advantage_counts_in_the_divisor(
    walked: tuple[Any, list[Recorded]], passes: int
) -> None:
    """bnpo divides by the tokens of a forward pass: those of an answer whose advantage is 0 are among them."""
    model, recorded = walked
    gains = [1.0, 0.0, -0.5, 0.0]
    lengths = [each.tokens[0] for each in recorded]
    whole = [replace(each, samples=each.samples[:1], tokens=each.tokens[:1]) for each in recorded]
    losses = [-gain * length for gain, length in zip(gains, lengths, strict=True)]
    size = 4 // passes
    parts = [slice(first, first + size) for first in range(0, 4, size)]
    wanted = sum(sum(losses[part]) / sum(lengths[part]) for part in parts) / passes
    found, _, _ = learned(model, update_of(whole, gains), aggregation="bnpo", batch=size, accumulation=passes)
    assert found == pytest.approx(wanted, abs=1e-5)


def test_without_advantages_there_is_no_gradient(walked: tuple[Any, list[Recorded]]) -> None:
    model, recorded = walked
    loss, gradients, told = learned(model, update_of(recorded, [0.0] * 4))
    assert loss == 0.0
    assert largest(gradients) == 0.0
    assert "ratio" not in told, "nothing had to be computed"
    engine = Engine(model)
    learner = Learner(options(), Whole(STREAMVLN), ALONE, Tally(ALONE), None)
    learner.take(Update((), (), recorded[0].samples[0]), 24)
    assert len(list(learner.losses(engine))) == 1, "a step of the engine wants a backward pass all the same"
    assert engine.ends == [True]


def test_the_engine_is_told_the_last_pass(walked: tuple[Any, list[Recorded]]) -> None:
    model, recorded = walked
    engine = Engine(model)
    learner = Learner(options(batch=2, accumulation=4), Whole(STREAMVLN), ALONE, Tally(ALONE), None)
    learner.take(update_of(recorded, GAINS), 24)
    windows = sum(len(each.samples) for each in recorded)
    assert sum(1 for _ in learner.losses(engine)) == -(-windows // 2) > 1
    assert engine.ends == [*[False] * (len(engine.ends) - 1), True]


def test_later_steps_on_the_same_rollouts_have_other_ratios(base: Path) -> None:
    model = load(base)
    recorded = walk(policy_of(base, model), [1, 2])
    model.train()
    tally = Tally(ALONE)
    learner = Learner(options(iterations=2), Whole(STREAMVLN), ALONE, tally, None)
    learner.take(update_of(recorded, [1.0, -1.0]), 24)
    engine, optimizer = Engine(model), torch.optim.SGD(model.parameters(), lr=1.0)
    for loss in learner.losses(engine):
        loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    assert tally.take()["ratio"] == 1.0
    list(learner.losses(engine))
    told = tally.take()
    assert told["ratio"] != 1.0
    assert told["clipped"] > 0
    assert "drawn_apart" not in told


def test_the_divergence_starts_at_0_and_pulls_back(walked: tuple[Any, list[Recorded]]) -> None:
    model, recorded = walked
    _, gradients, told = learned(model, update_of(recorded, GAINS), beta=0.1)
    assert told["kl"] == 0.0
    _, without, _ = learned(model, update_of(recorded, GAINS))
    assert apart(gradients, without) < 1e-4
    loss, _, _ = learned(model, update_of(recorded, [0.0] * 4), beta=0.1)
    assert loss == 0.0


def test_the_reference_is_the_network_without_adapters_or_a_copy(base: Path) -> None:
    chosen = options(beta=0.1, lora_rank=4, tunable_parts=(), lora_dropout=0.0)
    model = load(base)
    recorded = walk(policy_of(base, model), [1, 2])
    freeze(model, Whole(STREAMVLN), chosen)
    reference = make_reference(model, chosen, ALONE)
    assert isinstance(reference, WithoutAdapters)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    tally = Tally(ALONE)
    learner = Learner(chosen, Whole(STREAMVLN), ALONE, tally, reference)
    learner.take(update_of(recorded, [1.0, -1.0]), 24)
    list(learner.losses(Engine(model)))
    assert tally.take()["kl"] > 0
    layers = [layer for layer in model.modules() if hasattr(layer, "base_layer")]
    assert layers
    assert not any(layer.disable_adapters for layer in layers)
    copied = make_reference(model, options(beta=0.1), ALONE)
    assert isinstance(copied, FrozenCopy)
    assert make_reference(model, options(), ALONE) is None


def test_a_network_with_adapters_acts_with_them(base: Path) -> None:
    """The small networks' own blocks know no adapters: such a network must not act through them."""
    model = load(base)
    freeze(model, Whole(STREAMVLN), options(lora_rank=4, tunable_parts=(), lora_dropout=0.0))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.5)
    recorded = walk(policy_of(base, model), [1, 2])
    tally = Tally(ALONE)
    learner = Learner(options(), Whole(STREAMVLN), ALONE, tally, None)
    learner.take(update_of(recorded, [1.0, -1.0]), 24)
    list(learner.losses(Engine(model)))
    assert tally.take()["drawn_apart"] < 1e-4


def test_answers_are_learned_from_and_nothing_else(walked: tuple[Any, list[Recorded]], base: Path) -> None:
    model, recorded = walked
    policy = policy_of(base, model)
    for each in recorded:
        assert sum(each.tokens) == len(each.log_probabilities)
        assert each.answers >= len(each.samples)
        for sample, tokens in zip(each.samples, each.tokens, strict=True):
            places = [place for place, label in enumerate(sample.labels) if label >= 0]
            assert len(places) == tokens
            assert all(sample.labels[place] == sample.input_ids[place] for place in places)
            header = policy._header
            assert sample.input_ids[places[0] - len(header) : places[0]] == header, "which is not drawn"


def test_a_walk_ends_when_its_answers_are_used_up(base: Path) -> None:
    model = load(base)
    policy = policy_of(base, model, turn_cap=2)
    for each in walk(policy, [3, 4, 5, 6], steps=40):
        assert each.answers <= 2
        assert each.cut == (each.answers == 2) or not each.cut


def test_answers_to_windows_are_drawn_by_their_seeds(base: Path) -> None:
    model = load(base)
    policy = policy_of(base, model)
    ids = policy._prompts.opening(TEXTS[0], "there is ", memory=False)
    prompt = (ids, torch.zeros(1, 3, 32, 32))
    first = policy.answer([prompt] * 3, [7, 8, 9])
    again = [policy.answer([prompt], [seed])[0] for seed in (9, 8, 7)][::-1]
    assert [each.samples[0].labels for each in first] == [each.samples[0].labels for each in again]
    assert len({str(each.samples[0].labels) for each in first}) == 3
    assert all(each.answers == 1 and each.actions for each in first)
