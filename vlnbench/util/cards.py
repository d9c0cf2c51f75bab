"""What NVIDIA's cards compute at most, and what training has been seen to make of it. Loads nothing heavy."""

from __future__ import annotations

import re
from dataclasses import dataclass

PEAKS = {
    "A10": 125,
    "A40": 149.7,
    "A100": 312,
    "A800": 312,
    "B200": 2250,
    "H20": 148,
    "H100": 989,
    "H100 NVL": 835,
    "H100 PCIe": 756,
    "H200": 989,
    "H800": 989,
    "H800 PCIe": 756,
    "L4": 121,
    "L40": 181,
    "L40S": 362,
    "RTX 3090": 71,
    "RTX 4090": 165.2,
    "RTX 5090": 209.5,
    "RTX 6000 Ada": 364.2,
    "RTX A6000": 154.8,
}
"""Dense bfloat16 with float32 sums, in 1e12 operations per second: data sheets and architecture papers of NVIDIA.
H20, H800 and A800 have no public data sheet: as their sellers say; the last two compute as H100 and A100."""

SHARE = 0.4
"""Of its peak a card is expected to reach in training. On an H200 thirteen trainings of the 8 B size, with batches
ready and no other GPU, reached 0.24 to 0.57, half of them 0.45 and more (results/gpu/nvidia_h200.json); reading
frames and communication take their part of it."""

USUAL = {"24": "RTX 4090", "40": "A100", "48": "L40S", "80": "A100", "96": "H20", "141": "H200"}
"""The card that is meant by a size in GB where none is named: of several the one that computes less."""


def peak(name: str) -> float | None:
    """The peak of a card by its own name or the driver's, such as NVIDIA A100-SXM4-80GB; None where not known."""
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    known = [each for each in PEAKS if words.issuperset(each.lower().split())]
    return PEAKS[max(known, key=len)] if known else None


def usual(size: str) -> str | None:
    """The card that is meant by a size such as 80GB or 79.2GiB; None where no usual one has it."""
    number = re.match(r"\d+", size)
    return None if number is None or size.endswith("GiB") else USUAL.get(number[0])


@dataclass(frozen=True)
class Throughput:
    """What a device is expected to compute per second, in 1e12 operations, and how that is known."""

    tflops: float
    source: str


def expected(card: str | None, size: str | None) -> Throughput | None:
    """The pace of training on a card, or where none is named on the usual one of a size; None where not known."""
    named = card or (usual(size) if size else None)
    highest = peak(named) if named else None
    if highest is None:
        return None
    guessed = "" if card else f", the usual card of {size}"
    return Throughput(SHARE * highest, f"{SHARE:.0%} of the {highest:g} TFLOPS of {named}{guessed}")
