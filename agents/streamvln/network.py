"""What a StreamVLN checkpoint's config.json says, checked field by field.

Format: the `llava_qwen` config of LLaVA-NeXT with StreamVLN's additions (github.com/InternRobotics/StreamVLN).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from agents.common.checkpoints.files import CONFIG, DTYPES, MAX_LAYERS, Fields, read_json
from agents.common.decoders.sizes import WindowedSizes
from agents.common.packing.bare import Bare
from agents.common.towers.siglip import read_vision
from agents.streamvln.options import MODEL_TYPE
from vlnbench.errors import UsageError

LANGUAGE_ATTENTION = ("eager", "sdpa", "flash_attention_2")


@dataclass(frozen=True)
class StreamVLNConfig(WindowedSizes):
    """Sizes and rhythm of one checkpoint.

    `raw` is config.json as it was read; saving writes it back with what changed.
    """

    tunable_parts: tuple[str, ...]
    dtype: torch.dtype
    raw: Mapping[str, Any]

    def with_image_size(self, size: int) -> StreamVLNConfig:
        """The same for images of `size` pixels. Raises UsageError where not even a patch fits in."""
        if size < self.vision.patch_size:
            raise UsageError(f"--image-size {size}: expected at least a patch, {self.vision.patch_size} pixels")
        return replace(self, vision=replace(self.vision, image_size=size))


def read_config(folder: Path, vision_tower: Path | None = None) -> StreamVLNConfig:
    """Read config.json of a checkpoint folder.

    The tower's sizes come from config.json's own `vision_config` entry, else from the folder `vision_tower` (the
    config.json of a SigLIP repository), else from the tower that `mm_vision_tower` names, if it is a known one.

    Raises UsageError for a folder that holds no StreamVLN checkpoint and for the first field that does not fit.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise UsageError(f"{folder} is not a checkpoint: expected a folder with config.json in it")
    raw = read_json(path)
    return parse_config(raw, str(path), vision_tower)


def parse_config(raw: Mapping[str, Any], where: str, vision_tower: Path | None = None) -> StreamVLNConfig:
    """The same from a config.json's content; `where` is its name in messages."""
    fields = Fields(raw, where)
    if raw.get("model_type") != MODEL_TYPE:
        raise fields.error("model_type", f'"{MODEL_TYPE}" (a StreamVLN checkpoint)')
    fields.choice("mm_projector_type", "mlp2x_gelu")
    fields.choice("mm_spatial_pool_mode", "bilinear")
    fields.choice("hidden_act", "silu", default="silu")
    fields.choice("tie_word_embeddings", False, default=False)
    fields.choice("use_sliding_window", False, default=False)
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads")
    if hidden % (2 * heads):
        raise fields.error("hidden_size", f"an even multiple of num_attention_heads ({heads})")
    if heads % kv_heads:
        raise fields.error("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    dtype = fields.choice("torch_dtype", *DTYPES, default=raw.get("dtype", "bfloat16"))
    parts = fields.text("mm_tunable_parts", default="")
    return StreamVLNConfig(
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        num_hidden_layers=fields.integer("num_hidden_layers", most=MAX_LAYERS),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=fields.integer("vocab_size"),
        max_position_embeddings=fields.integer("max_position_embeddings"),
        rope_theta=fields.number("rope_theta"),
        rms_norm_eps=fields.number("rms_norm_eps"),
        attention_dropout=fields.number("attention_dropout", default=0.0),
        vision=read_vision(fields, vision_tower),
        num_history=fields.integer("num_history", default=8),  # null would make every past frame a memory frame
        num_frames=fields.integer("num_frames", default=32),
        num_future_steps=fields.integer("num_future_steps", default=4),
        tunable_parts=tuple(part.strip() for part in parts.split(",") if part.strip()),
        dtype=DTYPES[dtype],
        raw=dict(raw),
    )


IMAGE, MEMORY, IGNORED = -200, -300, -100
"""Placeholder ids of an image and of all memory frames, and the label that takes no part in the loss."""

Part = Literal["mm_vision_tower", "mm_mlp_adapter", "mm_language_model"]


def part_of(name: str) -> Part:
    """Which tunable part a parameter belongs to, by the name rules of the original training code."""
    if "vision_tower" in name:
        return "mm_vision_tower"
    return "mm_mlp_adapter" if "mm_projector" in name else "mm_language_model"


def patch_features(tower: nn.Module, pixels: Tensor) -> Tensor:
    """Patch features (N, patches, width) that a tower has of images (N, 3, S, S), on its device, in its dtype."""
    trained = any(parameter.requires_grad for parameter in tower.parameters())
    # Checkpointing in transformers makes embeddings require gradients, and a backward pass of a frozen tower too.
    with torch.set_grad_enabled(trained and torch.is_grad_enabled()):
        patches = tower.get_submodule("embeddings")(pixels)
        features: Tensor = tower.get_submodule("encoder")(inputs_embeds=patches).last_hidden_state
    return features


def _backbone(config: StreamVLNConfig, attn: str) -> Any:
    from agents.common.decoders.qwen2 import Backbone  # it takes seconds, which a bare network saves

    try:
        return Backbone(config, attn)
    except ImportError as error:
        raise UsageError(f"attention {attn!r} cannot be used here: {str(error).splitlines()[0]}") from None


class Windows(NamedTuple):
    """A batch of windows whose images are encoded: features (N, image tokens, hidden) of all of them, and how many
    each window has."""

    input_ids: Sequence[Sequence[int]]
    features: Tensor
    images: Sequence[int]
    labels: Sequence[Sequence[int]]


class Packed(Protocol):
    """What may compute losses in the network's place."""

    def __call__(
        self,
        network: StreamVLN,
        windows: Windows,
        weights: Sequence[Sequence[float]] | None,
        total: float | None,
    ) -> Tensor:
        """The loss of `StreamVLN.forward`."""
        ...

    def scores(self, network: StreamVLN, windows: Windows) -> tuple[Tensor, Tensor]:
        """Logits (labels, vocabulary) that each label should follow from, and the labels."""
        ...


class Tells(Protocol):
    """The loss of features (F, width, grid, grid) of patches at what they show, bool (F, names, grid, grid)."""

    def __call__(self, features: Sequence[Tensor], shown: Tensor) -> Tensor: ...


class Output(NamedTuple):
    """Logits (batch, length, vocabulary), None where not wanted, and the mean loss where labels were given."""

    logits: Tensor | None
    loss: Tensor | None


class StreamVLN(nn.Module):
    """Vision tower, projector and language model of one checkpoint.

    `attn` is the language model's attention (eager, sdpa or flash_attention_2); the tower's is eager with eager,
    sdpa otherwise. Parameters are created in torch's default dtype on its default device. bare: only for `lean`,
    which needs parameters and nothing of transformers.

    Raises UsageError where flash_attention_2 is asked for and not installed.
    """

    def __init__(self, config: StreamVLNConfig, attn: str = "sdpa", bare: bool = False) -> None:
        super().__init__()
        if attn not in LANGUAGE_ATTENTION:
            raise UsageError(f"attention {attn!r}: expected one of {', '.join(LANGUAGE_ATTENTION)}")
        self.config, self.attn = config, attn
        self.model: Any = Bare(config) if bare else _backbone(config, attn)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.packed_loss: Packed | None = None
        """Computes the loss where no logits are wanted, faster than is done here; see `training.packed`."""
        self.telling: Tells | None = None
        """Learns to tell what images show from the features of their patches, with its weight in the loss."""
        self.telling_weight = 0.0

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return self.lm_head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the language model's weights."""
        return self.lm_head.weight.dtype

    @property
    def tower(self) -> nn.Module:
        """The vision tower, without the wrappers that its checkpoint names have."""
        tower: nn.Module = self.model.vision_tower.get_submodule("vision_tower.vision_model")
        return tower

    def enable_checkpointing(self) -> None:
        """Recompute activations of both transformers' blocks in the backward pass. Acts in training mode only."""
        new, old = (
            "activation_checkpointing_enable",
            "gradient_checkpointing_enable",
        )  # the old one warns, where both are
        getattr(self.model, new if hasattr(self.model, new) else old)({"use_reentrant": False})

    def fill_buffers(self, device: torch.device | str) -> None:
        """Compute the tables that no checkpoint holds, for a model whose parameters came from the meta device."""
        self.model.fill_buffers(device, self.config.vision.grid**2)

    def resize_images(self, size: int) -> None:
        """Take images of `size` pixels from now on: positions of patches are interpolated, as SigLIP's code does.

        Raises UsageError where not even a patch fits in.
        """
        old, self.config = self.config.vision.grid, self.config.with_image_size(size)
        new = self.config.vision.grid
        table = self.tower.get_parameter("embeddings.position_embedding.weight").detach()
        planes = table.float().T.reshape(1, -1, old, old)
        planes = functional.interpolate(planes, size=(new, new), mode="bicubic", align_corners=False)
        positions = nn.Embedding(
            new**2, table.shape[1], _weight=planes[0].flatten(1).T.to(table.dtype).contiguous()
        )
        self.tower.get_submodule("embeddings").add_module("position_embedding", positions)
        self.fill_buffers(self.device)

    def patch_features(self, pixels: Tensor) -> Tensor:
        """Patch features (N, patches, width) of images (N, 3, S, S): the tower's last block, not normalized."""
        return patch_features(self.tower, pixels)

    def encode_images(self, pixels: Tensor) -> Tensor:
        """Embeddings (N, image_tokens, hidden) of images (N, 3, S, S), values in [-1, 1]."""
        return self.project(self.patch_features(pixels.to(self.device, self.dtype)))

    def project(self, features: Tensor) -> Tensor:
        """Embeddings (N, image_tokens, hidden) of patch features (N, patches, width): projected, then pooled."""
        grid = self.config.vision.grid
        projected = self.model.mm_projector(features)
        planes = projected.transpose(1, 2).unflatten(2, (grid, grid))
        side = (grid + 1) // 2
        pooled = functional.interpolate(planes, size=(side, side), mode="bilinear", align_corners=False)
        return pooled.flatten(2).transpose(1, 2)

    def expand(
        self, ids: Sequence[int], images: int, labels: Sequence[int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Ids and labels with every placeholder repeated once per embedding that takes its place.

        `images` is how many images belong to the sequence: memory frames first, then one per image placeholder.
        Expanded placeholders have negative ids and, where no labels are given, every label is ignored.

        Raises ValueError where placeholders and images do not match.
        """
        memory = images - ids.count(IMAGE)
        found = ids.count(MEMORY)
        if memory < 0 or found > 1 or (found == 1) != (memory > 0):
            raise ValueError(f"{images} images for {ids.count(IMAGE)} image and {found} memory placeholders")
        if found and IMAGE in ids[: ids.index(MEMORY)]:
            raise ValueError("the memory placeholder must come before the first image placeholder")
        tokens = self.config.image_tokens
        repeats = torch.tensor([{IMAGE: tokens, MEMORY: tokens * memory}.get(token, 1) for token in ids])
        targets = torch.full((len(ids),), IGNORED) if labels is None else torch.tensor(labels)
        return torch.tensor(ids).repeat_interleave(repeats), targets.repeat_interleave(repeats)

    def embed(self, expanded: Tensor, features: Tensor) -> Tensor:
        """Input embeddings (..., length, hidden) of expanded ids; features (N, image_tokens, hidden) in order."""
        expanded = expanded.to(self.device)
        text: Tensor = self.model.embed_tokens(expanded.clamp(min=0))
        slots = (expanded < 0)[..., None].expand_as(text)
        return text.masked_scatter(slots, features.to(text.dtype))

    def forward(
        self,
        input_ids: Sequence[Sequence[int]],
        images: Sequence[Tensor],
        labels: Sequence[Sequence[int]] | None = None,
        *,
        weights: Sequence[Sequence[float]] | None = None,
        total: float | None = None,
        want_logits: bool = True,
        at_labels: bool = False,
        shown: tuple[Tensor, Tensor] | None = None,
    ) -> Output:
        """One training step's forward pass.

        `input_ids` and `labels` hold placeholders; `images[i]` is (k, 3, S, S) with sample i's memory frames first
        and its current frames after them in order, or the patch features of these, (k, patches, width). Samples
        are padded on the right. The loss is the mean float32 cross entropy of each next label that is not ignored,
        weighted with `weights`, one per label, where they are given; their sum, by which it is divided, may be
        replaced by `total`.
        Without `want_logits` (labels needed) only supervised positions meet the vocabulary, which is what keeps
        memory down at 152,064 entries. `at_labels`: there is no loss, and logits are float32 (labels, vocabulary):
        those that each label that is not ignored should follow from, in order.
        shown: what some images show, bool (S, names, grid, grid), and which of all they are, (S,): taught beside
        the labels, see `telling`.
        """
        seen, counts = torch.cat(list(images)), [len(each) for each in images]
        patches = self.patch_features(seen.to(self.device, self.dtype)) if seen.ndim == 4 else seen
        found = self._answered(
            input_ids,
            counts,
            self.project(patches),
            labels,
            weights=weights,
            total=total,
            want_logits=want_logits,
            at_labels=at_labels,
        )
        if shown is None or self.telling is None or found.loss is None:
            return found
        what, which = (each.to(self.device) for each in shown)
        told = self.telling([torch.unflatten(patches[which].transpose(1, 2), 2, what.shape[2:])], what)
        return found._replace(loss=found.loss + self.telling_weight * told)

    def _answered(
        self,
        input_ids: Sequence[Sequence[int]],
        images: Sequence[int],
        features: Tensor,
        labels: Sequence[Sequence[int]] | None,
        *,
        weights: Sequence[Sequence[float]] | None,
        total: float | None,
        want_logits: bool,
        at_labels: bool,
    ) -> Output:
        """`forward` from the embeddings of images on, (N, image_tokens, hidden); images: how many a sample has."""
        if self.packed_loss is not None and labels is not None and not want_logits:
            windows = Windows(input_ids, features, images, labels)
            if at_labels:
                return Output(self.packed_loss.scores(self, windows)[0].float(), None)
            return Output(None, self.packed_loss(self, windows, weights, total))
        pairs = [
            self.expand(ids, images[i], None if labels is None else labels[i]) for i, ids in enumerate(input_ids)
        ]
        # No attention mask: padding is on the right, where causal attention never looks.
        expanded = nn.utils.rnn.pad_sequence([ids for ids, _ in pairs], batch_first=True)
        hidden = self.model(inputs_embeds=self.embed(expanded, features), use_cache=False).last_hidden_state
        loss = None
        if labels is not None:
            padded = [target for _, target in pairs]
            targets = nn.utils.rnn.pad_sequence(padded, batch_first=True, padding_value=IGNORED)[:, 1:]
            supervised = (targets != IGNORED).to(self.device)
            scores = self.lm_head(hidden[:, :-1][supervised]).float()
            if at_labels:
                return Output(scores, None)
            chosen = targets.to(self.device)[supervised]
            if weights is None:
                loss = functional.cross_entropy(scores, chosen)
            else:
                losses = functional.cross_entropy(scores, chosen, reduction="none")
                loss = weighted_mean(losses, labels, weights, total)
        return Output(self.lm_head(hidden) if want_logits else None, loss)


def weighted_mean(
    losses: Tensor, labels: Sequence[Sequence[int]], weights: Sequence[Sequence[float]], total: float | None
) -> Tensor:
    """Mean of the losses of labels that are not ignored; a sequence's first has none, for nothing predicts it."""
    kept = [
        weight
        for row, row_weights in zip(labels, weights, strict=True)
        for label, weight in zip(row[1:], row_weights[1:], strict=True)
        if label != IGNORED
    ]
    factors = torch.tensor(kept, device=losses.device)
    return (losses * factors).sum() / (factors.sum() if total is None else total)
