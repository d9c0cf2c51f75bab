"""What one forward and backward pass of a network allocates, found by running its real code in shapes only.

No weights are made, no GPU is needed: a pass of the 8 B network takes seconds. Nothing is extrapolated over layers
or samples.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from vlnbench.errors import UsageError, unknown
from vlnbench.training.memory.tracker import LiveMemory, fused_attention
from vlnbench.training.options import TrainOptions
from vlnbench.training.parts import LORA, Group, freeze, groups
from vlnbench.util.loading import import_module

Phase = Literal["forward", "backward"]

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}

STREAMVLN_8B: Mapping[str, Any] = {
    "model_type": "llava_qwen",
    "mm_projector_type": "mlp2x_gelu",
    "mm_spatial_pool_mode": "bilinear",
    "mm_vision_tower": "google/siglip-so400m-patch14-384",
    "mm_hidden_size": 1152,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "bfloat16",
}
"""Sizes of the published StreamVLN (LLaVA-Video-7B-Qwen2 with SigLIP so400m): 8,030,345,248 parameters."""

MODELS: Mapping[str, Mapping[str, Any]] = {"streamvln-8b": STREAMVLN_8B}

SUPERVISED_PER_TURN, SUPERVISED_ONCE = 13, 4
"""Labels of one turn (the answer's block of nine tokens, four marks of the question's) and of the system block."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One forward and backward pass; the fields are those of `PlanRequest`, `text_tokens` are per sample."""

    model: str
    tunable_parts: str
    lora_rank: int
    batch: int
    frames: int
    history: int
    future_steps: int
    text_tokens: int
    image_size: int | None
    gradient_checkpointing: bool
    dtype: str
    attn: str

    @property
    def turns(self) -> int:
        """Turns of one sample, each with one frame."""
        return -(-self.frames // self.future_steps)


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of the pass. Bytes are at the stretch's peak and hold neither weights nor finished gradients.

    `logits`: the part of `peak` in tensors as wide as the vocabulary. `gradient`: elements of the parameter whose
    gradient was finished at the stretch's end (it is in `peak`, too), 0 for none.
    """

    phase: Phase
    peak: int
    logits: int
    gradient: int


@dataclass(frozen=True, slots=True)
class Trace:
    """A network and its pass.

    `parts`: elements of the tunable parts (adapters count as "lora"), trained or not. `groups`: the sizes of the
    tensors of each of the trainer's parameter groups, in order. `largest`: elements of the largest tensor.
    `tokens`: positions of one sample, `supervised`: those with a label. `segments`: the pass in order. `hidden`:
    the sizes of the trainable matrices inside the network.
    """

    parts: Mapping[str, int]
    groups: tuple[tuple[int, ...], ...]
    largest: int
    tokens: int
    supervised: int
    vocab_size: int
    segments: tuple[Segment, ...]
    hidden: tuple[int, ...] = ()

    @property
    def parameters(self) -> int:
        """Elements of all parameters."""
        return sum(self.parts.values())

    @property
    def trainable(self) -> int:
        """Elements of all trainable parameters."""
        return sum(map(sum, self.groups))


def model_config(model: str, image_size: int | None = None, vision_tower: Path | None = None) -> Any:
    """The configuration that `model` names: one of MODELS, a preset, or a checkpoint by folder or shipped name.

    `image_size` (pixels) defaults to its own; `vision_tower` as in `checkpoint.load`. Raises UsageError for a name
    that is none of these and for a size that cannot be.
    """
    module = import_module("agents.streamvln.config")
    presets = import_module("agents.streamvln.presets").PRESETS
    if model in MODELS:
        config = module.parse_config(MODELS[model], model)
    elif model in presets:
        config = module.parse_config(presets[model].config(presets[model].vocabulary, 0, 1), model)
    else:
        folder = import_module("agents.streamvln.checkpoint").find(model)
        if not folder.is_dir():
            raise UsageError(unknown("model", model, [*MODELS, *presets]) + "; or give a checkpoint folder")
        config = module.read_config(folder, vision_tower)
    return config if image_size is None else config.with_image_size(image_size)


@lru_cache(maxsize=64)
def trace(request: TraceRequest) -> Trace:
    """Run one pass in shapes. Raises UsageError for an unknown model."""
    config = model_config(request.model, request.image_size)
    part_of = import_module("agents.streamvln.model").part_of
    network, trained = build(config, request, "meta")
    inputs = make_inputs(config, request, "meta")
    segments = run_pass(network, inputs, config.vocab_size)
    parts: dict[str, int] = {}
    for name, parameter in network.named_parameters():
        part = LORA if ".lora_" in name else part_of(name)
        parts[part] = parts.get(part, 0) + parameter.numel()
    text, labels = inputs["input_ids"][0], inputs["labels"][0]
    return Trace(
        parts=parts,
        groups=tuple(tuple(tensor.numel() for tensor in group.parameters) for group in trained),
        largest=max(parameter.numel() for parameter in network.parameters()),
        tokens=sum(token >= 0 for token in text) + (request.turns + request.history) * config.image_tokens,
        supervised=sum(label >= 0 for label in labels[1:]),
        vocab_size=config.vocab_size,
        segments=tuple(segments),
        hidden=tuple(tensor.numel() for group in trained for tensor, hidden in group.hidden.items() if hidden),
    )


def build(config: Any, request: TraceRequest, device: str) -> tuple[Any, list[Group]]:
    """The network as the trainer trains it, random where on the CPU, and its parameter groups."""
    module = import_module("agents.streamvln.model")
    options = TrainOptions(
        checkpoint="", out=Path(), tunable_parts=request.tunable_parts, lora_rank=request.lora_rank
    )
    attn = "eager" if request.attn == "eager" else "sdpa"  # the flash kernels of both kinds allocate alike
    with default_dtype(DTYPES[request.dtype]), torch.device(device):
        network = module.StreamVLN(config, attn)
        freeze(network, options)
    if request.gradient_checkpointing:
        network.enable_checkpointing()
    return network.train(), groups(network, options)


def make_inputs(config: Any, request: TraceRequest, device: str) -> dict[str, Any]:
    """Arguments of the network's forward pass: samples of equal length with as many labels as real ones have."""
    module = import_module("agents.streamvln.model")
    supervised = SUPERVISED_ONCE + SUPERVISED_PER_TURN * request.turns
    if request.text_tokens < supervised:
        raise UsageError(f"--text-tokens {request.text_tokens}: {request.turns} turns need at least {supervised}")
    memory = [module.MEMORY] if request.history else []
    plain = request.text_tokens - supervised
    ids = [1] * plain + memory + [module.IMAGE] * request.turns + [1] * supervised
    labels = [module.IGNORED] * (len(ids) - supervised) + [1] * supervised
    count, size = request.turns + request.history, config.vision.image_size
    images = torch.zeros(count, 3, size, size, device=device)
    return {
        "input_ids": [ids] * request.batch,
        "images": [images] * request.batch,
        "labels": [labels] * request.batch,
    }


def run_pass(network: Any, inputs: Mapping[str, Any], width: int) -> list[Segment]:
    """Forward and backward pass; every gradient is dropped as soon as it is finished."""
    segments: list[Segment] = []
    memory = LiveMemory(width)

    def finished(parameter: Tensor) -> None:
        segments.append(Segment("backward", memory.peak, memory.wide_at_peak, parameter.numel()))
        parameter.grad = None
        memory.restart_peak()

    handles = [
        parameter.register_post_accumulate_grad_hook(finished)
        for parameter in network.parameters()
        if parameter.requires_grad
    ]
    with fused_attention(), memory, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about random states and devices that shapes do not have
        loss = network(**inputs, want_logits=False).loss
        segments.append(Segment("forward", memory.peak, memory.wide_at_peak, 0))
        memory.restart_peak()
        loss.backward()
        segments.append(Segment("backward", memory.peak, memory.wide_at_peak, 0))
    for handle in handles:
        handle.remove()
    return segments


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
