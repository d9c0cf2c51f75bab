"""Uni-NaVid's network (arXiv 2412.06224), how it remembers frames, and its checkpoint folders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from agents.common.checkpoints import tokenizer as tokenizers
from agents.common.checkpoints import weights
from agents.common.checkpoints.files import (
    CONFIG,
    DTYPES,
    GENERATION,
    Fields,
    dtype_of,
    flat_fields,
    read_json,
)
from agents.common.checkpoints.tokenizer import TOKENIZER_FILES, Tokenizer
from agents.common.decoders.placeholders import expand, lay_out
from agents.common.decoders.sizes import WindowedSizes, read_sizes
from agents.common.language.network import Output, SeeingNetwork, recompute
from agents.common.memory import Memory
from agents.common.towers.eva import VIT_G, EvaTower, is_surplus, pooled
from agents.uninavid.options import ARCHITECTURE, CURRENT, UniNaVidInputs
from vlnbench.errors import UsageError
from vlnbench.training.family.sources import no_checkpoint

VIDEO, VIDEO_END, PICTURE, PICTURE_END = (
    "<video_special>",
    "</video_special>",
    "<image_special>",
    "</image_special>",
)
NAVIGATION, SEPARATOR = "[Navigation]", "<image_sep>"
MARKS = (VIDEO, VIDEO_END, PICTURE, PICTURE_END, NAVIGATION, SEPARATOR)

TOWER = "model.vision_tower.vision_tower."
TOWER_FILE = "eva_vit_g.pth"
LENDER = "uninavid-7b-full-224-video-fps-1-grid-2"
BUFFERS = "rotary_emb.inv_freq"
"""In folders that older transformers wrote."""


@dataclass(frozen=True)
class UniNaVidConfig(WindowedSizes):
    """Sizes of one checkpoint. `side`: of the square of tokens that a remembered frame has. `raw`: config.json.

    The rhythm is that of a question with a full window, as planning counts it: 1,255 embeddings after 500 frames.
    """

    side: int
    dtype: torch.dtype
    raw: Mapping[str, Any]

    @property
    def image_tokens(self) -> int:
        """Tokens of the current frame."""
        return CURRENT**2


def read_config(folder: Path) -> UniNaVidConfig:
    """Read config.json of a checkpoint folder.

    Raises UsageError for a folder that holds no Uni-NaVid checkpoint and for the first field that does not fit.
    """
    if not (folder / CONFIG).is_file():
        raise no_checkpoint(folder)
    return parse_config(read_json(folder / CONFIG), str(folder / CONFIG))


def parse_config(raw: Mapping[str, Any], where: str) -> UniNaVidConfig:
    """The same from the content of a config.json; `where` is its name in messages.

    Published folders say nothing of the tower's sizes but its width: they are those of EVA's ViT-g.
    """
    fields = flat_fields({"rope_theta": 1e4, **raw}, where)
    if raw.get("architectures") != [ARCHITECTURE]:
        raise fields.error("architectures", f'["{ARCHITECTURE}"] (a Uni-NaVid checkpoint)')
    fields.choice("mm_projector_type", "mlp2x_gelu")
    fields.choice("mm_vision_select_feature", "patch", default="patch")
    fields.choice("mm_use_im_start_end", False, default=False)
    fields.choice("attention_bias", False, default=False)
    kinds = {"grid:2": 2, "grid:4": 4}
    side = kinds[fields.choice("compress_type", *kinds)]
    rhythm = {"num_history": 4, "num_frames": 1, "num_future_steps": 1}
    fields.choice("tie_word_embeddings", False, default=False)
    if "vision_config" not in raw and fields.integer("mm_hidden_size") != VIT_G.hidden_size:
        raise fields.error(
            "mm_hidden_size", f"{VIT_G.hidden_size}, as of EVA's ViT-g, or a vision_config beside it"
        )
    sizes = read_sizes(Fields({"vision_config": asdict(VIT_G), **fields.values, **rhythm}, where), None)
    if sizes.vision.grid % CURRENT:
        raise fields.error("vision_config", f"images of a multiple of {CURRENT} patches a side")
    return UniNaVidConfig(**vars(sizes), side=side, dtype=dtype_of(fields, "float16"), raw=dict(raw))


class UniNaVid(SeeingNetwork):
    """Vision tower, projector and language model of one checkpoint, under their published names; a `Network` of
    `decoders.turns` whose turns are embedded already.

    `attn` is the language model's attention (eager, sdpa or flash_attention_2). Parameters are created in torch's
    default dtype on its default device.
    """

    inputs = UniNaVidInputs()
    separator = 0
    """How frames are remembered, and the id between them; `load` sets both."""

    def __init__(self, config: UniNaVidConfig, attn: str = "sdpa") -> None:
        super().__init__()
        self.config, self.attn = config, attn
        self.speak(config, attn)
        self.model.vision_tower = nn.ModuleDict({"vision_tower": EvaTower(config.vision)})
        inner = nn.Linear(config.vision.hidden_size, config.hidden_size)
        outer = nn.Linear(config.hidden_size, config.hidden_size)
        self.model.mm_projector = nn.Sequential(inner, nn.GELU(), outer)

    @property
    def eyes(self) -> EvaTower:
        """The vision tower."""
        tower: EvaTower = self.model.vision_tower["vision_tower"]
        return tower

    def enable_checkpointing(self) -> None:
        """Recompute activations of both transformers' blocks in the backward pass. Acts in training mode only."""
        recompute(self.model)
        self.eyes.recompute = True

    def memory(self) -> Memory:
        """That of an episode, or of a sample."""
        return Memory(self.inputs.window_frames, self.inputs.similarity)

    def fill_buffers(self, device: torch.device | str) -> None:
        """Compute the tables that no checkpoint holds, for a model whose parameters came from the meta device."""
        self.model.fill_buffers(device)

    def patch_features(self, pixels: Tensor) -> Tensor:
        """Pooled features (N, side ** 2 + CURRENT ** 2, width) of images (N, 3, S, S): as they are remembered, and
        then as the current frame is shown."""
        return pooled_features(self.eyes, pixels, self.config.side)

    def project(self, features: Tensor) -> Tensor:
        """Tokens (..., hidden) of pooled features."""
        tokens: Tensor = self.model.mm_projector(features)
        return tokens

    def tokens(self, features: Tensor, counts: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """Of the pooled features of several videos, so many frames each: tokens of all frames as they are
        remembered (frames, side ** 2, hidden), and of the last one as the current frame (CURRENT ** 2, hidden)."""
        known, lasts = self.config.side**2, torch.tensor(counts).cumsum(0) - 1
        rows = features[:, :known].flatten(0, 1), features[lasts, known:].flatten(0, 1)
        frames, current = torch.split(self.project(torch.cat(rows)), [len(each) for each in rows])
        shown = current.view(len(counts), CURRENT**2, -1)
        videos = torch.split(frames.view(len(features), known, -1), list(counts))
        return list(zip(videos, shown, strict=True))

    def expand(
        self, ids: Sequence[int], images: int, labels: Sequence[int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """As tensors what `lay_out` has laid out; images: embeddings of it."""
        return expand(ids, images, 1, labels)

    def forward(
        self,
        input_ids: Sequence[Sequence[int]],
        images: Sequence[Tensor],
        labels: Sequence[Sequence[int]],
        *,
        want_logits: bool = False,
        at_labels: bool = False,
    ) -> Output:
        """One training step's forward pass; see `lay_out` and `answered`.

        `images[i]` is (k, 3, S, S), the current frame last, or these frames' pooled features (k, rows, width).
        """
        rows, embeddings = [], []
        videos = self.tokens(self.features_of(images), [len(each) for each in images])
        for ids, (frames, current), targets in zip(input_ids, videos, labels, strict=True):
            memory = self.memory()
            for frame in frames:
                memory.add(frame)
            laid, shown, told = lay_out(ids, memory.chunks(), current, self.separator, targets)
            rows.append((torch.tensor(laid), torch.tensor(told)))
            embeddings.append(shown)
        return self.answered(rows, torch.cat(embeddings), at_labels)


def pooled_features(tower: nn.Module, pixels: Tensor, side: int) -> Tensor:
    """See `UniNaVid.patch_features`; on the tower's device, in its dtype."""
    trained = any(parameter.requires_grad for parameter in tower.parameters())
    with torch.set_grad_enabled(trained and torch.is_grad_enabled()):
        features = tower(pixels)
        return torch.cat([pooled(features, side), pooled(features, CURRENT)], dim=1)


def tower_file(folder: Path, given: Path | None) -> Path | None:
    """The file that the vision tower is read from, None where it is in the folder. Raises UsageError for none."""
    if given is not None:
        if not given.is_file():
            raise UsageError(f"--vision-tower {given}: no such file; expected {TOWER_FILE}")
        return given
    if "vision_config" in read_json(folder / CONFIG):
        return None
    for candidate in (folder / TOWER_FILE, folder.parent / TOWER_FILE):
        if candidate.is_file():
            return candidate
    raise UsageError(
        f"{folder}: no {TOWER_FILE} in it or beside it: give --vision-tower FILE; the folder's own copy of the "
        "vision tower is not what the published program reads"
    )


def load(
    folder: Path,
    *,
    vision_tower: Path | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    attn: str = "sdpa",
    trust_pickle: bool = False,
    inputs: UniNaVidInputs | None = None,
    quantize: str | None = None,
) -> UniNaVid:
    """Load a checkpoint folder, in evaluation mode; `dtype` and `inputs` default to the checkpoint's. quantize:
    see `weights.fill`.

    Raises UsageError, before any tensor is kept, for a folder or config that is no Uni-NaVid checkpoint, for
    damaged or absent weight files, pickled ones without `trust_pickle`, and for keys or shapes that do not match.
    """
    config = read_config(folder)
    tower, paths = tower_file(folder, vision_tower), weights.weight_files(folder, trust_pickle)

    def of_folder(stored: str) -> str:
        return "" if stored.endswith(BUFFERS) or (tower and stored.startswith(TOWER)) else stored

    def of_tower(stored: str) -> str:
        return "" if is_surplus(stored, config.vision) else f"{TOWER}{stored}"

    sources = [(paths, of_folder), *([([tower], of_tower)] if tower else [])]
    entries: dict[str, weights.Entry] = {}
    for found, named in sources:
        entries |= weights.read_entries(found, ("",), named)
    with torch.device("meta"):
        model = UniNaVid(config, attn)
    weights.check_entries(entries, model, folder)
    for found, named in sources:
        weights.fill(model, found, dtype or config.dtype, torch.device(device), named, quantize)
    model.fill_buffers(device)
    model.inputs = inputs or inputs_of(folder, None)
    (model.separator,) = load_tokenizer(folder).encode(SEPARATOR, add_special_tokens=False)
    return model.eval()


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a checkpoint folder. Raises UsageError where it does not suit the checkpoint."""
    loaded = tokenizers.load_by_file(folder, MARKS, LENDER)
    tokenizers.check_rows(loaded, folder, read_config(folder).vocab_size)
    return loaded


def read_files(folder: Path, vision_tower: Path | None, trust_pickle: bool = False) -> Iterator[Path]:
    """The files that loading reads."""
    tower = tower_file(folder, vision_tower)
    return weights.folder_files(folder, folder, trust_pickle, [tower] if tower else [])


def inputs_of(folder: Path | None, given: object) -> UniNaVidInputs:
    """How a checkpoint remembers, and options over it. folder: None for random weights."""
    return ((folder and UniNaVidInputs.read(folder)) or UniNaVidInputs()).over(given)


def save(
    model: UniNaVid, folder: Path, inputs: UniNaVidInputs, *, source: Path, shard_size: str | int = "5GB"
) -> None:
    """Write a checkpoint folder that `load` reads, with its vision tower. Other files come from `source`.

    The original code reads it as well, but takes the tower from its own file. The folder appears at its name only
    when complete. Raises UsageError if `folder` exists.
    """
    dtype = next(name for name, dtype in DTYPES.items() if dtype == model.dtype)
    raw = {**model.config.raw, "torch_dtype": dtype, "vision_config": asdict(model.config.vision)}
    copied = [source / name for name in (GENERATION, *TOKENIZER_FILES)]
    weights.write_folder(model, folder, raw, copied, shard_size, inputs)
