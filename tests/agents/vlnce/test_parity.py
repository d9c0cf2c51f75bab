"""CMA and Seq2Seq compute what VLN-CE's own classes did: every run, step and intermediate that was recorded."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from agents.common.sight.options import Views
from agents.vlnce.network import Learner, Policy, Steps, sequence_losses
from agents.vlnce.options import FAMILY as VLNCE
from agents.vlnce.options import Config
from tests.agents.vlnce import formula
from tests.agents.vlnce.recordings import CONFIGS, LOOSE, Recordings, check_step, step
from tests.families import Whole
from vlnbench.interfaces import Conventions

TINY = ("cma_tiny", "seq2seq_tiny")
FULL = (
    *("cma", "cma_pm", "cma_rxr", "seq2seq", "seq2seq_pm", "seq2seq_prev_action"),
    *(f"{kind}_ablate_{what}" for kind in ("cma", "seq2seq") for what in ("instruction", "depth", "rgb")),
    "cma_normalize_rgb",
)


@pytest.fixture(scope="module")
def recordings(shared: Path) -> Recordings:
    return Recordings(shared / "goldens/vlnce_cma")


@pytest.mark.parametrize("name", [*TINY, *(pytest.param(name, marks=pytest.mark.slow) for name in FULL)])
def test_every_step_of_a_run(recordings: Recordings, name: str) -> None:
    policy = recordings.model(name)
    states = policy.new_states(2)
    for t, recorded in enumerate(recordings.steps(name)):
        words = recordings.words(name, recorded["instructions"])
        seen = step(policy, words, recordings.features(name, recorded["frames"]), recorded, states)
        check_step(seen, recorded)
        states = seen.states
        arrays = recordings.arrays
        if f"{name}/logits" in arrays:
            np.testing.assert_allclose(seen.logits.numpy(), arrays[f"{name}/logits"][t], atol=LOOSE)
            np.testing.assert_allclose(states.numpy(), arrays[f"{name}/states"][t], atol=LOOSE)
            np.testing.assert_allclose(
                seen.inside["x_features"].numpy(), arrays[f"{name}/features"][t], atol=LOOSE
            )
        for kind, weights in zip(("attn_text", "attn_rgb", "attn_depth"), seen.attention, strict=False):
            if f"{name}/{kind}" in arrays:
                expected = arrays[f"{name}/{kind}"][t, :, : weights.shape[1]]
                np.testing.assert_allclose(weights.numpy(), expected, atol=LOOSE)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cma", "seq2seq"])
def test_the_encoders_first_outputs(recordings: Recordings, name: str) -> None:
    recorded = recordings.steps(name)[0]
    policy = recordings.model(name)
    words = recordings.words(name, recorded["instructions"])
    features = recordings.features(name, recorded["frames"])
    seen = step(policy, words, features, recorded, policy.new_states(2))
    for encoder in ("instruction_encoder", "depth_encoder", "rgb_encoder"):
        expected = recordings.arrays[f"{name}/step0_slot0_{encoder}"]
        np.testing.assert_allclose(seen.inside[encoder][0].numpy(), expected, atol=LOOSE)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cma", "seq2seq"])
def test_odd_instructions(recordings: Recordings, name: str) -> None:
    first = recordings.steps(name)[0]
    policy = recordings.model(name)
    features = recordings.features(name, first["frames"])
    for case in recordings.run(f"{name}_edge_instructions")["cases"]:
        tokens = torch.tensor(case["tokens"])
        if case["exception"] is not None:
            with pytest.raises(ValueError, match="without words"):
                policy.read(tokens)
        else:
            check_step(step(policy, tokens, features, first, policy.new_states(2)), case["step"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cma_pm_sequence", "seq2seq_pm_sequence"])
def test_the_training_call(recordings: Recordings, name: str) -> None:
    """Whole episodes at once: losses, and the norm of every gradient."""
    run, base = recordings.run(name), name.removesuffix("_sequence")
    policy = recordings.model(base).train()
    steps = recordings.steps(base)
    rgb, depth = recordings.features(base, [frame for one in steps for frame in one["frames"]])
    told = sorted({instruction for one in steps for instruction in one["instructions"]})
    rows = torch.tensor([told.index(instruction) for one in steps for instruction in one["instructions"]])
    policy.zero_grad()
    decided = policy(
        Steps(
            policy.read(recordings.words(base, told))[rows],
            rgb,
            depth,
            torch.tensor(run["prev_actions"]).flatten(),
            torch.tensor(run["masks"], dtype=torch.bool).flatten(),
        ),
        policy.new_states(2),
    )
    losses = sequence_losses(
        policy.config,
        decided,
        torch.tensor(run["corrected_actions"]),
        torch.tensor(run["weights"]),
        torch.tensor(run["progress_target"]),
    )
    losses.total.backward()
    policy.eval()
    logits = decided.logits.detach().view(12, 2, 4)
    np.testing.assert_allclose(logits.numpy(), recordings.arrays[f"{name}/logits"], atol=LOOSE)
    np.testing.assert_allclose(
        decided.states.detach().numpy(), recordings.arrays[f"{name}/final_states"], atol=LOOSE
    )
    np.testing.assert_allclose(decided.progress.detach().view(12, 2).numpy(), run["progress_tanh"], atol=LOOSE)
    for found, expected in zip(
        (losses.total, losses.action, losses.progress), ("loss", "action_loss", "aux_loss"), strict=True
    ):
        assert found.item() == pytest.approx(run[expected], abs=LOOSE)
    norms = {key: p.grad.norm().item() for key, p in policy.named_parameters() if p.grad is not None}
    assert norms == pytest.approx(run["grad_l2"], rel=1e-3, abs=1e-6)  # one is zero but for rounding


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cma_pm_sequence", "seq2seq_pm_sequence"])
def test_the_loss_of_the_family(recordings: Recordings, name: str) -> None:
    """The first slot is one episode: its loss by the recorded logits, and gradients where they were recorded."""
    run, base = recordings.run(name), name.removesuffix("_sequence")
    steps, policy = recordings.steps(base), recordings.model(base)
    views = Views((224, 224), (256, 256), (0.0, 10.0))
    learner = Learner(Config(policy.config, views, Conventions(), samples=False))
    learner.load_state_dict(policy.state_dict())
    (told,) = {one["instructions"][0] for one in steps}
    rgb, depth = recordings.features(base, [one["frames"][0] for one in steps])

    def first(field: str) -> torch.Tensor:
        return torch.tensor(run[field]).view(12, 2)[:, 0]

    labels, weights, progress = first("corrected_actions"), first("weights"), first("progress_target")
    batch = {
        "frames": [torch.cat([rgb.flatten(1), depth.flatten(1)], dim=1)],
        "words": recordings.words(base, [told]),
        "walk_of": torch.tensor([0]),
        "previous": first("prev_actions")[None],
        "labels": labels[None],
        "weights": weights[None],
        "progress": progress[None],
        "rows": torch.arange(12)[None],
    }
    loss = Whole(VLNCE).loss(learner.train(), batch)
    logits = torch.from_numpy(recordings.arrays[f"{name}/logits"][:, 0])
    entropy = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    squares = (first("progress_tanh") - progress) ** 2
    expected = (weights * entropy).sum() / weights.sum() + squares[weights > 0].mean()
    assert loss.item() == pytest.approx(expected.item(), abs=LOOSE)
    loss.backward()  # type: ignore[no-untyped-call]
    assert {key for key, each in learner.named_parameters() if each.grad is not None} == set(run["grad_l2"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cma", "seq2seq"])
def test_any_batch_and_order_of_slots(recordings: Recordings, name: str) -> None:
    """Each slot alone, and both in reverse: the recorded actions, and logits within the tolerance."""
    policy = recordings.model(name)
    for order in ([0], [1], [1, 0]):
        states = policy.new_states(len(order))
        for recorded in recordings.steps(name):
            mine = {
                key: [value[slot] for slot in order] for key, value in recorded.items() if isinstance(value, list)
            }
            words = recordings.words(name, mine["instructions"])
            seen = step(policy, words, recordings.features(name, mine["frames"]), mine, states)
            states = seen.states
            np.testing.assert_allclose(seen.logits.numpy(), mine["logits"], atol=LOOSE)
            assert seen.logits.argmax(dim=1).tolist() == mine["greedy_action"]


def test_names_shapes_and_training_of_all_entries(recordings: Recordings) -> None:
    dicts = recordings.traces["state_dicts"]
    for name in ("cma", "seq2seq", "cma_rxr"):
        with torch.device("meta"):
            policy = Policy(CONFIGS[name])
        trained = {key: parameter.requires_grad for key, parameter in policy.named_parameters()}
        roles = {True: "trainable", False: "frozen", None: "buffer"}
        found = [
            [key, list(value.shape), str(value.dtype).removeprefix("torch."), roles[trained.get(key)]]
            for key, value in policy.state_dict().items()
        ]
        assert found == dicts[name]["keys"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cma", "seq2seq"])
def test_the_made_weights_are_those_of_the_recordings(recordings: Recordings, name: str) -> None:
    """Else the other tests would compare two different networks."""
    digest = hashlib.sha256()
    for value in recordings.model(name).state_dict().values():
        digest.update(value.numpy().tobytes())
    assert digest.hexdigest() == recordings.traces["weights"][name]["sha256_all_in_key_order"]


def test_made_frames_are_those_of_the_recordings(recordings: Recordings) -> None:
    for frame in ("ep0/0", "ep1/3"):
        recorded = recordings.traces["frames"][frame]
        assert hashlib.sha256(formula.rgb(frame).tobytes()).hexdigest() == recorded["rgb_sha256"]
        assert hashlib.sha256(formula.depth(frame).tobytes()).hexdigest() == recorded["depth_sha256"]
