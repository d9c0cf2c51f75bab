"""What the camera saw at every step of an episode, as small pictures inside the page."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping

from PIL import Image

from vlnbench.interfaces import Env, Episode, Trajectory

WIDTH_PX, QUALITY = 256, 75

Frames = Mapping[tuple[str, int], list[str | None]]
"""JPEG in base64 by (episode id, repeat), one per pose; None where the agent has not moved."""


def draw(env: Env, episode: Episode, trajectory: Trajectory) -> list[str | None]:
    """Pictures of one episode. `env` must offer the rgb sensor; it is reset to the episode."""
    env.reset(episode)
    found: list[str | None] = []
    before = None
    for pose in trajectory.poses:
        found.append(None if pose == before else _jpeg(Image.fromarray(env.render(pose))))
        before = pose
    return found


def _jpeg(image: Image.Image) -> str:
    if image.width > WIDTH_PX:
        image = image.resize((WIDTH_PX, max(1, round(image.height * WIDTH_PX / image.width))))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=QUALITY)
    return base64.b64encode(buffer.getvalue()).decode()
