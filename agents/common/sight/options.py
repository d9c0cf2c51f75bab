"""Options of what is shown, and of what parts that see learn to tell. Loads nothing heavy."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Interval

from vlnbench.errors import UsageError
from vlnbench.training.options import LearnsFrom
from vlnbench.util.bounds import NotNegative, Share


@dataclass(frozen=True, kw_only=True)
class FramesOptions:
    """What an agent is shown."""

    frames: Literal["own", "gray", "other"] = "own"
    """What is shown to it: its own frames; gray ones, in which nothing is to be seen; or those of another walk.
    That tells how far it uses what it sees."""
    frames_from: Path | None = None
    """With --frames other: folder of collected walks (with depth for agents that read it), of which every episode
    draws one by its seed."""


@dataclass(frozen=True, kw_only=True)
class AuxiliaryOptions:
    """How much the auxiliary loss counts."""

    semantic_weight: NotNegative = 0.0
    """Weight of telling which objects, colors and rooms the parts of a frame show, where sets of questions know
    them (data questions --semantic). What tells them is not kept."""

    def check_auxiliary(self, part: str, parts: Collection[str], cached: bool) -> None:
        """Raise UsageError for what cannot be. part: what sees; parts: what is trained; cached: its features are
        kept."""
        if self.semantic_weight and cached:
            raise UsageError("--feature-cache: encoders that are kept learn nothing; leave --semantic-weight out")
        if self.semantic_weight and part not in parts:
            raise UsageError(f"--semantic-weight: {part} is not in --tunable-parts, so nothing would learn to see")


@dataclass(frozen=True, kw_only=True)
class MirrorOptions:
    """How often the other way round is shown."""

    mirror: Share = 0.0
    """Chance that a walk, or a question about a view, is seen in a mirror: frames, turns and the words "left" and
    "right". True of texts that use these words for directions alone, as the houses' do."""

    def check_mirror(self, learns_from: LearnsFrom, cached: bool) -> None:
        """Raise UsageError for what cannot be. cached: features of frames are kept."""
        if self.mirror and learns_from != "labels":
            raise UsageError("--mirror: for --objective supervised; leave it out")
        if self.mirror and cached:
            raise UsageError(
                "--feature-cache: keeps what a frame looks like, not its mirror image; leave --mirror out"
            )


LARGEST = 1 << 16
"""No size in a network's config is above this; it keeps products of sizes in range."""
Size = Annotated[int, Interval(ge=1, le=LARGEST)]
Meters = Annotated[float, Interval(gt=-1e9, lt=1e9)]


@dataclass(frozen=True, slots=True)
class Views:
    """How frames become input: sizes in pixels, depth range in meters, and RxR's resizing.

    `shortest_edge`: frames are scaled so that their shorter side has this length, then cut to `rgb_crop` and
    `depth_crop` (height, width) around the middle; None: frames go in as they are. `halved`: frames of any size
    are taken; of their pixels those are kept that a camera with `frame` pixels would see, and of these the mean of
    every 2 x 2, with 256 levels of depth.
    """

    frame: tuple[Size, Size]
    depth_frame: tuple[Size, Size]
    depth_range_m: tuple[Meters, Meters]
    shortest_edge: Size | None = None
    rgb_crop: tuple[Size, Size] = (224, 224)
    depth_crop: tuple[Size, Size] = (256, 256)
    halved: bool = False

    @property
    def inputs(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Height and width of what the network reads, RGB and depth."""
        if self.shortest_edge is not None:
            return self.rgb_crop, self.depth_crop
        if not self.halved:
            return self.frame, self.depth_frame
        (height, width), (h, w) = self.frame, self.depth_frame
        return (height // 2, width // 2), (h // 2, w // 2)
