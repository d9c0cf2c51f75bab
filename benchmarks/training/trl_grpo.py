"""Losses and gradients of GRPO here beside those of TRL's trainer, on the same network: text, and with images.

    pip install trl
    python -m benchmarks.training.trl_grpo

Both sides have the same random network (transformers' Qwen2, or Qwen2.5-VL with two images per prompt), prompts,
answers and rewards. TRL gives advantages, log-probabilities and losses by its own code (`_compute_loss`, on a
trainer that is not constructed, for its constructor wants data and a device); here `advantages` and `Learner`
do. Compared are the first step on rollouts, where every ratio is 1, and one after the weights have moved, so
that clipping works; in one forward pass and in three; with an advantage of exactly 0 and a group without spread.
Loss: difference in relation to TRL's, at least to 0.1; gradient: norm of the difference in relation to that of
TRL's.
"""

from __future__ import annotations

import copy
import inspect
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor, nn

from vlnbench.training.family.policy import Recorded, Scored, scored
from vlnbench.training.objectives import get_objective
from vlnbench.training.objectives.grpo.groups import ScoredRollout, Update
from vlnbench.training.objectives.grpo.learner import Learner
from vlnbench.training.objectives.grpo.loss import advantages
from vlnbench.training.objectives.grpo.reference import FrozenCopy
from vlnbench.training.objectives.grpo.tally import Tally
from vlnbench.training.options import TrainOptions
from vlnbench.training.setup import Process

AGGREGATIONS = ("grpo", "dr_grpo", "bnpo", "dapo")
SCALINGS = ("group", "batch", "none")
BETAS = (0.0, 0.04)
CLIPS = ((0.2, 0.28), (0.05, 0.05))
PASSES = (1, 3)
PROMPTS, GROUP = 3, 4
TEMPERATURE = 0.8
LONGEST = 9
"""Tokens of an answer, at most."""
VOCABULARY, IMAGE, START, END, PAD = 120, 100, 101, 102, 0
GRID = (1, 4, 6)
"""Patches of an image in time, height and width; four of them are one token."""
MOVED = 0.02
"""Standard deviation of what weights move by between two steps, and of how far the reference is away."""
NAMES = ("input_ids", "attention_mask", "mm_token_type_ids", "pixel_values", "image_grid_thw")
ALONE = Process(0, 0, 1, torch.device("cpu"))


@dataclass(frozen=True)
class Sample:
    """A prompt and an answer. pixels: patches of its images (patches, values), none for text alone."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    pixels: Tensor | None


def text_network() -> nn.Module:
    """A Qwen2 of two layers with random weights."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    others = {"num_key_value_heads": 2, "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": None}
    config = Qwen2Config(vocab_size=VOCABULARY, **sizes, **others)
    return Qwen2ForCausalLM(config)


def image_network() -> nn.Module:
    """A Qwen2.5-VL of two layers and a vision tower of two blocks with random weights."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    text = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "bos_token_id": None,
        "eos_token_id": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]},
    }
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": 32,
        "fullatt_block_indexes": [1],
        "window_size": 56,
    }
    ids = {
        "image_token_id": IMAGE,
        "vision_start_token_id": START,
        "vision_end_token_id": END,
        "video_token_id": 103,
    }
    return Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=vision, **ids))


def make_samples(images: int) -> list[Sample]:
    """GROUP answers to each of PROMPTS prompts of different lengths."""
    draw = torch.Generator().manual_seed(5)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(1, IMAGE, (count,), generator=draw).tolist())

    samples = []
    for number in range(PROMPTS):
        shown = (START, *[IMAGE] * (GRID[1] * GRID[2] // 4), END) * images
        pixels = torch.randn(images * GRID[1] * GRID[2], 3 * 2 * 14 * 14, generator=draw) if images else None
        prompt = (*ids(3), *shown, *ids(2 + 2 * number))
        lengths = torch.randint(1, LONGEST + 1, (GROUP,), generator=draw).tolist()
        samples += [Sample(prompt, ids(length), pixels) for length in lengths]
    return samples


def make_rewards() -> Tensor:
    """Rewards (PROMPTS, GROUP): one of them is the mean of its group, and one group has no spread."""
    return torch.tensor(
        [[0.0, 0.5, 1.0, 0.5], [0.25, 0.25, 0.25, 0.25], [1.0, 0.0, 0.0, 0.3]], dtype=torch.float64
    )


def padded(rows: Sequence[Sequence[int]], left: bool) -> tuple[Tensor, Tensor]:
    """Rows of ids of one length, and which are real."""
    width = max(map(len, rows))
    ids, real = torch.full((len(rows), width), PAD), torch.zeros(len(rows), width, dtype=torch.long)
    for number, row in enumerate(rows):
        place = slice(width - len(row), width) if left else slice(0, len(row))
        ids[number, place], real[number, place] = torch.tensor(row), 1
    return ids, real


def seen(samples: Sequence[Sample]) -> dict[str, Any]:
    """The images of samples, as transformers takes them."""
    pixels = [each.pixels for each in samples if each.pixels is not None]
    if not pixels:
        return {}
    count = sum(each.shape[0] for each in pixels) // (GRID[1] * GRID[2])
    return {"pixel_values": torch.cat(pixels), "image_grid_thw": torch.tensor([GRID] * count)}


class Thin:
    """Of a family what `Learner` needs, for transformers' networks: answers behind their prompts, padded right."""

    def collate(self, samples: Sequence[Sample]) -> dict[str, Any]:
        ids, real = padded([(*each.prompt, *each.answer) for each in samples], left=False)
        batch = {"input_ids": ids, "attention_mask": real, **seen(samples)}
        if "pixel_values" in batch:
            batch["mm_token_type_ids"] = (ids == IMAGE).long()
        batch["places"] = [(len(each.prompt), len(each.answer)) for each in samples]
        return batch

    def log_probabilities(self, model: Any, batch: Mapping[str, Any], temperature: float) -> Scored:
        logits = model(**{name: batch[name] for name in NAMES if name in batch}, use_cache=False).logits
        rows, tokens = [], []
        for row, (start, length) in enumerate(batch["places"]):
            rows.append(logits[row, start - 1 : start + length - 1])
            tokens.append(batch["input_ids"][row, start : start + length])
        return scored(torch.cat(rows), torch.cat(tokens), temperature)

    def policy(self, *_: Any) -> Any: ...

    def cache_bytes(self, *_: Any) -> Any: ...


class Engine(nn.Module):
    """Of DeepSpeed's engine what `Learner` needs."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, **named: Any) -> Any:
        return self.module(**named)

    def set_gradient_accumulation_boundary(self, last: bool) -> None:
        """Nothing waits here."""


@dataclass(frozen=True)
class Case:
    """A setting of the loss, and the passes that an update is split into."""

    aggregation: str
    beta: float
    clips: tuple[float, float]
    scaling: str
    passes: int


class Ours:
    """The losses of an update by `Learner`, step after step."""

    def __init__(self, model: nn.Module, reference: nn.Module, samples: Sequence[Sample], case: Case) -> None:
        kind: Any = get_objective("grpo").train_options(TrainOptions)
        size = len(samples) // case.passes
        self._options = kind(
            checkpoint="", out=Path(), objective="grpo", rollouts="steps", batch=size, accumulation=case.passes,
            aggregation=case.aggregation, beta=case.beta, clip_low=case.clips[0], clip_high=case.clips[1],
            temperature=TEMPERATURE,
        )  # fmt: skip
        self._engine, family, self._tally = Engine(model), Thin(), Tally(ALONE)
        held = FrozenCopy(reference, ALONE) if case.beta else None
        self._learner = Learner(self._options, family, ALONE, self._tally, held)  # type: ignore[arg-type]
        judged = advantages(make_rewards(), case.scaling).flatten().tolist()  # type: ignore[arg-type]
        recorded = [
            Recorded((each,), (len(each.answer),), (0.0,) * len(each.answer), answers=1, formed=1)
            for each in samples
        ]
        mine = tuple(ScoredRollout(each, gain) for each, gain in zip(recorded, judged, strict=True))
        self._learner.take(Update(mine, tuple(len(each.answer) for each in samples), samples[0]), LONGEST)

    def step(self) -> float:
        """The loss; gradients are added to the network's."""
        total = 0.0
        for loss in self._learner.losses(self._engine):
            (loss / self._options.accumulation).backward()  # type: ignore[no-untyped-call]
            total += loss.item() / self._options.accumulation
        self.clipped = self._tally.take()["clipped"]
        return total


class Theirs:
    """The same by TRL."""

    def __init__(self, model: nn.Module, reference: nn.Module, samples: Sequence[Sample], case: Case) -> None:
        from trl import GRPOTrainer
        from trl.trainer.utils import add_fused_lm_head

        for each in (model, reference):
            add_fused_lm_head(each, temperature=TEMPERATURE, outputs=("log_probs", "entropy"))
        self._model, self._reference, self._case = model, reference, case
        arguments = SimpleNamespace(
            delta=None,
            use_bias_correction_kl=False,
            steps_per_generation=case.passes,
            report_to=[],
            entropy_coef=0.0,
        )
        accelerator = SimpleNamespace(
            num_processes=1, is_main_process=True, autocast=nullcontext,
            gather=lambda each: each, reduce=lambda each, **_: each,
        )  # fmt: skip
        self._trainer: Any = SimpleNamespace(
            aux_loss_enabled=False, top_entropy_quantile=1.0, off_policy_mask_threshold=None,
            importance_sampling_level="token", beta=case.beta,
            epsilon_low=case.clips[0], epsilon_high=case.clips[1],
            loss_type=case.aggregation, args=arguments, use_vllm=False, vllm_importance_sampling_correction=False,
            model=SimpleNamespace(training=True), current_gradient_accumulation_steps=case.passes,
            max_completion_length=LONGEST, accelerator=accelerator, _metrics={"train": defaultdict(list)},
            _entropy_bonus_enabled=False,
        )  # fmt: skip
        self._scores = MethodType(GRPOTrainer._get_per_token_logps_and_entropies, self._trainer)
        self._trainer._get_per_token_logps_and_entropies = self._scores
        self._loss = GRPOTrainer._compute_loss
        self._old: list[Tensor | None] = [None] * case.passes
        gains = trl_advantages(case.scaling)
        size = len(samples) // case.passes
        total = torch.tensor(sum(len(each.answer) for each in samples))
        self._inputs = [
            {**inputs(samples[first : first + size]), "advantages": gains[first : first + size].float(),
             "num_items_in_batch": total}
            for first in range(0, len(samples), size)
        ]  # fmt: skip

    def step(self) -> float:
        """The loss; gradients are added to the network's."""
        total = 0.0
        for number, batch in enumerate(self._inputs):
            if self._old[number] is None:
                self._old[number] = self._log_probabilities(self._model, batch)
            given = {**batch, "old_per_token_logps": self._old[number]}
            if self._case.beta:
                given["ref_per_token_logps"] = self._log_probabilities(self._reference, batch)
            loss = self._loss(self._trainer, self._model, given)
            loss.backward()
            total += float(loss.detach())
        return total

    def _log_probabilities(self, model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        real = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        images = {name: batch[name] for name in (*NAMES[2:], "num_images") if name in batch}
        with torch.no_grad():
            found, *_ = self._scores(model, ids, real, batch["completion_ids"].shape[1], **images)
        return found


def inputs(samples: Sequence[Sample]) -> dict[str, Any]:
    """Samples as TRL has them: prompts padded left, answers right."""
    prompts, prompt_mask = padded([each.prompt for each in samples], left=True)
    answers, answer_mask = padded([each.answer for each in samples], left=False)
    found = {
        "prompt_ids": prompts, "prompt_mask": prompt_mask,
        "completion_ids": answers, "completion_mask": answer_mask,
        **seen(samples),
    }  # fmt: skip
    if "pixel_values" in found:
        found["num_images"] = [len(found["image_grid_thw"]) // len(samples)] * len(samples)
        found["mm_token_type_ids"] = (torch.cat([prompts, answers], dim=1) == IMAGE).long()
    return found


def trl_advantages(scaling: str) -> Tensor:
    """TRL's advantages of the rewards (answers,), by the lines of its trainer that compute them."""
    from trl import GRPOTrainer
    from trl.trainer import grpo_trainer

    lines = inspect.getsource(GRPOTrainer._generate_and_score_completions).splitlines()
    first = next(i for i, line in enumerate(lines) if "mean_grouped_rewards = torch.nanmean" in line)
    last = next(i for i, line in enumerate(lines) if "is_std_zero = torch.isclose" in line)
    names: dict[str, Any] = {
        "torch": torch, "nanstd": grpo_trainer.nanstd, "self": SimpleNamespace(scale_rewards=scaling),
        "rewards": make_rewards().flatten(), "num_generations": GROUP,
    }  # fmt: skip
    exec(textwrap.dedent("\n".join(lines[first:last])), names)  # its own code, to compare with
    found: Tensor = names["advantages"]
    return found


def moved(model: nn.Module, seed: int) -> None:
    """Add the same noise to weights, whoever's they are."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += MOVED * torch.randn(parameter.shape, generator=draw).to(parameter)


def compare(network: nn.Module, samples: Sequence[Sample], case: Case) -> Iterator[tuple[float, float, float]]:
    """Of the first and the second step: how far apart losses and gradients are, and the share that is clipped."""
    reference = copy.deepcopy(network)
    moved(reference, 7)
    ours, theirs = copy.deepcopy(network).train(), copy.deepcopy(network).train()
    sides = (
        Ours(ours, reference, samples, case),
        Theirs(theirs, copy.deepcopy(reference).requires_grad_(False), samples, case),
    )
    for seed in (1, 2):
        for model in (ours, theirs):
            model.zero_grad()
        loss, wanted = (side.step() for side in sides)
        apart = squares = 0.0
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            found = torch.zeros_like(mine) if mine.grad is None else mine.grad
            there = torch.zeros_like(other) if other.grad is None else other.grad
            apart += float((found - there).double().square().sum())
            squares += float(there.double().square().sum())
        yield abs(loss - wanted) / max(abs(wanted), 0.1), (apart / squares) ** 0.5, sides[0].clipped
        for model in (ours, theirs):
            moved(model, seed)


def main() -> None:
    import transformers
    import trl

    torch.set_num_threads(1)  # these networks are so small that threads only wait for one another
    torch.manual_seed(0)
    rows = []
    for name, network, images in (("text", text_network(), 0), ("2 images", image_network(), 2)):
        samples = make_samples(images)
        for aggregation, beta, clips in product(AGGREGATIONS, BETAS, CLIPS):
            steps = [
                list(compare(network, samples, Case(aggregation, beta, clips, scaling, passes)))
                for scaling, passes in product(SCALINGS, PASSES)
            ]
            worst = [f"{max(found[step][what] for found in steps):.0e}" for step in (0, 1) for what in (0, 1)]
            clipped = f"{min(found[1][2] for found in steps):.0%}"
            rows.append([name, aggregation, f"{beta:g}", f"{clips[0]:g}/{clips[1]:g}", *worst, clipped])
    headers = [
        "",
        "aggregation",
        "beta",
        "clips",
        "loss, step 1",
        "gradient",
        "loss, step 2",
        "gradient",
        "clipped",
    ]
    print(f"TRL {trl.__version__}, torch {torch.__version__}, transformers {transformers.__version__}, float32")
    print(tabulate(rows, headers=headers, disable_numparse=True))


if __name__ == "__main__":
    main()
