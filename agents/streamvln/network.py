"""StreamVLN's network (arXiv 2507.05240) and its checkpoint folders: reading, saving, and what tells two apart.

Format of config.json: `llava_qwen` of LLaVA-NeXT with StreamVLN's additions (github.com/InternRobotics/StreamVLN).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from agents.common.checkpoints import tokenizer as tokenizers
from agents.common.checkpoints import weights
from agents.common.checkpoints.files import CONFIG, DTYPES, GENERATION, dtype_of, flat_fields, read_json
from agents.common.checkpoints.new_tokenizer import BLOCK_END, BLOCK_START
from agents.common.checkpoints.tied import add_head, fill_head, tied_name
from agents.common.checkpoints.tokenizer import TOKENIZER_FILES, Tokenizer
from agents.common.decoders.placeholders import IGNORED
from agents.common.decoders.sizes import WindowedSizes, read_sizes
from agents.common.inputs import Wording
from agents.common.language.network import Output, SeeingNetwork, recompute
from agents.common.packing.fast import would_be_fast
from agents.common.packing.loss import IMAGES, PackedLoss, Windows, filling, weighted_mean
from agents.common.packing.skeleton import Skeleton
from agents.common.sets.conversations import SYMBOLS
from agents.common.towers.siglip import interpolated, patch_features
from agents.streamvln.options import MODEL_TYPE
from vlnbench.errors import UsageError
from vlnbench.training.family.sources import no_checkpoint

LANGUAGE_ATTENTION = ("eager", "sdpa", "flash_attention_2")


@dataclass(frozen=True)
class StreamVLNConfig(WindowedSizes):
    """Sizes and rhythm of one checkpoint.

    `raw` is config.json as it was read; saving writes it back with what changed.
    """

    wording: Wording
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
        raise no_checkpoint(folder)
    raw = read_json(path)
    return parse_config(raw, str(path), vision_tower)


def parse_config(raw: Mapping[str, Any], where: str, vision_tower: Path | None = None) -> StreamVLNConfig:
    """The same from a config.json's content; `where` is its name in messages."""
    fields = flat_fields(raw, where)
    if raw.get("model_type") != MODEL_TYPE:
        raise fields.error("model_type", f'"{MODEL_TYPE}" (a StreamVLN checkpoint)')
    fields.choice("mm_projector_type", "mlp2x_gelu")
    fields.choice("mm_spatial_pool_mode", "bilinear")
    return StreamVLNConfig(
        **vars(read_sizes(fields, vision_tower)),
        wording=fields.choice("wording", *get_args(Wording), default="published"),
        dtype=dtype_of(fields),
        raw=dict(raw),
    )


def _backbone(config: StreamVLNConfig, attn: str) -> Any:
    from agents.common.decoders.qwen2 import Backbone  # it takes seconds, which a network without it saves

    try:
        return Backbone(config, attn)
    except ImportError as error:
        raise UsageError(f"attention {attn!r} cannot be used here: {str(error).splitlines()[0]}") from None


class StreamVLN(SeeingNetwork):
    """Vision tower, projector and language model of one checkpoint.

    `attn` is the language model's attention (eager, sdpa or flash_attention_2); the tower's is eager with eager,
    sdpa otherwise. Parameters are created in torch's default dtype on its default device. skeleton: only for
    `fast`, which needs parameters and nothing of transformers.

    Raises UsageError where flash_attention_2 is asked for and not installed.
    """

    def __init__(self, config: StreamVLNConfig, attn: str = "sdpa", skeleton: bool = False) -> None:
        super().__init__()
        if attn not in LANGUAGE_ATTENTION:
            raise UsageError(f"attention {attn!r}: expected one of {', '.join(LANGUAGE_ATTENTION)}")
        self.config, self.attn = config, attn
        self.model: Any = Skeleton(config) if skeleton else _backbone(config, attn)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.packed_loss: PackedLoss | None = None
        """Computes the loss where no logits are wanted, faster than is done here; see `packing.loss`."""
        self.auxiliary: Callable[[Sequence[Tensor], Tensor], Tensor] | None = None
        """The loss of features (F, width, grid, grid) of patches at what they show, bool (F, names, grid, grid);
        it learns to tell that. With its weight in the whole."""
        self.auxiliary_weight = 0.0

    @property
    def tower(self) -> nn.Module:
        """The vision tower, without the wrappers that its checkpoint names have."""
        tower: nn.Module = self.model.vision_tower.get_submodule("vision_tower.vision_model")
        return tower

    def enable_checkpointing(self) -> None:
        """Recompute activations of both transformers' blocks in the backward pass. Acts in training mode only."""
        recompute(self.model)

    def fill_buffers(self, device: torch.device | str) -> None:
        """Compute the tables that no checkpoint holds, for a model whose parameters came from the meta device."""
        self.model.fill_buffers(device, self.config.vision.grid**2)

    def resize_images(self, size: int) -> None:
        """Take images of `size` pixels from now on: positions of patches are interpolated, as SigLIP's code does.

        Raises UsageError where not even a patch fits in.
        """
        old, self.config = self.config.vision.grid, self.config.with_image_size(size)
        table = self.tower.get_parameter("embeddings.position_embedding.weight").detach()
        positions = interpolated(table, old, self.config.vision.grid)
        self.tower.get_submodule("embeddings").add_module("position_embedding", positions)
        self.fill_buffers(self.device)

    def patch_features(self, pixels: Tensor) -> Tensor:
        """Patch features (N, patches, width) of images (N, 3, S, S): the tower's last block, not normalized."""
        return patch_features(self.tower, pixels)

    def project(self, features: Tensor) -> Tensor:
        """Embeddings (N, image_tokens, hidden) of patch features (N, patches, width): projected, then pooled."""
        grid = self.config.vision.grid
        projected = self.model.mm_projector(features)
        planes = projected.transpose(1, 2).unflatten(2, (grid, grid))
        side = (grid + 1) // 2
        pooled = functional.interpolate(planes, size=(side, side), mode="bilinear", align_corners=False)
        return pooled.flatten(2).transpose(1, 2)

    def forward(
        self,
        input_ids: Sequence[Sequence[int]],
        images: Sequence[Tensor],
        labels: Sequence[Sequence[int]] | None = None,
        *,
        shown: tuple[Tensor, Tensor] | None = None,
        **how: Any,
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
        the labels, see `telling`. how: the options of `_answered`.
        """
        counts = [len(each) for each in images]
        more = images[0][: filling(sum(counts), IMAGES) if self.packed_loss is not None else 0]
        seen = torch.cat([*images, more])
        patches = self.patch_features(seen.to(self.device, self.dtype)) if seen.ndim == 4 else seen
        found = self._answered(input_ids, counts, self.project(patches), labels, **how)
        if shown is None or self.auxiliary is None or found.loss is None:
            return found
        what, which = (each.to(self.device) for each in shown)
        told = self.auxiliary([torch.unflatten(patches[which].transpose(1, 2), 2, what.shape[2:])], what)
        return found._replace(loss=found.loss + self.auxiliary_weight * told)

    def _answered(
        self,
        input_ids: Sequence[Sequence[int]],
        images: Sequence[int],
        features: Tensor,
        labels: Sequence[Sequence[int]] | None,
        *,
        weights: Sequence[Sequence[float]] | None = None,
        total: float | None = None,
        want_logits: bool = True,
        at_labels: bool = False,
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


UNUSED = frozenset({"model.image_newline"})
"""In LLaVA-Video checkpoints, from which StreamVLN is trained: StreamVLN does not lay frames out in rows."""
NEWLINE = 198
"""The newline's token id, which the training labels of StreamVLN count on."""


def load(
    folder: Path,
    *,
    vision_tower: Path | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    attn: str = "sdpa",
    trust_pickle: bool = False,
    image_size: int | None = None,
    fast: bool = False,
    quantize: str | None = None,
) -> StreamVLN:
    """Load a checkpoint folder, in evaluation mode.

    `vision_tower` is a folder with the config.json of the SigLIP model, where the checkpoint's own does not give
    the tower's sizes; `dtype` and `image_size` (pixels) default to the checkpoint's. Tensors go to `device` one
    at a time, so that the model is never held twice. fast: only for `Decoder`: where it would run the model by
    `fast`, only what that needs is there. quantize: see `weights.fill`.

    Raises UsageError, before any tensor is read, for a folder or config that is no StreamVLN checkpoint, for
    pickled, damaged or absent weight files and for keys or shapes that do not match the config.
    """
    config = read_config(folder, vision_tower)
    paths = weights.weight_files(folder, trust_pickle)
    named = tied_name(config.tied)
    entries = weights.read_entries(paths, UNUSED, named)
    if config.tied:
        add_head(entries)
    count = sum(math.prod(entry.shape) for entry in entries.values())
    skeleton = fast and not quantize and would_be_fast(count, attn, torch.device(device), dtype or config.dtype)
    with torch.device("meta"):
        model = StreamVLN(config, attn, skeleton)
    weights.check_entries(entries, model, folder)
    weights.fill(model, paths, dtype or config.dtype, torch.device(device), named, quantize)
    if config.tied:
        fill_head(model)
    model.fill_buffers(device)
    if image_size is not None and image_size != config.vision.image_size:
        model.resize_images(image_size)
    return model.eval()


def load_tokenizer(folder: Path, tokenizer: Path | None = None) -> Tokenizer:
    """The tokenizer of a checkpoint folder, or of the folder `tokenizer` where the checkpoint has none.

    Raises UsageError where there is none and where it does not suit the checkpoint.
    """
    source = _tokenizer_folder(folder, tokenizer)
    words = (BLOCK_START, BLOCK_END, "\n", *SYMBOLS)
    loaded = tokenizers.load_tokenizer(source, words, "LLaVA-Video-7B-Qwen2")
    rows = flat_fields(read_json(folder / CONFIG), str(folder / CONFIG)).integer("vocab_size")
    tokenizers.check_rows(loaded, source, rows)
    if (newline := loaded.encode("\n", add_special_tokens=False)) != [NEWLINE]:
        raise UsageError(f"{source}: the newline must be token {NEWLINE}, as in Qwen2, not {newline}")
    return loaded


def _tokenizer_folder(folder: Path, tokenizer: Path | None) -> Path:
    return tokenizers.tokenizer_folder(folder, tokenizer, "another StreamVLN or LLaVA-Video checkpoint")


def read_files(
    folder: Path, tokenizer: Path | None = None, vision_tower: Path | None = None, trust_pickle: bool = False
) -> Iterator[Path]:
    """The files that loading with these arguments reads."""
    needed = vision_tower is not None and "vision_config" not in read_json(folder / CONFIG)
    more = (vision_tower / CONFIG,) if vision_tower is not None and needed else ()
    return weights.folder_files(folder, _tokenizer_folder(folder, tokenizer), trust_pickle, more)


def save(
    model: StreamVLN,
    folder: Path,
    *,
    source: Path,
    tokenizer: Path | None = None,
    shard_size: str | int = "5GB",
) -> None:
    """Write a checkpoint folder that `load` and the original code read.

    Generation settings and tokenizer come from `source`, the folder the model started from (tokenizer: or from the
    folder given). The folder appears at its name only when complete.

    Raises UsageError if `folder` exists.
    """
    words = _tokenizer_folder(source, tokenizer)
    copied = (source / GENERATION, *(words / file for file in TOKENIZER_FILES))
    weights.write_folder(model, folder, config_to_save(model), copied, shard_size)


def config_to_save(model: StreamVLN) -> dict[str, Any]:
    """config.json of a model: what was read, with the tower's sizes, the type of its numbers and its rhythm.

    The original code builds the tower only where the config says that it was trained, and drops its weights
    otherwise; so it always says that.
    """
    config = model.config
    vision = asdict(config.vision) | {"model_type": "siglip_vision_model", "num_channels": 3}
    raw = {name: value for name, value in config.raw.items() if name != "wording"}
    if config.wording != "published":  # which released checkpoints do not say
        raw["wording"] = config.wording
    return raw | {
        "vision_config": vision,
        "unfreeze_mm_vision_tower": True,
        "mm_patch_merge_type": "flat",
        "num_frames": config.num_frames,
        "num_history": config.num_history,
        "num_future_steps": config.num_future_steps,
        "tie_word_embeddings": False,
        "torch_dtype": next(name for name, dtype in DTYPES.items() if dtype == model.dtype),
    }
