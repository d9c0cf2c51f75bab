"""Weights of a language model in few bits, by bitsandbytes: less memory, and other answers.

int8 is LLM.int8() (arXiv 2208.07339), nf4 four bits of normal floats in blocks of 64 (arXiv 2305.14314). Linear
layers of the blocks are kept so, which hold most of the weights; eyes, embeddings and the output layer are not.
"""

from __future__ import annotations

import logging
import re
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from vlnbench.errors import require

BLOCKS = re.compile(r"model\.layers\.\d+\..+")
"""Names of what is in the blocks of a language model, whatever the family is."""
OUTLIERS = 6.0
"""Activations from here on are multiplied in half precision beside int8, as published."""
BLOCK, LEVELS = 64, 16
"""Weights that share a scale in nf4, and the numbers that there are."""


def is_taken(name: str, module: nn.Module) -> bool:
    """Whether a module of this name is to be kept in few bits."""
    return type(module) is nn.Linear and BLOCKS.fullmatch(name) is not None


def quantize(module: nn.Module, weight: Tensor, kind: str, device: torch.device) -> nn.Linear:
    """A layer that computes as `module` would with this weight, on `device`, about as well. weight: on the host.

    The bias stays that of the module. Raises UsageError where bitsandbytes is not installed.
    """
    assert isinstance(module, nn.Linear)
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it tells of every product that inputs are cast
    layers = require("bitsandbytes", "gpu").nn
    sizes, bias = (module.in_features, module.out_features), module.bias is not None
    made: Any
    if kind == "int8":
        made = layers.Linear8bitLt(*sizes, bias, has_fp16_weights=False, threshold=OUTLIERS, device="meta")
        made.weight = layers.Int8Params(weight.detach(), requires_grad=False).to(device)
    else:
        options = {"quant_type": kind, "compress_statistics": False}
        made = layers.Linear4bit(*sizes, bias, weight.dtype, **options, device="meta")
        made.weight = layers.Params4bit(weight.detach(), False, blocksize=BLOCK, **options, module=made).to(device)
    made.bias = module.bias
    return made  # type: ignore[no-any-return]


def is_quantized(module: nn.Module) -> bool:
    """Whether a module is one of those that `quantize` makes."""
    return isinstance(module, nn.Linear) and type(module).__module__.startswith("bitsandbytes")


def elements(parameter: Tensor) -> int:
    """How many numbers a parameter stands for: of four bits, two are in one element."""
    state = getattr(parameter, "quant_state", None)
    return parameter.numel() if state is None else int(state.shape.numel())


class Planned(nn.Module):
    """A quantized layer in shapes: takes the memory of one while it is kept and while it computes."""

    def __init__(self, module: nn.Module, kind: str) -> None:
        super().__init__()
        assert isinstance(module, nn.Linear)
        count, rows = module.weight.numel(), module.out_features
        scales = rows if kind == "int8" else -(-count // BLOCK) + LEVELS

        def kept(size: int, dtype: torch.dtype) -> nn.Parameter:
            return nn.Parameter(torch.empty(size, dtype=dtype, device=module.weight.device), requires_grad=False)

        self.packed = kept(count if kind == "int8" else -(-count // 2), torch.uint8)
        self.scales = kept(scales, torch.float32)
        self.bias, self._kind, self._shape = module.bias, kind, module.weight.shape

    def forward(self, x: Tensor) -> Tensor:
        """Of the shape that the layer's would have."""
        if self._kind == "nf4":
            return functional.linear(x, x.new_empty(self._shape), self.bias)
        half = x.to(torch.float16)
        codes = torch.empty_like(half, dtype=torch.int8)
        sums = codes.new_empty(*x.shape[:-1], self._shape[0], dtype=torch.int32)
        return sums.to(x.dtype)


def plan(network: nn.Module, kind: str) -> None:
    """Put what quantized layers take in place of the layers of a network in shapes."""
    for name, module in list(network.named_modules()):
        if is_taken(name, module):
            network.set_submodule(name, Planned(module, kind))
