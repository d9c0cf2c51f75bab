"""StreamVLN checkpoint folders: loading, identity and saving, in the layout of the published ones."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from agents.streamvln import prompt, weights
from agents.streamvln.config import CONFIG, DTYPES, Fields, read_config, read_json
from agents.streamvln.decode import GenerationSettings
from agents.streamvln.model import StreamVLN
from agents.streamvln.prompt import Tokenizer
from vlnbench.errors import UsageError

GENERATION = "generation_config.json"
TOKENIZER = ("tokenizer.json", "vocab.json")
"""Either of these makes a folder one with a tokenizer."""
TOKENIZER_FILES = (
    *TOKENIZER,
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
NEWLINE = 198
"""The newline's token id, which the training labels of StreamVLN count on."""

SHIPPED = Path(__file__).parents[1] / "checkpoints"
"""Where the checkpoints lie that come with vlnbench, a folder each."""


def shipped() -> dict[str, Path]:
    """The checkpoints that come with vlnbench, by name."""
    return {folder.name: folder for folder in sorted(SHIPPED.iterdir()) if folder.is_dir()}


def find(name: str | Path) -> Path:
    """The folder that `name` is, or that of the shipped checkpoint so called; else the path as it is."""
    return Path(name) if Path(name).is_dir() else shipped().get(str(name), Path(name))


def load(
    folder: Path,
    *,
    vision_tower: Path | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    attn: str = "sdpa",
    trust_pickle: bool = False,
    image_size: int | None = None,
) -> StreamVLN:
    """Load a checkpoint folder, in evaluation mode.

    `vision_tower` is a folder with the config.json of the SigLIP model, where the checkpoint's own does not give
    the tower's sizes; `dtype` and `image_size` (pixels) default to the checkpoint's. Tensors go to `device` one
    at a time, so that the model is never held twice.

    Raises UsageError, before any tensor is read, for a folder or config that is no StreamVLN checkpoint, for
    pickled, damaged or absent weight files and for keys or shapes that do not match the config.
    """
    config = read_config(folder, vision_tower)
    files = weights.weight_files(folder, trust_pickle)
    entries = weights.read_entries(files)
    with torch.device("meta"):
        model = StreamVLN(config, attn)
    weights.check_entries(entries, model, folder)
    weights.fill(model, files, dtype or config.dtype, torch.device(device))
    model.fill_buffers(device)
    if image_size is not None and image_size != config.vision.image_size:
        model.resize_images(image_size)
    return model.eval()


def load_tokenizer(folder: Path, tokenizer: Path | None = None) -> Tokenizer:
    """The tokenizer of a checkpoint folder, or of the folder `tokenizer` where the checkpoint has none.

    Raises UsageError where there is none and where it does not suit the checkpoint.
    """
    source = tokenizer_folder(folder, tokenizer)
    loaded = prompt.load_tokenizer(source)
    rows = Fields(read_json(folder / CONFIG), str(folder / CONFIG)).integer("vocab_size")
    if len(loaded) > rows:
        raise UsageError(f"{source}: the tokenizer has {len(loaded)} entries, the model {rows} (vocab_size)")
    if (newline := loaded.encode("\n", add_special_tokens=False)) != [NEWLINE]:
        raise UsageError(f"{source}: the newline must be token {NEWLINE}, as in Qwen2, not {newline}")
    return loaded


def tokenizer_folder(folder: Path, tokenizer: Path | None = None) -> Path:
    """Which of the two folders the tokenizer is read from."""
    for candidate in (folder, tokenizer):
        if candidate is not None and any((candidate / name).is_file() for name in TOKENIZER):
            return candidate
    if tokenizer is not None:
        raise UsageError(
            f"--tokenizer {tokenizer}: expected a folder with tokenizer.json or vocab.json and merges.txt"
        )
    raise UsageError(
        f"{folder} has no tokenizer files: give --tokenizer, a folder with those of another StreamVLN or"
        " LLaVA-Video checkpoint"
    )


def generation_settings(folder: Path) -> GenerationSettings:
    """What generation_config.json says about greedy decoding; sampling fields do nothing there.

    A checkpoint without the file ends answers with config.json's `eos_token_id`, as transformers has it.
    """
    path = folder / GENERATION if (folder / GENERATION).is_file() else folder / CONFIG
    fields = Fields(read_json(path), str(path))
    found = fields.values.get("eos_token_id")
    eos: list[Any] = found if isinstance(found, list) else [found]
    if not eos or not all(isinstance(token, int) and not isinstance(token, bool) for token in eos):
        raise fields.error("eos_token_id", "a token id or a list of them")
    penalty = fields.number("repetition_penalty", default=1.0)
    if penalty == 0:
        raise fields.error("repetition_penalty", "a number above 0")
    return GenerationSettings(frozenset(eos), penalty)


def content_hash(
    folder: Path,
    *,
    tokenizer: Path | None = None,
    vision_tower: Path | None = None,
    trust_pickle: bool = False,
) -> str:
    """SHA-256 (hexadecimal) over names and contents of all files that loading with these arguments reads."""
    digest = hashlib.sha256()
    for path in _read_files(folder, tokenizer, vision_tower, trust_pickle):
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


def _read_files(
    folder: Path, tokenizer: Path | None, vision_tower: Path | None, trust_pickle: bool
) -> Iterator[Path]:
    source = tokenizer_folder(folder, tokenizer)
    known = [folder / CONFIG, folder / GENERATION, *(source / name for name in TOKENIZER_FILES)]
    if vision_tower is not None and "vision_config" not in read_json(folder / CONFIG):
        known.append(vision_tower / CONFIG)
    yield from (path for path in known if path.is_file())
    yield from weights.weight_files(folder, trust_pickle)


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
    if folder.exists():
        raise UsageError(f"{folder} exists already: give a new folder for the checkpoint")
    words = tokenizer_folder(source, tokenizer)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as name:
        made = Path(name, "checkpoint")
        made.mkdir()
        (made / CONFIG).write_text(json.dumps(config_to_save(model), indent=2, sort_keys=True) + "\n")
        for path in (source / GENERATION, *(words / file for file in TOKENIZER_FILES)):
            if path.is_file():
                shutil.copyfile(path, made / path.name)
        weights.write(model, made, shard_size)
        os.rename(made, folder)


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
