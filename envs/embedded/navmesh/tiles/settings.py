"""Parameters of a navmesh, with the names and defaults of habitat-sim's NavMeshSettings."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from vlnbench.errors import UsageError

_POSITIVE = ("cell_size", "cell_height", "agent_height")
_MAX_GRID_VALUE = 1e6


@dataclass(frozen=True)
class NavMeshSettings:
    """How a navmesh is built, and for which body. Field order is the order in version 2 `.navmesh` files.

    Lengths in meters unless said otherwise. `region_min_size` and `region_merge_size` are side lengths in cells,
    `edge_max_error` and `detail_sample_dist` are in cells, `detail_sample_max_error` in cell heights,
    `agent_max_slope` in degrees. An `edge_max_len` of 0 leaves contour edges unsplit; a `detail_sample_dist`
    below 0.9 switches height samples off.

    Raises UsageError for a value no navmesh can have.
    """

    cell_size: float = 0.05
    cell_height: float = 0.2
    agent_height: float = 1.5
    agent_radius: float = 0.1
    agent_max_climb: float = 0.2
    agent_max_slope: float = 45.0
    region_min_size: float = 20.0
    region_merge_size: float = 20.0
    edge_max_len: float = 12.0
    edge_max_error: float = 1.3
    verts_per_poly: float = 6.0
    detail_sample_dist: float = 6.0
    detail_sample_max_error: float = 1.0
    filter_low_hanging_obstacles: bool = True
    filter_ledge_spans: bool = True
    filter_walkable_low_height_spans: bool = True
    include_static_objects: bool = False

    def __post_init__(self) -> None:
        for name in self.number_names():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise UsageError(f"navmesh setting {name}: {value!r} is not a finite number")
            if value < 0 or value > _MAX_GRID_VALUE or (name in _POSITIVE and value == 0):
                bound = "greater than 0" if name in _POSITIVE else "0 or more"
                raise UsageError(f"navmesh setting {name}: {value!r} must be {bound}, and at most 1e6")
        for name in self.flag_names():
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"navmesh setting {name}: {getattr(self, name)!r} must be True or False")
        if not 3 <= self.verts_per_poly <= 6:
            raise UsageError(f"navmesh setting verts_per_poly: {self.verts_per_poly!r} must be 3 to 6")
        if self.agent_max_slope > 90:
            raise UsageError(f"navmesh setting agent_max_slope: {self.agent_max_slope!r} must be 0 to 90 degrees")

    @classmethod
    def number_names(cls) -> tuple[str, ...]:
        """Names of the thirteen numbers, in file order."""
        return tuple(field.name for field in fields(cls) if field.type == "float")

    @classmethod
    def flag_names(cls) -> tuple[str, ...]:
        """Names of the four switches, in file order."""
        return tuple(field.name for field in fields(cls) if field.type == "bool")

    def matches(self, other: NavMeshSettings) -> bool:
        """Whether a navmesh built with `other` serves: numbers within 1e-5, switches equal."""
        numbers = all(abs(getattr(self, n) - getattr(other, n)) < 1e-5 for n in self.number_names())
        return numbers and all(getattr(self, n) == getattr(other, n) for n in self.flag_names())
