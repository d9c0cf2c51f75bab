"""JanusVLN, a vision-language navigation model with a geometric memory (arXiv 2509.22548), as an agent."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import torch
import transformers

from agents.common.placement import Placement, place
from agents.common.versions import check_transformers
from agents.janusvln import checkpoint
from agents.janusvln.config import PATCH, JanusVLNConfig, read_config
from agents.janusvln.decode import Decoder
from agents.janusvln.image import WIDTH, grid_of
from agents.janusvln.loop import EpisodeLoop
from agents.janusvln.network.geometry import FIRST, RECENT
from agents.janusvln.network.model import JanusVLN, part_of
from agents.janusvln.options import JanusVLNOptions
from agents.janusvln.prompt import Prompts
from vlnbench.errors import UsageError
from vlnbench.interfaces import Conventions, Scalar, Sensor

HEIGHT = 490  # of a resized frame of 640 x 480, for which memory is stated


class JanusVLNAgent(EpisodeLoop):
    """A trained checkpoint in `EpisodeLoop`. It looks at RGB; the published code renders depth and ignores it."""

    sensors: frozenset[Sensor] = frozenset({"rgb"})
    privileged = False
    options_type = JanusVLNOptions
    expects = Conventions(width=640, height=480, hfov=79.0, camera_height_m=1.25, forward_m=0.25, turn_deg=15.0)

    def __init__(self, options: JanusVLNOptions) -> None:
        """Load the checkpoint of `options`. Raises UsageError if that cannot be done as they say."""
        folder = _checked(options)
        config = read_config(folder)
        placement = place(
            options.device, options.dtype, "sdpa" if options.attn == "auto" else options.attn, config.dtype
        )
        tokenizer = checkpoint.load_tokenizer(folder, config, options.tokenizer)
        settings = checkpoint.generation_settings(folder, tokenizer)
        model = checkpoint.load(
            folder,
            dtype=placement.dtype,
            device=placement.device,
            eager=placement.attn == "eager",
            trust_pickle=options.trust_pickle,
        )
        decoder = Decoder(model, settings, max_new_tokens=options.max_new_tokens, max_batch=options.batch)
        super().__init__(Prompts(tokenizer), decoder, options.num_history, options.max_steps)
        self.identity = _identity(options, folder, placement)
        self.description = "\n".join(
            (
                f"checkpoint {folder}: {_parameters(model)}; {placement.dtype_name} on {placement.device}, "
                f"{placement.attn} attention",
                _memory(model, options.max_steps),
            )
        )

    @property
    def remarks(self) -> str:
        """What a reader of the results should know about the answers so far; empty if nothing."""
        found = []
        if self.unreadable:
            found.append(f"{self.unreadable} answers were none of the four actions and counted as STOP")
        if self.forced_stops:
            found.append(f"{self.forced_stops} episodes were stopped at --max-steps {self._max_steps}")
        return "; ".join(found)

    def close(self) -> None:
        """Give the model's memory back to the device."""
        super().close()
        torch.cuda.empty_cache()


def _checked(options: JanusVLNOptions) -> Path:
    """The checkpoint folder, after the checks that need no file of it."""
    if options.checkpoint is None:
        raise UsageError("agent 'janusvln' needs a trained model: name its folder with --checkpoint")
    options.check()
    check_transformers(transformers.__version__)
    return options.checkpoint


def _identity(options: JanusVLNOptions, folder: Path, placement: Placement) -> dict[str, Scalar]:
    """What decides the answers. Batch size and number of the device do not, its kind may in the last digits."""
    return {
        "checkpoint": checkpoint.content_hash(
            folder, tokenizer=options.tokenizer, trust_pickle=options.trust_pickle
        ),
        "device": placement.device.type,
        "dtype": placement.dtype_name,
        "attn": placement.attn,
        "max_new_tokens": options.max_new_tokens,
        "num_history": options.num_history,
        "max_steps": options.max_steps,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _parameters(model: JanusVLN) -> str:
    counts: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        counts[part_of(name)] += parameter.numel()
    parts = ", ".join(f"{part} {count / 1e6:,.1f} M" for part, count in counts.items())
    return f"{counts.total() / 1e6:,.1f} M parameters ({parts})"


def _memory(model: JanusVLN, steps: int) -> str:
    """One line about the memory that an episode takes, with frames of 640 x 480."""
    sizes, config = model.vggt.aggregator.sizes, model.config
    tokens = 1 + sizes.registers + (HEIGHT // PATCH) * (WIDTH // PATCH)
    frame = 2 * (sizes.depth - 1) * tokens * sizes.width * model.dtype.itemsize
    kept = steps * _image_bytes(config, model.dtype)
    most = (FIRST + RECENT + 1) * frame
    return (
        f"memory per episode: geometry {frame / 1e6:,.1f} MB per frame, at most {most / 1e9:.2g} GB; "
        f"images {kept / 1e9:.2g} GB of the host's after {steps} steps"
    )


def _image_bytes(config: JanusVLNConfig, dtype: torch.dtype) -> int:
    return grid_of(HEIGHT, WIDTH).cells * config.hidden_size * dtype.itemsize
