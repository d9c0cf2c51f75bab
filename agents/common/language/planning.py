"""What planning takes that is alike for all language models behind a vision tower."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from vlnbench.training.family.changes import Change, Fields
from vlnbench.training.family.plans import Plans
from vlnbench.training.options import StepOptions

if TYPE_CHECKING:
    from torch import nn


class LanguagePlans(Plans):
    """Plans of a family whose language model's weights may be kept in fewer bits."""

    def quantized(self, network: nn.Module, kind: str) -> nn.Module:
        from agents.common.checkpoints.quantized import plan

        plan(network, kind)
        return network

    def inference_changes(self, options: Any) -> Iterator[Change]:
        """Fewer bits."""
        for kind, cost in (("int8", 11), ("nf4", 13)):
            if options.quantize is None:
                price = "other answers, slower where the card was fast enough"
                yield Change("quantize", f"--quantize {kind}", cost, (("quantize", kind),), price)


def operations(
    options: StepOptions,
    parts: Mapping[str, int],
    patches: int,
    tokens: int,
    seeing: tuple[str, ...],
    language: str,
) -> float:
    """Operations of training on one window, by the usual count of two per weight and position in a forward pass.

    A backward pass takes as many for the gradients of activations, and again for those of the weights that train;
    checkpointing takes the forward pass once more. What is quadratic in the length is left out. parts: elements of
    every part. seeing: the parts that work on `patches` positions; all others work on `tokens`.
    """
    again = int(options.gradient_checkpointing)
    eyes = sum(parts[part] * (3 + again if part in options.parts else 1) for part in seeing)
    rest = sum(count for part, count in parts.items() if part not in seeing)
    return 2.0 * patches * eyes + 2.0 * tokens * rest * (2 + int(language in options.parts) + again)


def part_changes(options: StepOptions, vision: str, language: str, frozen: str) -> Iterator[Change]:
    """Training fewer parts. frozen: what it means that the vision tower does not train."""
    parts = options.parts
    if vision in parts and len(parts) > 1:
        rest = tuple(part for part in parts if part != vision)
        yield Change("vision", f"--tunable-parts {','.join(rest)}", 12, (("tunable_parts", rest),), frozen)
    if language in parts and not options.lora_rank:
        rest = tuple(part for part in parts if part != language)
        words = [f"--tunable-parts {','.join(rest)}"] if rest else []
        if rest:
            yield Change("parts", words[0], 4, (("tunable_parts", rest),), "language model frozen")
        fields: Fields = (("tunable_parts", rest), ("lora_rank", 64), ("zero", min(options.zero, 2)))
        adapters = [*words, "--lora-rank 64", *(["--zero 2"] if options.zero > 2 else [])]
        yield Change("adapters", " ".join(adapters), 5, fields, "language model learns through adapters only")
