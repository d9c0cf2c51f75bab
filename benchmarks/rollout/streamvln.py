"""Time and GPU memory of StreamVLN's turns, for growing numbers of episodes at once.

    python -m benchmarks.rollout.streamvln --checkpoint DIR [--vision-tower DIR]
    python -m benchmarks.rollout.streamvln --full-size --device cuda --batch 1 2 4 8 16

Episodes are 60 steps long, the mean of R2R train: 15 turns, the 9th of which opens the second window with its
memory frames. They are shifted against one another, so that openings and short turns meet as they do in a run.
Answers are scripted: a header, four actions and an end token, 8 tokens, whatever the logits say; so weights need
no training. "8 passes" is a turn without a guessed answer, "1 pass" one whose guess is right to the end.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from agents.common.checkpoints.files import DTYPES, GenerationSettings
from agents.common.decoders import generate as decode
from agents.common.decoders.generate import Row
from agents.common.decoders.placeholders import IMAGE, MEMORY
from agents.common.decoders.turns import Decoder, Turn
from agents.common.towers.siglip import KNOWN_TOWERS
from agents.streamvln import network as checkpoint
from agents.streamvln.network import LANGUAGE_ATTENTION, StreamVLN, StreamVLNConfig, parse_config
from tests.agents.streamvln.tiny import tiny_config, tiny_raw

TURNS = 15
OPENING_TOKENS, TURN_TOKENS = 190, 24  # text of an opening and of a later turn with its carried answer
END = 8
ANSWER = [1, 2, 3, 4, 5, 6, 7, END]


class Scripted(Decoder):
    """Does all the work of choosing and then says what the script says."""

    def _choose(self, rows: Sequence[Row], logits: torch.Tensor) -> list[list[int]]:
        super()._choose(rows, logits)
        return [(ANSWER + [END] * logits.shape[1])[len(row.output) :][: logits.shape[1]] for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--checkpoint", type=Path, help="a checkpoint folder")
    what.add_argument("--full-size", action="store_true", help="the published size, random weights")
    what.add_argument("--small", action="store_true", help="what --full-size does, at toy size")
    parser.add_argument("--vision-tower", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=DTYPES, help="default: the checkpoint's, or bfloat16")
    parser.add_argument("--attn", choices=LANGUAGE_ATTENTION, default="sdpa")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 2, 4, 8])
    options = parser.parse_args()
    device, dtype = torch.device(options.device), DTYPES.get(options.dtype)
    if options.checkpoint:
        model = checkpoint.load(
            options.checkpoint,
            vision_tower=options.vision_tower,
            dtype=dtype,
            device=device,
            attn=options.attn,
        )
    else:
        config = full_size() if options.full_size else tiny_config(max_position_embeddings=4096, num_history=8)
        model = random_weights(config, dtype or torch.bfloat16, device, options.attn)
    print(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters, {model.dtype}, {device},")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, attention {options.attn}")
    print(Decoder(model, GenerationSettings(frozenset({END}))).describe(), end="\n\n")
    print(f"| episodes | ms per turn, {len(ANSWER)} passes | ms per turn, 1 pass |", end="")
    print(" episodes/h | peak allocated, GB | peak reserved, GB |\n|---|---|---|---|---|---|")
    for batch in options.batch:
        print(row(model, batch, options.compile), flush=True)


def full_size() -> StreamVLNConfig:
    """Sizes of the published checkpoints."""
    raw = tiny_raw(
        hidden_size=3584,
        intermediate_size=18944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        vocab_size=152064,
        max_position_embeddings=32768,
        mm_hidden_size=1152,
        mm_vision_tower=next(iter(KNOWN_TOWERS)),
        num_history=8,
        num_frames=32,
    )
    del raw["vision_config"]
    return parse_config(raw, "the published size")


def random_weights(config: StreamVLNConfig, dtype: torch.dtype, device: torch.device, attn: str) -> StreamVLN:
    """A model made on the device in its precision, never held twice; norms let through what they get."""
    with torch.device("meta"):
        model = StreamVLN(config, attn).to(dtype)
    model.to_empty(device=device)
    model.fill_buffers(device)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name and name.endswith("weight"):
                parameter.fill_(1)
            else:
                parameter.normal_(std=0.02)
    return model


def row(model: StreamVLN, batch: int, compile: bool) -> str:
    """One line of the table. Peaks are of the slower way, which holds no less."""
    milliseconds = []
    for guesses in (0, len(ANSWER)):
        decode.DRAFT = guesses
        decoder = Scripted(model, GenerationSettings(frozenset({END}), 1.05), max_batch=batch, compile=compile)
        play(decoder, batch)  # warm up
        if model.device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        play(decoder, batch)
        milliseconds.append(1000 * (time.perf_counter() - start) / (TURNS * batch))
    memory = [f"{value / 1e9:.1f}" for value in peaks(model.device)] or ["-", "-"]
    slow, quick = milliseconds
    cells = [str(batch), f"{slow:.1f}", f"{quick:.1f}", f"{3.6e6 / (slow * TURNS):,.0f}", *memory]
    return f"| {' | '.join(cells)} |"


def play(decoder: Decoder, batch: int) -> None:
    """Every slot has `TURNS` turns, slots shifted against one another; the model's device is idle afterwards."""
    model = decoder.model
    size, tokens = model.config.vision.image_size, model.config.vocab_size
    frames = torch.rand(1 + model.config.num_history, 3, size, size, device=model.device) * 2 - 1
    turns = model.config.num_frames // model.config.num_future_steps
    text = [token % tokens for token in range(OPENING_TOKENS)]
    for call in range(TURNS):
        asked = []
        for slot in range(batch):
            turn = (call + slot * TURNS // batch) % TURNS
            opens = turn % turns == 0 or decoder.window_length(slot) == 0
            images = frames if opens and turn > 0 else frames[:1]
            start = text if opens else [*ANSWER, *text[: TURN_TOKENS - len(ANSWER)]]
            ids = [*start, *([MEMORY] if len(images) > 1 else []), IMAGE]
            asked.append(Turn(slot, ids, images, opens))
        decoder.run(asked)


def peaks(device: torch.device) -> list[int]:
    """Most bytes allocated and reserved since the last reset, on a GPU."""
    if device.type != "cuda":
        return []
    return [torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)]


if __name__ == "__main__":
    main()
