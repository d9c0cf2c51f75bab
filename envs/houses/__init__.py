"""houses: procedural multi-room houses with instructions, in the file formats of R2R-CE."""

from .config import HousesConfig
from .dataset import HousesManifest, generate, house_names, is_complete

__all__ = ["HousesConfig", "HousesManifest", "generate", "house_names", "is_complete"]
