"""Which parameters train, at which rate: freezing, adapters and parameter groups, printed as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tabulate import tabulate
from torch import nn

from vlnbench.errors import require
from vlnbench.training.family.trains import PartRule, Trains, rule_of
from vlnbench.training.options import Adapters, StepOptions, TrainOptions

LORA = "lora"


@dataclass(frozen=True)
class Group:
    """Parameters of one part to which weight decay applies or does not.

    hidden: for each whether it is a matrix inside the network, neither an embedding nor the output layer.
    """

    part: str
    names: tuple[str, ...]
    parameters: tuple[nn.Parameter, ...]
    decays: bool
    hidden: tuple[bool, ...]

    @property
    def size(self) -> int:
        """How many numbers train."""
        return sum(parameter_size(parameter) for parameter in self.parameters)


def parameter_size(parameter: nn.Parameter) -> int:
    """Numbers in a parameter, also where ZeRO 3 has taken it apart (`ds_numel` is DeepSpeed's)."""
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def part_of(rules: Sequence[PartRule], name: str) -> str:
    """The part of a parameter, adapters being one of their own."""
    return LORA if is_adapter(name) else rule_of(rules, name).part


def is_adapter(name: str) -> bool:
    """Whether a parameter is an adapter's, by its name."""
    return ".lora_" in name


def freeze(model: nn.Module, trains: Trains, options: StepOptions) -> None:
    """Let exactly the tunable parts require gradients; adapters are added where they are asked for.

    A parameter that takes no part in the loss stays frozen with any choice: no gradient would reach it, and weight
    decay alone would change it.
    """
    rules = trains.parts(model, options)
    for name, parameter in model.named_parameters():
        rule = rule_of(rules, name)
        tuned = rule.trains == "always" or rule.part in options.parts
        parameter.requires_grad_(tuned and rule.trains != "never")
    if options.adapters is not None:
        _add_adapters(model, trains.adapted(model), options.adapters)


def groups(model: nn.Module, trains: Trains, options: StepOptions) -> list[Group]:
    """Trainable parameters by part, and within a part by whether weight decay applies."""
    found: dict[tuple[str, bool], list[tuple[str, nn.Parameter]]] = {}
    rules = trains.parts(model, options)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            group = (part_of(rules, name), _decays(rules, name, parameter))
            found.setdefault(group, []).append((name, parameter))
    order = [*options.PARTS, LORA]
    return [
        Group(
            part,
            tuple(name for name, _ in members),
            tuple(parameter for _, parameter in members),
            decays,
            tuple(parameter.ndim == 2 and rule_of(rules, name).hidden for name, parameter in members),
        )
        for (part, decays), members in sorted(found.items(), key=lambda item: (order.index(item[0][0]), item[0]))
    ]


def _decays(rules: Sequence[PartRule], name: str, parameter: nn.Parameter) -> bool:
    if not is_adapter(name) and rule_of(rules, name).decays == "all but biases":
        return not name.endswith("bias")
    return parameter.ndim > 1


def count(model: nn.Module, trained: Sequence[Group], options: StepOptions) -> dict[str, Any]:
    """All parameters, and those that train by part."""
    parts = (*options.PARTS, LORA)
    sizes = {part: sum(group.size for group in trained if group.part == part) for part in parts}
    return {"parameters": sum(map(parameter_size, model.parameters())), "trainable": sizes}


def format_groups(model: nn.Module, trained: Sequence[Group], options: TrainOptions) -> str:
    """Table of the parameter groups and of what is frozen."""
    rows: list[list[Any]] = [
        [
            group.part,
            len(group.names),
            f"{group.size:,}",
            f"{options.rate_of(group.part):g}",
            f"{options.weight_decay if group.decays else 0:g}",
        ]
        for group in trained
    ]
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    rows.append(["frozen", len(frozen), f"{sum(map(parameter_size, frozen)):,}", "", ""])
    headers = ["part", "tensors", "parameters", "learning rate", "weight decay"]
    return str(tabulate(rows, headers=headers, disable_numparse=True, colalign=("left", *["right"] * 4)))


def _add_adapters(model: nn.Module, layers: list[str], adapters: Adapters) -> None:
    """Low-rank adapters (arXiv 2106.09685) on linear layers of the network."""
    peft = require("peft", "train")
    settings = peft.LoraConfig(
        r=adapters.rank,
        lora_alpha=adapters.alpha,  # divided by the rank: any number will do
        lora_dropout=adapters.dropout,
        target_modules=layers,
    )
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(adapters.seed)  # the first factor begins random, on every process alike
        peft.inject_adapter_in_model(settings, model)
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
