"""houses: procedural multi-room houses with instructions, in the file formats of R2R-CE and RxR-CE."""

from vlnbench.houses_config import HousesConfig

from .dataset import VERSION, HousesManifest, generate, generated_version, house_names, is_complete

__all__ = [
    "VERSION",
    "HousesConfig",
    "HousesManifest",
    "generate",
    "generated_version",
    "house_names",
    "is_complete",
]
