"""StreamVLN's turns at the 8 B size with random weights: time, tokens and memory by episodes at once."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from agents.common.checkpoints.files import GenerationSettings
from agents.common.decoders import generate as decode
from agents.common.decoders.turns import Turn
from agents.streamvln.network import StreamVLN, StreamVLNConfig
from benchmarks.gpu_evidence.pieces import CannotRunError, Job
from benchmarks.rollout.streamvln import ANSWER, END, TURNS, Scripted, full_size, peaks, play, random_weights
from tests.agents.streamvln.tiny import tiny_config

BATCHES = {
    "sdpa": (1, 2, 4, 8, 16),
    "eager": (1, 4, 16),
    "flash_attention_2": (1, 4, 16),
    "compile": (1, 8, 16),
    "graphs": (1, 4, 16),
}
"""Episodes at once, by the kind of attention; "compile" is SDPA with torch.compile, "graphs" with CUDA graphs."""
TOY_BATCHES = (1, 2)


class Counting(Scripted):
    """Knows how long its windows have become, all together, and how many tokens it was fed."""

    longest = fed = 0

    def run(self, turns: Sequence[Turn]) -> list[list[int]]:
        before = sum(self.window_length(turn.slot) for turn in turns if not turn.opens_window)
        answers = super().run(turns)
        lengths = [self.window_length(slot) for slot in self._windows]
        self.longest = max(self.longest, sum(lengths))
        self.fed += sum(self.window_length(turn.slot) for turn in turns) - before
        return answers


def run(job: Job) -> Mapping[str, Any]:
    """One kind of attention, with growing numbers of episodes until memory ends."""
    device, dtype = torch.device(job.device), torch.bfloat16
    if job.toy and job.case == "graphs":
        raise CannotRunError("CUDA graphs need a GPU")
    attn = "sdpa" if job.case in ("compile", "graphs") else job.case
    model = random_weights(sizes(job), dtype, device, attn)
    weights = sum(each.numel() * each.element_size() for each in model.parameters())
    found: dict[str, Any] = {"weights": weights, "dtype": "bfloat16", "rows": []}
    job.save(found)
    for batch in TOY_BATCHES if job.toy else BATCHES[job.case]:
        try:
            row = measure(model, batch, job.case)
        except torch.cuda.OutOfMemoryError:
            found["rows"].append({"episodes": batch, "out_of_memory": True})
            break
        found["rows"].append({"episodes": batch, **row, "planned": weights + row["cache"]})
        job.save(found)
    return found


def sizes(job: Job) -> StreamVLNConfig:
    """The published size, or a toy's."""
    toy = {"max_position_embeddings": 4096, "num_history": 8, "num_frames": 32, "vocab_size": 1200}
    return tiny_config(**toy) if job.toy else full_size()


def measure(model: StreamVLN, batch: int, case: str) -> dict[str, Any]:
    """A row of the table: of turns without guesses, and of turns whose guess is right.

    cache: bytes of keys and values at their most, twice those of the windows: a turn works on copies.
    """
    row: dict[str, Any] = {}
    on_gpu = model.device.type == "cuda"
    for name, guesses in (("guess_right", len(ANSWER)), ("no_guess", 0)):
        decode.DRAFT = guesses
        settings = GenerationSettings(frozenset({END}), 1.05)
        began = time.perf_counter()
        more = {"compile": case == "compile", "graphs": case == "graphs"}
        decoder = Counting(model, settings, max_batch=batch, **more)
        play(decoder, batch)
        warm = time.perf_counter() - began
        decoder.fed = 0
        if on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        play(decoder, batch)
        if on_gpu:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        turns = TURNS * batch
        row[name] = {
            "ms_per_turn": round(1000 * seconds / turns, 2),
            "episodes_per_hour": round(3600 * batch / seconds, 1),
            "generated_per_s": round(len(ANSWER) * turns / seconds, 1),
            "tokens_per_s": round(decoder.fed / seconds, 1),
            "warm_up_s": round(warm, 1),
        }
        row["cache"] = 2 * decoder.longest * decoder.cache_bytes_per_token
        row["allocated"], row["reserved"] = peaks(model.device) or (None, None)
    return row
