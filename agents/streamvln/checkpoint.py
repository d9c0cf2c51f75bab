"""StreamVLN checkpoint folders in the published layout: loading, identity, saving, and new small ones."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from agents.common.checkpoints import files, weights
from agents.common.checkpoints import tokenizer as tokenizers
from agents.common.checkpoints.files import CONFIG, DTYPES, GENERATION, Fields, read_json
from agents.common.checkpoints.new_tokenizer import BLOCK_END, BLOCK_START, END, write_tokenizer
from agents.common.checkpoints.tokenizer import TOKENIZER_FILES, Tokenizer
from agents.common.language.preset import LanguageSizes
from agents.common.packing.lean import would_be_lean
from agents.common.sets.conversations import SYMBOLS
from agents.streamvln import prompt
from agents.streamvln.network import StreamVLN, parse_config, read_config
from agents.streamvln.options import MODEL_TYPE
from agents.streamvln.prompt import PHRASES, SYSTEM, task_text
from vlnbench.errors import UsageError

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
    lean: bool = False,
) -> StreamVLN:
    """Load a checkpoint folder, in evaluation mode.

    `vision_tower` is a folder with the config.json of the SigLIP model, where the checkpoint's own does not give
    the tower's sizes; `dtype` and `image_size` (pixels) default to the checkpoint's. Tensors go to `device` one
    at a time, so that the model is never held twice. lean: only for `Decoder`: where it would run the model by
    `lean`, only what that needs is there.

    Raises UsageError, before any tensor is read, for a folder or config that is no StreamVLN checkpoint, for
    pickled, damaged or absent weight files and for keys or shapes that do not match the config.
    """
    config = read_config(folder, vision_tower)
    paths = weights.weight_files(folder, trust_pickle)
    entries = weights.read_entries(paths, UNUSED)
    count = sum(math.prod(entry.shape) for entry in entries.values())
    bare = lean and would_be_lean(count, attn, torch.device(device), dtype or config.dtype)
    with torch.device("meta"):
        model = StreamVLN(config, attn, bare)
    weights.check_entries(entries, model, folder)
    weights.fill(model, paths, dtype or config.dtype, torch.device(device))
    model.fill_buffers(device)
    if image_size is not None and image_size != config.vision.image_size:
        model.resize_images(image_size)
    return model.eval()


def load_tokenizer(folder: Path, tokenizer: Path | None = None) -> Tokenizer:
    """The tokenizer of a checkpoint folder, or of the folder `tokenizer` where the checkpoint has none.

    Raises UsageError where there is none and where it does not suit the checkpoint.
    """
    source = _tokenizer_folder(folder, tokenizer)
    loaded = prompt.load_tokenizer(source)
    rows = Fields(read_json(folder / CONFIG), str(folder / CONFIG)).integer("vocab_size")
    tokenizers.check_rows(loaded, source, rows)
    if (newline := loaded.encode("\n", add_special_tokens=False)) != [NEWLINE]:
        raise UsageError(f"{source}: the newline must be token {NEWLINE}, as in Qwen2, not {newline}")
    return loaded


def _tokenizer_folder(folder: Path, tokenizer: Path | None) -> Path:
    return tokenizers.tokenizer_folder(folder, tokenizer, "another StreamVLN or LLaVA-Video checkpoint")


def content_hash(
    folder: Path,
    *,
    tokenizer: Path | None = None,
    vision_tower: Path | None = None,
    trust_pickle: bool = False,
) -> str:
    """SHA-256 (hexadecimal) over names and contents of all files that loading with these arguments reads."""
    return files.content_hash(read_files(folder, tokenizer, vision_tower, trust_pickle))


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
    return dict(config.raw) | {
        "vision_config": vision,
        "unfreeze_mm_vision_tower": True,
        "mm_patch_merge_type": "flat",
        "num_frames": config.num_frames,
        "num_history": config.num_history,
        "num_future_steps": config.num_future_steps,
        "torch_dtype": next(name for name, dtype in DTYPES.items() if dtype == model.dtype),
    }


@dataclass(frozen=True)
class Preset(LanguageSizes):
    """Sizes of a small model. `image_size` and `patch_size` in pixels; `blocks` of the tower as they are used."""

    vision_width: int
    vision_mlp: int
    blocks: int
    vision_heads: int
    image_size: int
    patch_size: int

    def config(self, vocab_size: int, end: int, block_end: int) -> dict[str, Any]:
        """config.json of a model of these sizes, in the fields of the published checkpoints."""
        tower = f"siglip-{self.vision_width}-patch{self.patch_size}-{self.image_size}"
        return {
            "architectures": ["StreamVLNForCausalLM"],
            "model_type": MODEL_TYPE,
            **self.language(vocab_size, end, block_end),
            "max_position_embeddings": 4096,
            "mm_hidden_size": self.vision_width,
            "mm_projector_type": "mlp2x_gelu",
            "mm_spatial_pool_mode": "bilinear",
            "mm_vision_tower": tower,
            "mm_vision_select_feature": "patch",
            "mm_vision_select_layer": -2,
            "num_history": 8,
            "num_future_steps": 4,
            "vision_config": {
                "hidden_size": self.vision_width,
                "intermediate_size": self.vision_mlp,
                "num_hidden_layers": self.blocks + 1,
                "num_attention_heads": self.vision_heads,
                "image_size": self.image_size,
                "patch_size": self.patch_size,
            },
        }


PRESETS = {
    "streamvln-tiny": Preset(
        hidden_size=128,
        intermediate_size=384,
        layers=4,
        heads=4,
        kv_heads=2,
        vision_width=128,
        vision_mlp=256,
        blocks=2,
        vision_heads=4,
        image_size=96,
        patch_size=12,
        vocabulary=1000,
    ),
}


def create(preset: Preset, folder: Path, texts: Iterable[str], seed: int) -> None:
    """Write a checkpoint folder with random weights and a tokenizer learned from instructions.

    The same arguments give the same bytes. Raises UsageError if `folder` exists.
    """
    with tempfile.TemporaryDirectory() as made:
        source = Path(made)
        ids = write_tokenizer(source, texts, preset.vocabulary, (*SYMBOLS, *_fixed_texts()))
        rows = -(-len(ids) // 64) * 64
        config = preset.config(rows, ids[END], ids[BLOCK_END])
        generation = {
            "bos_token_id": ids[END],
            "eos_token_id": [ids[BLOCK_END], ids[END]],
            "pad_token_id": ids[END],
        }
        (source / GENERATION).write_text(json.dumps(generation, indent=2) + "\n")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = StreamVLN(parse_config(config, "preset"))
        save(model, folder, source=source)


def _fixed_texts() -> list[str]:
    """What every prompt says alike. One token each: a small model's time goes into the sequence's length."""
    before, after = task_text("\0").split("\0")
    memory = [" These are your historical observations", " These are your historical observations:"]
    starts = [f"{BLOCK_START}{role}\n" for role in ("system", "user", "assistant")]
    unanswered = f"{starts[-1]}{BLOCK_END}\n"
    seen = f".{BLOCK_END}\n"
    return [SYSTEM, before.rstrip(), after, *memory, *PHRASES, *starts, unanswered, seen]
