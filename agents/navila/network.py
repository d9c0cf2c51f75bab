"""NaVILA's network (arXiv 2412.04453) and its checkpoint folders, in the layout of VILA 1.5.

config.json lies beside the folders llm/, vision_tower/ and mm_projector/, each with a config.json and weights of
its own. What config.json repeats of those is not read, as the published code does not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from agents.common.checkpoints import files, weights
from agents.common.checkpoints import tokenizer as tokenizers
from agents.common.checkpoints.files import (
    CONFIG,
    DTYPES,
    GENERATION,
    Fields,
    GenerationSettings,
    dtype_of,
    flat_fields,
    read_json,
)
from agents.common.checkpoints.tied import add_head, fill_head, tied_name
from agents.common.checkpoints.tokenizer import TOKENIZER_FILES, Tokenizer
from agents.common.decoders.sizes import WindowedSizes, read_sizes
from agents.common.inputs import INPUTS
from agents.common.language.network import Output, SeeingNetwork, recompute
from agents.common.towers.siglip import patch_features
from agents.navila.options import FOLDERS, HISTORY, MODEL_TYPE, NaVILAInputs, Part
from vlnbench.errors import UsageError
from vlnbench.training.family.sources import no_checkpoint
from vlnbench.util.durable.folder import appearing

BEGIN, END, TURN_END = "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"
HEADER, HEADER_END = "<|start_header_id|>", "<|end_header_id|>"
MARKS = (BEGIN, END, HEADER, HEADER_END, TURN_END)
LENDER = "NaVILA or Llama-3-VILA1.5-8B (its folder llm/)"

PROCESSOR = "preprocessor_config.json"
"""Of the vision tower; read by other programs only."""

PUBLISHED: Mapping[str, Any] = {
    "architectures": ["LlavaLlamaModel"],
    "image_aspect_ratio": "resize",
    "mm_use_im_patch_token": False,
    "mm_use_im_start_end": False,
    "mm_vision_select_feature": "cls_patch",
    "mm_vision_select_layer": -2,
    "model_type": MODEL_TYPE,
    "num_video_frames": HISTORY + 1,
    "s2": False,
}
"""Fields of config.json that decide what is computed; no other values than these, but of the frames, are read."""


@dataclass(frozen=True)
class NaVILAConfig(WindowedSizes):
    """Sizes of one checkpoint: every question is a window of one turn that remembers `num_history` frames.

    `raw` is config.json as it was read, `parts` those of llm/ and vision_tower/.
    """

    dtype: torch.dtype
    raw: Mapping[str, Any]
    parts: tuple[Part, Part]

    @property
    def frames(self) -> int:
        """Frames of a question."""
        return self.num_history + 1


def read_config(folder: Path, history: int | None = None) -> NaVILAConfig:
    """Read the config.json of a checkpoint folder and of its parts. history: instead of the checkpoint's.

    Raises UsageError for a folder that holds no NaVILA checkpoint and for the first field that does not fit.
    """
    if not (folder / CONFIG).is_file():
        raise no_checkpoint(folder)
    raw = read_json(folder / CONFIG)
    if raw.get("model_type") != MODEL_TYPE:
        raise Fields(raw, str(folder / CONFIG)).error("model_type", f'"{MODEL_TYPE}" (a NaVILA checkpoint)')
    llm, tower, projector = (folder / name / CONFIG for name in FOLDERS)
    if missing := next((each for each in (llm, tower, projector) if not each.is_file()), None):
        raise UsageError(
            f"{missing} is missing: expected NaVILA's layout, config.json beside {', '.join(FOLDERS)}"
        )
    fields = Fields(read_json(projector), str(projector))
    if fields.values.get("mm_projector_type") != "mlp_downsample":
        raise fields.error("mm_projector_type", '"mlp_downsample"')
    return parse_config(raw, (read_json(llm), read_json(tower)), str(folder), history)


def parse_config(
    raw: Mapping[str, Any], parts: tuple[Part, Part], where: str, history: int | None = None
) -> NaVILAConfig:
    """The same from contents; `where` is the folder's name in messages.

    The published code cuts what is longer than `tokenizer_model_max_length`, and so the end of a question; here
    such a question is refused.
    """
    fields = Fields(raw, f"{where}/{CONFIG}")
    for name in ("image_aspect_ratio", "mm_use_im_start_end", "mm_vision_select_layer", "s2"):
        if raw.get(name, PUBLISHED[name]) != PUBLISHED[name]:
            raise fields.error(name, json.dumps(PUBLISHED[name]))
    llm, tower = parts
    language = flat_fields(llm, f"{where}/{FOLDERS[0]}/{CONFIG}")
    for own, kind in (
        (language, "llama"),
        (Fields(tower, f"{where}/{FOLDERS[1]}/{CONFIG}"), "siglip_vision_model"),
    ):
        if own.values.get("model_type") != kind:
            raise own.error("model_type", f'"{kind}"')
    shown = history + 1 if history else fields.integer("num_video_frames", default=HISTORY + 1)
    if shown < 2:
        raise fields.error("num_video_frames", "2 or more")
    language.choice("attention_bias", False, default=False)
    longest = language.integer("max_position_embeddings")
    # A tokenizer without a limit says 1e30.
    longest = min(longest, language.integer("tokenizer_model_max_length", default=longest, most=1 << 100))
    rhythm = {"num_history": shown - 1, "num_frames": 1, "num_future_steps": 1}
    seen = {"vision_config": tower, "mm_hidden_size": tower.get("hidden_size"), "max_position_embeddings": longest}
    config = NaVILAConfig(
        **vars(read_sizes(Fields({**language.values, **seen, **rhythm}, language.where), None)),
        dtype=dtype_of(language, "float16"),
        raw=dict(raw),
        parts=parts,
    )
    if (most := (longest - 1) // config.image_tokens) < shown:
        raise UsageError(
            f"{where}: {shown} frames of {config.image_tokens} embeddings are more than the language model's "
            f"{longest} positions take; give --history, {most - 1} or less"
        )
    return config


class Downsample(nn.Module):
    """The projector (VILA's mlp_downsample): neighboring patches, two by two, become one embedding."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        inner = 4 * width
        # The first of the published layers is the rearrangement, which has no parameters.
        pieces = (nn.Identity(), nn.LayerNorm(inner), nn.Linear(inner, hidden), nn.GELU())
        self.layers = nn.Sequential(*pieces, nn.Linear(hidden, hidden))

    def forward(self, features: Tensor) -> Tensor:
        """(N, grid ** 2, width) to (N, ceil(grid / 2) ** 2, hidden), column by column, as it was published."""
        grid, width = round(features.shape[1] ** 0.5), features.shape[2]
        planes = functional.pad(features.reshape(-1, grid, grid, width), (0, 0, 0, grid % 2, 0, grid % 2))
        side = (grid + 1) // 2
        blocks = planes.reshape(-1, side, 2, side, 2, width).permute(0, 3, 1, 2, 4, 5)
        embeddings: Tensor = self.layers(blocks.reshape(len(features), side**2, -1))
        return embeddings


class NaVILA(SeeingNetwork):
    """Vision tower, projector and language model of one checkpoint; a `Network` of `decoders.turns`.

    `attn` is the language model's attention (eager, sdpa or flash_attention_2); the tower's is eager with eager,
    sdpa otherwise. Parameters are created in torch's default dtype on its default device.
    """

    def __init__(self, config: NaVILAConfig, attn: str = "sdpa") -> None:
        from transformers import SiglipVisionConfig, SiglipVisionModel  # they take seconds

        super().__init__()
        self.config, self.attn = config, attn
        self.vision_attention = "eager" if attn == "eager" else "sdpa"
        self.speak(config, attn)
        sizes: dict[str, Any] = {**asdict(config.vision), "attn_implementation": self.vision_attention}
        tower = SiglipVisionModel(SiglipVisionConfig(**sizes))
        self.vision_tower = nn.ModuleDict({"vision_model": getattr(tower, "vision_model", tower)})
        self.mm_projector = Downsample(config.vision.hidden_size, config.hidden_size)

    @property
    def tower(self) -> nn.Module:
        """The vision tower, without the wrapper that its checkpoint names have."""
        return self.vision_tower["vision_model"]

    def enable_checkpointing(self) -> None:
        """Recompute activations of both transformers' blocks in the backward pass. Acts in training mode only."""
        for each in (self.model, self.tower):
            recompute(each)

    def fill_buffers(self, device: torch.device | str) -> None:
        """Compute the tables that no checkpoint holds, for a model whose parameters came from the meta device."""
        self.model.fill_buffers(device)
        patches = torch.arange(self.config.vision.grid**2, device=device)[None]
        self.tower.get_submodule("embeddings").register_buffer("position_ids", patches, persistent=False)

    def patch_features(self, pixels: Tensor) -> Tensor:
        """Patch features (N, patches, width) of images (N, 3, S, S): what the last block but one puts out."""
        return patch_features(self.tower, pixels, self.config.vision)

    def project(self, features: Tensor) -> Tensor:
        """Embeddings (N, image_tokens, hidden) of patch features (N, patches, width)."""
        found: Tensor = self.mm_projector(features)
        return found

    def forward(
        self,
        input_ids: Sequence[Sequence[int]],
        images: Sequence[Tensor],
        labels: Sequence[Sequence[int]],
        *,
        want_logits: bool = False,
        at_labels: bool = False,
    ) -> Output:
        """One training step's forward pass; see `answered`.

        `images[i]` is (k, 3, S, S), the current frame last, or these frames' patch features (k, patches, width).
        """
        patches = self.features_of(images)
        each = zip(input_ids, images, labels, strict=True)
        rows = [self.expand(ids, len(frames), targets) for ids, frames, targets in each]
        return self.answered(rows, self.project(patches), at_labels, self.config.max_position_embeddings)


def load(
    folder: Path,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    attn: str = "sdpa",
    trust_pickle: bool = False,
    history: int | None = None,
    quantize: str | None = None,
) -> NaVILA:
    """Load a checkpoint folder, in evaluation mode; `dtype` and `history` default to the checkpoint's. quantize:
    see `weights.fill`.

    Rows of the vocabulary beyond the tokenizer's entries are cut off, as published; none are added, whatever
    `mm_use_im_patch_token` says: the published code adds a row of random numbers then.

    Raises UsageError, before any tensor is read, for a folder or config that is no NaVILA checkpoint, for pickled,
    damaged or absent weight files and for keys or shapes that do not match the configs.
    """
    config, rows = read_config(folder, history), len(load_tokenizer(folder))
    paths = {name: weights.weight_files(folder / name, trust_pickle) for name in FOLDERS}
    named = {name: _named(name, config.tied) for name in FOLDERS}
    entries: dict[str, weights.Entry] = {}
    for name in FOLDERS:
        entries |= weights.read_entries(paths[name], named=named[name])
    if config.tied:
        add_head(entries)
    with torch.device("meta"):
        model = NaVILA(config, attn)
    weights.check_entries(entries, model, folder, f"the {CONFIG} of {', '.join(FOLDERS)}")
    for name in FOLDERS:
        weights.fill(model, paths[name], dtype or config.dtype, torch.device(device), named[name], quantize)
    if config.tied:
        fill_head(model)
    _cut_rows(model, rows)
    model.fill_buffers(device)
    return model.eval()


def _named(part: str, tied: bool) -> Callable[[str], str]:
    """Of a parameter's name in a part's folder: that in the model."""
    return tied_name(tied) if part == FOLDERS[0] else lambda stored: f"{part}.{stored}"


def _cut_rows(model: NaVILA, rows: int) -> None:
    model.config = replace(model.config, vocab_size=rows)
    for each in (model.model.embed_tokens, model.lm_head):
        if len(each.weight) > rows:
            each.weight = nn.Parameter(each.weight.detach()[:rows].clone())


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a checkpoint folder. Raises UsageError where it does not suit the checkpoint."""
    source = folder / FOLDERS[0]
    loaded = tokenizers.load_by_file(source, MARKS, LENDER)
    tokenizers.check_rows(loaded, source, Fields(read_json(source / CONFIG), str(source)).integer("vocab_size"))
    return loaded


def generation(folder: Path, tokenizer: Tokenizer) -> GenerationSettings:
    """How answers are decoded: they end with the end of a turn, too, which the published code looks for."""
    settings = files.generation_settings(folder / FOLDERS[0])
    (end,) = tokenizer.encode(TURN_END, add_special_tokens=False)
    return GenerationSettings(settings.eos | {end}, settings.repetition_penalty)


def read_files(folder: Path, trust_pickle: bool = False) -> Iterator[Path]:
    """The files that loading reads."""
    yield from (path for path in (folder / CONFIG, folder / INPUTS) if path.is_file())
    for name in FOLDERS:
        yield from weights.folder_files(folder / name, folder / name, trust_pickle)


def inputs_of(folder: Path | None, given: object) -> NaVILAInputs:
    """What a checkpoint's network is told, and options over it. folder: None for random weights."""
    return ((folder and NaVILAInputs.read(folder)) or NaVILAInputs()).over(given)


def save(
    model: NaVILA,
    folder: Path,
    inputs: NaVILAInputs,
    *,
    source: Path,
    history: int | None = None,
    shard_size: str | int = "5GB",
) -> None:
    """Write a checkpoint folder that `load` and the original code read. Other files come from `source`.

    history: frames of a question before the current one, if not those of the model.

    The folder appears at its name only when complete. Raises UsageError if `folder` exists.
    """
    config = model.config
    numbers = {"torch_dtype": next(name for name, dtype in DTYPES.items() if dtype == model.dtype)}
    llm, tower = (dict(part) | numbers for part in config.parts)
    llm |= {"vocab_size": len(model.lm_head.weight), "tie_word_embeddings": False}
    projector = {"model_type": "v2l_projector", "mm_projector_type": "mlp_downsample", **numbers}
    top = dict(config.raw) | {
        **{f"{name}_cfg": part for name, part in zip(FOLDERS, (llm, tower, projector), strict=True)},
        "hidden_size": config.hidden_size,
        "mm_hidden_size": config.vision.hidden_size,
        "num_video_frames": (history or config.num_history) + 1,
        "model_dtype": str(model.dtype),
    }
    language = nn.ModuleDict({"model": model.model, "lm_head": model.lm_head})
    modules = (language, model.vision_tower, model.mm_projector)
    copied = ((GENERATION, *TOKENIZER_FILES), (PROCESSOR,), ())
    with appearing(folder, "checkpoint") as made:
        for name, part, content, names in zip(FOLDERS, modules, (llm, tower, projector), copied, strict=True):
            beside = [source / name / each for each in names]
            weights.write_folder(part, made / name, content, beside, shard_size)
        (made / CONFIG).write_text(json.dumps(top, indent=2, sort_keys=True) + "\n")
        (made / INPUTS).write_text(inputs.text())
