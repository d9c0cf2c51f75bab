"""Which parameters train, at which rate: freezing, adapters and parameter groups, printed as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from tabulate import tabulate
from torch import nn

from vlnbench.training.options import PARTS, TrainOptions
from vlnbench.util.loading import import_string

LORA = "lora"


@dataclass(frozen=True)
class Group:
    """Parameters of one part with one learning rate and weight decay. `rate` is the schedule's peak."""

    part: str
    names: tuple[str, ...]
    parameters: tuple[nn.Parameter, ...]
    rate: float
    weight_decay: float

    @property
    def size(self) -> int:
        """How many numbers train."""
        return sum(parameter_size(parameter) for parameter in self.parameters)

    @property
    def hidden(self) -> dict[nn.Parameter, bool]:
        """Whether each parameter is a matrix inside the network, neither an embedding nor the output layer."""
        return {
            parameter: parameter.ndim == 2 and "embed" not in name and not name.startswith("lm_head")
            for name, parameter in zip(self.names, self.parameters, strict=True)
        }


def parameter_size(parameter: nn.Parameter) -> int:
    """Numbers in a parameter, also where ZeRO 3 has taken it apart (`ds_numel` is DeepSpeed's)."""
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def freeze(model: nn.Module, options: TrainOptions) -> None:
    """Let exactly the tunable parts require gradients; adapters are added where they are asked for.

    The vision tower's last layer norm is never used, so it stays frozen with any choice: no gradient would reach
    it, and weight decay alone would change it.
    """
    part_of = import_string("agents.streamvln.model:part_of")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(part_of(name) in options.parts and "post_layernorm" not in name)
    if options.lora_rank:
        _add_adapters(model, options)


def groups(model: nn.Module, options: TrainOptions) -> list[Group]:
    """Trainable parameters by part, and within a part by whether weight decay applies (matrices only)."""
    part_of = import_string("agents.streamvln.model:part_of")
    rates = {
        "mm_vision_tower": options.vision_tower_lr or options.learning_rate,
        "mm_mlp_adapter": options.projector_lr or options.learning_rate,
    }
    found: dict[tuple[str, bool], list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            part = LORA if ".lora_" in name else part_of(name)
            found.setdefault((part, parameter.ndim > 1), []).append((name, parameter))
    order = [*PARTS, LORA]
    return [
        Group(
            part,
            tuple(name for name, _ in members),
            tuple(parameter for _, parameter in members),
            rates.get(part, options.learning_rate),
            options.weight_decay if decays else 0.0,
        )
        for (part, decays), members in sorted(found.items(), key=lambda item: (order.index(item[0][0]), item[0]))
    ]


def count(model: nn.Module, trained: list[Group]) -> dict[str, Any]:
    """All parameters, and those that train by part."""
    sizes = {part: sum(group.size for group in trained if group.part == part) for part in (*PARTS, LORA)}
    return {"parameters": sum(map(parameter_size, model.parameters())), "trainable": sizes}


def format_groups(model: nn.Module, trained: list[Group]) -> str:
    """Table of the parameter groups and of what is frozen."""
    rows: list[list[Any]] = [
        [group.part, len(group.names), f"{group.size:,}", f"{group.rate:g}", f"{group.weight_decay:g}"]
        for group in trained
    ]
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    rows.append(["frozen", len(frozen), f"{sum(map(parameter_size, frozen)):,}", "", ""])
    headers = ["part", "tensors", "parameters", "learning rate", "weight decay"]
    return str(tabulate(rows, headers=headers, disable_numparse=True, colalign=("left", *["right"] * 4)))


def _add_adapters(model: nn.Module, options: TrainOptions) -> None:
    """Low-rank adapters (arXiv 2106.09685) on every linear layer of the language model's blocks."""
    from peft import LoraConfig, inject_adapter_in_model

    targets = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name.startswith("model.layers.")
    ]
    settings = LoraConfig(
        r=options.lora_rank,
        lora_alpha=options.lora_alpha,  # type: ignore[arg-type]  # peft divides it by the rank: any number will do
        lora_dropout=options.lora_dropout,
        target_modules=targets,
    )
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)  # the first factor begins random, on every process alike
        inject_adapter_in_model(settings, model)
    for parameter in trained:  # peft freezes everything else
        parameter.requires_grad_(True)


def merge_adapters(model: nn.Module) -> None:
    """Add the adapters' products to the weights they adapt and take the adapters away."""
    for name, module in list(model.named_modules()):
        base = getattr(module, "base_layer", None)
        if base is None:
            continue
        module.merge()
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, base)
