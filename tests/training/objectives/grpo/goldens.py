"""What TRL's GRPO trainer makes of a few drawn cases: losses, gradients and advantages.

`python -m tests.training.objectives.grpo.goldens` writes goldens.json anew, where TRL is installed.
"""

from __future__ import annotations

import inspect
import json
import textwrap
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

FILE = Path(__file__).with_suffix(".json")

AGGREGATIONS = ("grpo", "dr_grpo", "bnpo", "dapo")
SCALINGS = ("group", "batch", "none")
BETAS = (0.0, 0.04)
CLIPS = (0.2, 0.28)
LENGTHS = (3, 7, 1, 5, 4, 4)
"""Tokens of the answers of a case."""
LONGEST = 8


def case(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Log-probabilities now, when drawn and of a reference, (answers, LONGEST), their mask, and advantages."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(LENGTHS), LONGEST)
    old = -torch.rand(shape, generator=generator, dtype=torch.float64)
    new = old + 0.4 * torch.randn(shape, generator=generator, dtype=torch.float64)
    reference = old + 0.2 * torch.randn(shape, generator=generator, dtype=torch.float64)
    mask = (torch.arange(LONGEST)[None] < torch.tensor(LENGTHS)[:, None]).double()
    return new, old, reference, mask, torch.randn(len(LENGTHS), generator=generator, dtype=torch.float64)


def rewards(seed: int) -> Tensor:
    """Rewards (groups, size)."""
    return torch.rand(3, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def trl_loss(aggregation: str, beta: float, seed: int) -> tuple[float, Tensor]:
    """TRL's loss of a case and its gradient by the log-probabilities (answers, LONGEST)."""
    from trl import GRPOTrainer  # type: ignore[import-not-found]

    new, old, reference, mask, advantages = case(seed)
    new.requires_grad_(True)
    arguments = SimpleNamespace(
        delta=None, use_bias_correction_kl=False, steps_per_generation=1, report_to=[], entropy_coef=0.0
    )
    trainer: Any = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (new, torch.zeros_like(new), None),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level="token",
        beta=beta,
        epsilon_low=CLIPS[0],
        epsilon_high=CLIPS[1],
        loss_type=aggregation,
        args=arguments,
        use_vllm=False,
        vllm_importance_sampling_correction=False,
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        max_completion_length=LONGEST,
        accelerator=SimpleNamespace(num_processes=1, gather=lambda each: each, reduce=lambda each, **_: each),
        _metrics={"train": defaultdict(list)},
        _entropy_bonus_enabled=False,
    )
    inputs = {
        "prompt_ids": torch.zeros(len(LENGTHS), 1, dtype=torch.long),
        "prompt_mask": torch.ones(len(LENGTHS), 1, dtype=torch.long),
        "completion_ids": torch.zeros(len(LENGTHS), LONGEST, dtype=torch.long),
        "completion_mask": mask,
        "advantages": advantages,
        "old_per_token_logps": old,
        "ref_per_token_logps": reference,
        "num_items_in_batch": mask.sum(),
    }
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    loss.backward()
    assert new.grad is not None
    return float(loss.detach()), new.grad


def trl_advantages(scaling: str, seed: int) -> Tensor:
    """TRL's advantages, by the lines of its trainer that compute them."""
    from trl import GRPOTrainer
    from trl.trainer import grpo_trainer  # type: ignore[import-not-found]

    found = rewards(seed)
    lines = inspect.getsource(GRPOTrainer._generate_and_score_completions).splitlines()
    first = next(i for i, line in enumerate(lines) if "mean_grouped_rewards = torch.nanmean" in line)
    last = next(i for i, line in enumerate(lines) if "is_std_zero = torch.isclose" in line)
    names: dict[str, Any] = {
        "torch": torch,
        "nanstd": grpo_trainer.nanstd,
        "self": SimpleNamespace(scale_rewards=scaling),
        "rewards": found.flatten(),
        "num_generations": found.shape[1],
    }
    exec(textwrap.dedent("\n".join(lines[first:last])), names)  # its own code, to compare with
    made: Tensor = names["advantages"]
    return made.view_as(found)


def make() -> dict[str, Any]:
    """All cases."""
    import trl

    losses = []
    for aggregation in AGGREGATIONS:
        for beta in BETAS:
            loss, gradient = trl_loss(aggregation, beta, seed=1)
            rounded = [[round(value, 12) for value in row] for row in gradient.tolist()]
            losses.append({"aggregation": aggregation, "beta": beta, "loss": loss, "gradient": rounded})
    judged = {
        scaling: [[round(value, 12) for value in row] for row in trl_advantages(scaling, seed=2).tolist()]
        for scaling in SCALINGS
    }
    return {"trl": trl.__version__, "losses": losses, "advantages": judged}


if __name__ == "__main__":
    FILE.write_text(json.dumps(make()).replace("}, {", "},\n{") + "\n")
