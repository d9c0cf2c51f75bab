"""JanusVLN, a vision-language navigation model with a geometric memory (arXiv 2509.22548), as an agent."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import torch
import transformers

from agents.common.checkpoints.placement import Placement, place
from agents.common.checkpoints.versions import check_transformers
from agents.common.qwen2_5_vl.image import grid_of
from agents.common.qwen2_5_vl.tokens import generation_settings
from agents.janusvln import checkpoint
from agents.janusvln.config import JanusVLNConfig, read_config
from agents.janusvln.decode import Decoder
from agents.janusvln.image import resized_height
from agents.janusvln.loop import EXPECTS, EpisodeLoop
from agents.janusvln.network.model import JanusVLN, part_of
from agents.janusvln.options import JanusVLNOptions
from agents.janusvln.prompt import Prompts
from agents.janusvln.spec import FAMILY
from vlnbench.errors import UsageError
from vlnbench.interfaces import Scalar, Sensor
from vlnbench.training.family.sources import find_checkpoint
from vlnbench.util.hub import spoken


class JanusVLNAgent(EpisodeLoop):
    """A trained checkpoint in `EpisodeLoop`. It looks at RGB; the published code renders depth and ignores it."""

    sensors: frozenset[Sensor] = frozenset({"rgb"})
    privileged = False
    options_type = JanusVLNOptions
    expects = EXPECTS

    def __init__(self, options: JanusVLNOptions) -> None:
        """Load the checkpoint of `options`. Raises UsageError if that cannot be done as they say."""
        folder = _checked(options)
        config = read_config(folder).shown(options.image_width, options.num_history)
        placement = place(
            options.device, options.dtype, "sdpa" if options.attn == "auto" else options.attn, config.dtype
        )
        tokenizer = checkpoint.load_tokenizer(folder, config, options.tokenizer)
        settings = generation_settings(folder, tokenizer)
        model = checkpoint.load(
            folder,
            dtype=placement.dtype,
            device=placement.device,
            eager=placement.attn == "eager",
            trust_pickle=options.trust_pickle,
        )
        decoder = Decoder(
            model,
            settings,
            max_new_tokens=options.max_new_tokens,
            max_batch=options.batch,
            window=(options.first_frames, options.recent_frames),
        )
        super().__init__(Prompts(tokenizer), decoder, config.num_history, options.max_steps, config.image_width)
        self.identity = _identity(options, folder, placement, config)
        self.description = "\n".join(
            (
                f"checkpoint {spoken(folder)}: {_parameters(model)}; {placement.dtype_name} on "
                f"{placement.device}, {placement.attn} attention",
                _memory(model, config.image_width, options),
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
    return find_checkpoint(options.checkpoint, FAMILY, trust_pickle=options.trust_pickle)


def _identity(
    options: JanusVLNOptions, folder: Path, placement: Placement, config: JanusVLNConfig
) -> dict[str, Scalar]:
    """What decides the answers. Batch size and number of the device do not, its kind may in the last digits."""
    return {
        "checkpoint": checkpoint.content_hash(
            folder, tokenizer=options.tokenizer, trust_pickle=options.trust_pickle
        ),
        "device": placement.device.type,
        "dtype": placement.dtype_name,
        "attn": placement.attn,
        "max_new_tokens": options.max_new_tokens,
        "num_history": config.num_history,
        "first_frames": options.first_frames,
        "recent_frames": options.recent_frames,
        "image_width": config.image_width,
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


def _memory(model: JanusVLN, width: int, options: JanusVLNOptions) -> str:
    """One line about the memory that an episode takes, with frames of 640 x 480."""
    height = resized_height(640, 480, width)
    frame = model.vggt.aggregator.frame_bytes(height, width, model.dtype)
    kept = options.max_steps * grid_of(height, width).cells * model.config.hidden_size * model.dtype.itemsize
    most = (options.first_frames + options.recent_frames + 1) * frame
    return (
        f"memory per episode: geometry {frame / 1e6:,.1f} MB per frame, at most {most / 1e9:.2g} GB; "
        f"images {kept / 1e9:.2g} GB of the host's after {options.max_steps} steps"
    )
