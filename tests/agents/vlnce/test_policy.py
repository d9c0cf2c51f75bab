"""The arithmetic of CMA and Seq2Seq, pinned by numbers that VLN-CE's own classes gave for small made models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from agents.common.towers.grids import Patches
from agents.vlnce.network import Decisions, Policy, Steps, sequence_losses
from agents.vlnce.options import PRESETS, Kind, NetworkConfig
from tests.agents.vlnce import formula
from tests.agents.vlnce.released import tiny

EPISODES = ("ep0", "ep1")
# Logits of the original classes (commit 729d141) in six steps of two slots, and the previous actions fed to them.
CMA = [
    [[0.8723, -0.551523, 3.098421, 0.882192], [1.715486, 0.618305, 3.777565, 0.405327]],
    [[3.014566, 1.03047, 3.741067, 1.537937], [1.213331, -0.981322, 2.786737, 1.814976]],
    [[2.978069, 1.682212, 2.564084, 4.292098], [0.875905, 1.132449, 2.030452, 4.552756]],
    [[5.674429, 0.885335, 1.183507, 2.227438], [5.884073, 0.013064, 1.370482, 1.002915]],
    [[4.97961, -0.340279, -0.011951, 3.105582], [4.621274, -0.939964, -0.24601, 2.850419]],
    [[4.32616, -0.391666, -0.638561, 3.548855], [4.166767, -0.86162, -0.958438, 2.437435]],
]
CMA_PREVIOUS = [[0, 0], [2, 2], [2, 2], [3, 3], [0, 0], [0, 0]]
SEQ2SEQ = [
    [[3.077496, -5.011987, -1.674033, -2.02527], [4.091737, -6.392027, -2.126566, -2.001171]],
    [[4.717401, -6.2348, -1.116817, -1.782305], [4.199014, -8.273839, -0.232557, -1.523959]],
    [[5.36881, -6.893664, -1.206147, -1.079317], [5.010974, -7.715559, -0.762565, -0.307095]],
    [[5.908502, -7.586054, -0.996956, -0.696338], [5.858271, -8.160136, -0.164779, -0.522594]],
    [[6.811176, -7.383334, -1.621219, -0.612686], [6.769324, -8.1226, -1.146007, 0.025762]],
    [[5.638993, -8.120669, -1.871816, 0.237053], [6.183889, -7.447419, -2.287594, 0.156421]],
]
RECORDED = {"cma": (CMA, CMA_PREVIOUS), "seq2seq": (SEQ2SEQ, [[0, 0]] * 6)}


def made(config: NetworkConfig) -> Policy:
    with torch.device("meta"):
        policy = Policy(config)
    return formula.fill(policy)


@pytest.fixture(scope="module", params=["cma", "seq2seq"])
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.fixture(scope="module")
def policy(kind: Kind) -> Policy:
    return made(tiny(kind))


@pytest.fixture(scope="module")
def words() -> Tensor:
    """(2, 200) made tokens of two instructions."""
    rows = np.zeros((2, 200), np.int64)
    for i, length in enumerate((17, 30)):
        rows[i, :length] = 1 + formula.draw(f"tokens/tiny{i}", length) % 39
    return torch.from_numpy(rows)


@pytest.fixture(scope="module")
def features(policy: Policy) -> tuple[Tensor, Tensor]:
    """What the encoders make of both slots' six frames, time-major."""
    names = [f"{name}/{step}" for step in range(6) for name in EPISODES]
    rgb = torch.from_numpy(np.stack([formula.rgb(name) for name in names]))
    depth = torch.from_numpy(np.stack([formula.depth(name) for name in names]))
    with torch.no_grad():
        return policy.see(rgb, depth)


def steps(kind: Kind, instructions: Tensor, features: tuple[Tensor, Tensor]) -> Steps:
    """All six steps of both slots at once."""
    masks = torch.arange(12) >= 2
    previous = torch.tensor(RECORDED[kind][1]).flatten()
    return Steps(instructions, *features, previous, masks)


def one(all_steps: Steps, t: int) -> Steps:
    """Step t of both slots."""
    rows = slice(2 * t, 2 * t + 2)
    return Steps(
        all_steps.instructions,
        *(getattr(all_steps, name)[rows] for name in ("rgb", "depth", "previous", "masks")),
    )


@torch.no_grad()
def test_recorded_logits_step_by_step(
    kind: Kind, policy: Policy, words: Tensor, features: tuple[Tensor, Tensor]
) -> None:
    together = steps(kind, policy.read(words), features)
    states = policy.new_states(2)
    for t, expected in enumerate(RECORDED[kind][0]):
        decided = policy(one(together, t), states)
        states = decided.states
        np.testing.assert_allclose(decided.logits, expected, atol=1e-4)


@torch.no_grad()
def test_a_sequence_is_its_steps(
    kind: Kind, policy: Policy, words: Tensor, features: tuple[Tensor, Tensor]
) -> None:
    decided = policy(steps(kind, policy.read(words), features), policy.new_states(2))
    np.testing.assert_allclose(decided.logits.view(6, 2, 4), RECORDED[kind][0], atol=1e-4)


@torch.no_grad()
def test_an_episode_that_begins_forgets_what_was_before(
    kind: Kind, policy: Policy, words: Tensor, features: tuple[Tensor, Tensor]
) -> None:
    """Whatever the state and the action before: with the mask at 0 a step is a first step."""
    together = steps(kind, policy.read(words), features)
    first = one(together, 0)
    dirty = replace(first, previous=torch.tensor([3, 1]))
    anew = policy(dirty, torch.ones(2, policy.net.layers, 32))
    np.testing.assert_allclose(anew.logits, RECORDED[kind][0][0], atol=1e-4)
    begins = together.masks.clone()
    begins[7] = False  # slot 1 in step 3
    decided = policy(replace(together, masks=begins), policy.new_states(2))
    states = policy.new_states(2)
    for t in range(6):
        single = replace(one(together, t), masks=begins[2 * t : 2 * t + 2])
        stepwise = policy(single, states)
        states = stepwise.states
        np.testing.assert_allclose(decided.logits.view(6, 2, 4)[t], stepwise.logits, atol=1e-5)
    np.testing.assert_allclose(decided.states, states, atol=1e-5)
    np.testing.assert_allclose(decided.logits.view(6, 2, 4)[:, 0], np.array(RECORDED[kind][0])[:, 0], atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("switch", ["ablate_instruction", "ablate_depth", "ablate_rgb"])
def test_what_is_ablated_changes_nothing(
    kind: Kind, policy: Policy, words: Tensor, features: tuple[Tensor, Tensor], switch: str
) -> None:
    ablated = made(replace(tiny(kind), **{switch: True}))
    told = steps(kind, ablated.read(words), features)
    other = {
        "ablate_instruction": replace(told, instructions=ablated.read(words.flip(0))),
        "ablate_depth": replace(told, depth=told.depth.flip(0)),
        "ablate_rgb": replace(told, rgb=told.rgb.flip(0)),
    }
    states = policy.new_states(2)
    for name, changed in other.items():
        difference = (ablated(changed, states).logits - ablated(told, states).logits).abs().max()
        assert (difference < 1e-6) == (name == switch), name
        assert (policy(changed, states).logits - policy(told, states).logits).abs().max() > 1e-3, name


def test_the_loss_by_hand() -> None:
    """Two slots of two steps: the second slot has ended after its first step."""
    steps = [[0.5, 0.25, 0.125, 0.125], [0.25, 0.25, 0.25, 0.25], [0.125, 0.5, 0.25, 0.125], [0.7, 0.1, 0.1, 0.1]]
    progress = torch.tensor([0.0, 0.5, 0.5, 0.9])
    decided = Decisions(torch.tensor(steps).log(), progress, torch.zeros(2, 1, 32))
    labels = torch.tensor([[0, 1], [1, 2]])
    given = torch.tensor([[1.0, 3.2], [3.2, 0.0]])
    target = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    config = replace(tiny(), progress_monitor=True, progress_weight=2.0)
    losses = sequence_losses(config, decided, labels, given, target)
    two = float(np.log(2))
    first, second = (1.0 * two + 3.2 * two) / 4.2, 2 * two
    assert losses.action.item() == pytest.approx((first + second) / 2)
    assert losses.progress.item() == pytest.approx(2.0 * (0.0 + 0.25 + 0.25) / 3)
    assert losses.total.item() == pytest.approx(losses.action.item() + losses.progress.item())
    without = sequence_losses(tiny(), decided, labels, given, target)
    assert without.total.item() == without.action.item() == losses.action.item()
    assert without.progress.item() == 0


def test_training_mode_leaves_the_frozen_network_alone(policy: Policy) -> None:
    """Its batch norm keeps the statistics it was trained with; and no gradient reaches it."""
    frame = torch.from_numpy(formula.rgb("ep0/0"))[None]
    with torch.no_grad():
        before = policy.net.rgb_encoder.features(frame)
    policy.train()
    after = policy.net.rgb_encoder.features(frame)
    policy.eval()
    assert torch.equal(before, after)
    assert not after.requires_grad


def test_an_instruction_without_words(policy: Policy) -> None:
    with pytest.raises(ValueError, match="without words"):
        policy.read(torch.zeros(1, 200, dtype=torch.int64))


@pytest.mark.parametrize("kind", ["cma", "seq2seq"])
@torch.no_grad()
def test_a_frame_that_several_rows_see_counts_as_one_for_each(kind: Kind) -> None:
    """Two instructions about one walk of three frames: frames looked at once, or once for each of them."""
    torch.manual_seed(0)
    small = Policy(replace(PRESETS[f"{kind}-tiny"].network, vocab_size=9)).eval()
    frames = torch.randint(0, 256, (3, 48, 64, 3), dtype=torch.uint8)
    rgb, depth = small.see(frames, torch.rand(3, 48, 64))
    words = small.read(torch.tensor([[2, 3, 4], [5, 6, 0]]))
    seen, begun = torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([0, 0, 1, 1, 1, 1], dtype=torch.bool)
    previous = torch.tensor([0, 0, 1, 2, 3, 1])
    once = small(Steps(words, rgb, depth, previous, begun, seen), small.new_states(2))
    each = small(Steps(words, rgb[seen], depth[seen], previous, begun), small.new_states(2))
    torch.testing.assert_close(once.logits, each.logits)
    torch.testing.assert_close(once.states, each.states)
    told = words[torch.arange(6) % 2]
    by_row = small(Steps(told, rgb[seen], depth[seen], previous, begun), small.new_states(2))
    torch.testing.assert_close(by_row.logits, each.logits)


@pytest.mark.parametrize("size", [(8, 12), (9, 15)])
def test_patches_are_a_convolution(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    patches = Patches(3, 5, 4)
    images = torch.randn(2, 3, *size)
    wanted = nn.functional.conv2d(images, patches.weight, patches.bias, stride=4)
    torch.testing.assert_close(patches(images), wanted)
