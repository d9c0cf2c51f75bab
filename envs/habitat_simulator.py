"""habitat-lab's `Sim-v0`, able to change scenes without a camera. Importing it needs habitat-sim."""

from __future__ import annotations

from habitat.core.registry import registry
from habitat.sims.habitat_simulator.habitat_simulator import HabitatSim

SIMULATOR_TYPE = "VLNBenchSim-v0"
"""Name of the simulator in habitat-lab's registry."""


@registry.register_simulator(name=SIMULATOR_TYPE)
class CameralessSim(HabitatSim):  # type: ignore[misc]
    """The real simulator; a body without cameras is served too, as replays and oracles need no frames."""

    def close(self, destroy: bool = True) -> None:
        """Close the scene. habitat-lab passes destroy=False to keep the renderer for the next scene, on which
        habitat-sim 0.3.3 asks a renderer that was never made and crashes; there is nothing to keep without one."""
        super().close(destroy or self.renderer is None)
