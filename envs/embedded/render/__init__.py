"""Scene loading and CPU rendering for the embedded simulator."""

from .renderer import Frame, Renderer, warm_up
from .scene import Scene, load_scene

__all__ = ["Frame", "Renderer", "Scene", "load_scene", "warm_up"]
