"""Scene loading and CPU rendering for the embedded simulator."""

from envs.embedded.render.renderer import Frame, Renderer, warm_up
from envs.embedded.render.scene import Scene, load_scene

__all__ = ["Frame", "Renderer", "Scene", "load_scene", "warm_up"]
