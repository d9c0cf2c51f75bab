"""How long a planned training computes, as text: its operations at the pace that a card is expected to have."""

from __future__ import annotations

from vlnbench.errors import UsageError, unknown
from vlnbench.training.family.find import Chosen
from vlnbench.training.memory.plan import Plan, window_flops
from vlnbench.util.cards import PEAKS, Throughput, expected, peak

PER = 100_000
"""Windows of which hours are said where their number is not."""


def pace_of(gpus: str, card: str, tflops: float | None) -> Throughput | None:
    """What a GPU is expected to compute, by what is known of it best. Raises UsageError for a card not known."""
    if tflops is not None:
        return Throughput(tflops, "--tflops")
    if card and peak(card) is None:
        raise UsageError(f"--card: {unknown('card', card, PEAKS)}; or give --tflops")
    return expected(card or None, gpus.partition("x")[2])


def format_hours(planned: Plan, chosen: Chosen, pace: Throughput | None, windows: int | None) -> str:
    """A line or two: operations of a window, GPU-hours, and hours on these GPUs."""
    flops = window_flops(planned, chosen)
    name = f"time: {flops / 1e12:,.4g} TFLOP for a window of {planned.tokens:,} positions"
    if planned.request.learns_from != "labels":
        name += ", without what rollouts take"
    if pace is None:
        return f"{name}; what a card of {planned.gpus.label} computes is not known: give --card or --tflops"
    asked = windows or PER
    hours = asked * flops / (pace.tflops * 1e12) / 3600
    return (
        f"{name}\n      {hours:,.4g} GPU-hours for {asked:,} windows, {hours / planned.gpus.count:,.4g} hours on "
        f"{planned.gpus.count} GPUs, at {pace.tflops:g} TFLOPS each: {pace.source}"
    )
