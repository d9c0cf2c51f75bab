"""StreamVLN, a video-language navigation model (arXiv 2507.05240), as an agent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from agents.common.checkpoints.files import generation_settings
from agents.common.checkpoints.placement import Placement, place
from agents.common.decoders.turns import Decoder, Turn
from agents.common.decoders.windows import Windows
from agents.common.paces import measured
from agents.common.sight.instead import Instead
from agents.common.threads import Threads
from agents.streamvln import checkpoint
from agents.streamvln.loop import EXPECTS, FeelingLoop, expects
from agents.streamvln.network import StreamVLN, part_of, read_config
from agents.streamvln.options import FAMILY, StreamVLNOptions
from agents.streamvln.prompt import PHRASES, Prompts
from vlnbench.errors import UsageError
from vlnbench.interfaces import Scalar, Sensor
from vlnbench.training.family.sources import find_checkpoint, shipped
from vlnbench.util.hub import spoken
from vlnbench.util.machine import installed_version

EPISODE_STEPS = 500  # what memory per episode is stated for


class StreamVLNAgent(FeelingLoop):
    """A trained checkpoint in `EpisodeLoop`. It looks at RGB; the published code renders depth and ignores it."""

    sensors: frozenset[Sensor] = frozenset({"rgb"})
    privileged = False
    options_type = StreamVLNOptions
    expects = EXPECTS

    def __init__(self, options: StreamVLNOptions) -> None:
        """Load the checkpoint of `options`. Raises UsageError if that cannot be done as they say."""
        folder = _checked(options)
        config = read_config(folder, options.vision_tower)
        windows = Windows.of(config, folder)
        placement = place(options.device, options.dtype, options.attn, config.dtype)
        prompts = Prompts(checkpoint.load_tokenizer(folder, options.tokenizer))
        shown = Instead(options)
        settings = generation_settings(folder)
        model = checkpoint.load(
            folder,
            vision_tower=options.vision_tower,
            dtype=placement.dtype,
            device=placement.device,
            attn=placement.attn,
            trust_pickle=options.trust_pickle,
            lean=not options.compile,
        )
        decoder = Decoder(
            model,
            settings,
            max_new_tokens=options.max_new_tokens,
            max_batch=options.batch,
            compile=options.compile,
        )
        self._max_new_tokens = options.max_new_tokens
        prompt = prompts.opening("", PHRASES[0], memory=False)
        fixed = options.compile  # what is compiled is so for a number of threads
        rehearse = partial(decoder.rehearse, prompt)
        self._threads = Threads(placement.device, None if fixed else rehearse)
        on_cpu = placement.device.type == "cpu" and not fixed
        self.paces: Mapping[int, float] = measured(rehearse) if on_cpu and options.max_batch is None else {}
        timed = _Timed(decoder, self._threads)
        super().__init__(prompts, timed, windows, config.vision.image_size, shown)
        self.expects = expects(config.vision.image_size)
        self.files = (
            *checkpoint.read_files(folder, options.tokenizer, options.vision_tower, options.trust_pickle),
            *shown.files,
        )
        self.identity: Mapping[str, Scalar] = {
            **_identity(options, folder, placement, windows),
            **shown.identity,
        }
        self.description = "\n".join(
            (
                f"checkpoint {spoken(folder)}: {_parameters(model)}; {placement.dtype_name} on "
                f"{placement.device}, {placement.attn} attention",
                decoder.describe(),
                f"frames: {self.frame_bytes(EPISODE_STEPS) / 1e6:.0f} MB per episode of {EPISODE_STEPS} steps",
                *self._threads.description,
            )
        )

    @property
    def remarks(self) -> str:
        """What a reader of the results should know about the answers so far; empty if nothing."""
        count, limit = self.truncated_turns, self._max_new_tokens
        cut = [f"{count} answers were cut at --max-new-tokens {limit}"] if count else []
        return "; ".join([*cut, *self._threads.remarks])

    def close(self) -> None:
        """Give the model's memory back to the device."""
        super().close()
        self._threads.close()
        torch.cuda.empty_cache()


class _Timed:
    """A decoder whose answers are given with as many threads as are fastest at present."""

    def __init__(self, decoder: Decoder, threads: Threads) -> None:
        self.max_new_tokens = decoder.max_new_tokens
        self.drop, self.unsay = decoder.drop, decoder.unsay
        self._decoder, self._threads = decoder, threads

    def run(self, turns: Sequence[Turn]) -> list[list[int]]:
        """As `Decoder.run`."""
        with self._threads.acting(sum(len(turn.images) for turn in turns)):
            return self._decoder.run(turns)


class StreamVLNTinyAgent(StreamVLNAgent):
    """The small checkpoint that comes with vlnbench."""

    def __init__(self, options: StreamVLNOptions) -> None:
        if options.checkpoint is not None:
            raise UsageError("agent 'streamvln-tiny' has its own checkpoint: use --agent streamvln for another")
        super().__init__(replace(options, checkpoint=shipped()["streamvln-tiny"]))


def _checked(options: StreamVLNOptions) -> Path:
    """The checkpoint folder, after the checks that need no file of it."""
    if options.checkpoint is None:
        raise UsageError("agent 'streamvln' needs a trained model: name its folder with --checkpoint")
    options.check()
    return find_checkpoint(options.checkpoint, FAMILY, trust_pickle=options.trust_pickle)


def _identity(
    options: StreamVLNOptions, folder: Path, placement: Placement, windows: Windows
) -> dict[str, Scalar]:
    """What decides the answers. Batch size and number of the device do not, its kind may in the last digits."""
    content = checkpoint.content_hash(
        folder,
        tokenizer=options.tokenizer,
        vision_tower=options.vision_tower,
        trust_pickle=options.trust_pickle,
    )
    return {
        "checkpoint": content,
        "device": placement.device.type,
        "dtype": placement.dtype_name,
        "attn": placement.attn,
        "compile": options.compile,
        "max_new_tokens": options.max_new_tokens,
        "num_frames": windows.num_frames,
        "num_history": windows.num_history,
        "torch": torch.__version__,
        "transformers": installed_version("transformers"),
    }


def _parameters(model: StreamVLN) -> str:
    counts: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        counts[part_of(name)] += parameter.numel()
    parts = ", ".join(f"{part} {count / 1e6:,.1f} M" for part, count in counts.items())
    return f"{counts.total() / 1e6:,.1f} M parameters ({parts})"
