"""What running work says of itself beside its results: where the time goes, and what every process takes.

Terminal, `status` and trackers say the same, from the same entries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vlnbench.util.durable.fields import COUNT, NUMBER, Kind

GB = 1e9
KINDS = ("reserved", "allocated", "host")
"""Peaks that are compared, the best known first: of the GPU by PyTorch's allocator, of the host."""
PHASES = Kind("an object of numbers", lambda value: type(value) is dict and all(map(NUMBER.fits, value.values())))
"""Seconds by phase, in a file."""
PEAKS = Kind(
    "a list of objects with numbers of bytes",
    lambda value: (
        type(value) is list
        and all(
            type(each) is dict
            and all(COUNT.or_null().fits(each.get(kind)) for kind in KINDS)
            and PHASES.fits(each.get("phases", {}))
            for each in value
        )
    ),
)
"""Peaks of every process, in a file."""
SHOWN = 0.005
"""Shares of the time below this are not shown."""


def shares(seconds: Mapping[str, float]) -> str:
    """Where the time went, in percent: `vision 20 %, language 55 %`; empty where no time was taken."""
    total = sum(seconds.values())
    if total <= 0:
        return ""
    parts = (f"{name} {100 * value / total:.0f} %" for name, value in seconds.items() if value >= SHOWN * total)
    return ", ".join(parts)


def spread(peaks: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The largest and the smallest peak of several processes, in bytes, with their ranks; None if none is known.

    `of` is what the peaks are of, one of `KINDS`: the first that all processes know.
    """
    kind = next((kind for kind in KINDS if peaks and all(peak.get(kind) is not None for peak in peaks)), None)
    if kind is None:
        return None
    sizes = [int(peak[kind]) for peak in peaks]
    high, low = max(sizes), min(sizes)
    return {
        "of": kind,
        "high": high,
        "high_rank": sizes.index(high),
        "low": low,
        "low_rank": sizes.index(low),
        "spread": high - low,
    }


def memory_note(peaks: Sequence[Mapping[str, Any]]) -> str:
    """Peaks of all processes in a few words; empty if none is known."""
    found = spread(peaks)
    if found is None:
        return ""
    where = "host memory" if found["of"] == "host" else f"GPU memory {found['of']}"
    if len(peaks) == 1:
        return f"{where} {found['high'] / GB:.2f} GB"
    return (
        f"{where} {found['low'] / GB:.2f} (rank {found['low_rank']}) to {found['high'] / GB:.2f} GB "
        f"(rank {found['high_rank']})"
    )


def _computed(entry: Mapping[str, Any]) -> str:
    """Operations of a GPU per second, and what share of its card that is."""
    if "tflops" not in entry:
        return ""
    share = entry["card_share"]
    return f"{entry['tflops']:.1f} TFLOPS" + ("" if share is None else f" ({100 * share:.0f} % of the card)")


def _communication(entry: Mapping[str, Any]) -> str:
    """The share of the phases' time in which a process waits for the others."""
    total = sum((entry.get("seconds") or {}).values())
    if not total or "communication" not in entry:
        return ""
    return f"of that {100 * entry['communication'] / total:.0f} % communication"


def training_note(entry: Mapping[str, Any]) -> str:
    """One line about an entry of a training log: loss, speed, where the time went, memory and its balance.

    Communication is also part of what it is waited for in, so its share is beside the others.
    """
    parts = [
        f"loss {entry['loss']:.4f}, {entry['windows_per_s']:.2f} windows/s",
        _computed(entry),
        shares(entry.get("seconds") or {}),
        _communication(entry),
        memory_note(entry.get("memory") or []),
    ]
    return "; ".join(filter(None, parts))
