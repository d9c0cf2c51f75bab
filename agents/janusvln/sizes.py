"""Published sizes of JanusVLN, which can be planned without weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents.common.qwen2_5_vl.config import QWEN_3B, QWEN_7B
from agents.janusvln.config import ARCHITECTURE, GeometrySizes

VGGT_1B = GeometrySizes(
    width=1024,
    intermediate_size=4096,
    depth=24,
    heads=16,
    registers=4,
    dino_intermediate_size=4096,
    dino_depth=24,
    dino_registers=4,
    position_side=37,
    head_width=256,
    head_channels=(256, 512, 1024, 1024),
)
"""VGGT (arXiv 2503.11347)."""

_JANUS: Mapping[str, Any] = {"architectures": [ARCHITECTURE], "lam": 0.2}

SIZES: Mapping[str, Mapping[str, Any]] = {
    "janusvln-7b": {**QWEN_7B, **_JANUS},
    "janusvln-3b": {**QWEN_3B, **_JANUS},
}
"""config.json by name: of the released JanusVLN (Qwen2.5-VL-7B: 9,314,832,390 parameters with VGGT), and of the
same on Qwen2.5-VL-3B, which its code can train (4,770,995,718)."""
