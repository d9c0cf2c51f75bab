"""Navigability of single points and of a grid seen from above, with the rules of habitat-sim's PathFinder."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.embedded.kernels.jit import kernel
from envs.embedded.navmesh.query.nearest import ANY_ISLAND, nearest
from envs.embedded.navmesh.query.surface import F32, ISLAND, Table, info

_SIDEWAYS: Any = np.float32(1e-2)


@kernel
def navigable(table: Table, x: F32, y: F32, z: F32, max_y_delta: F32) -> int:
    """Polygon a point stands on: within 1 cm in plan and `max_y_delta` in height. -1 if there is none."""
    poly, px, py, pz = nearest(table, x, y, z, ANY_ISLAND)
    if poly < 0 or abs(py - y) > max_y_delta:
        return -1
    dx, dz = x - px, z - pz
    return -1 if math.sqrt(dx * dx + dz * dz) > _SIDEWAYS else poly


@kernel
def fill_grid(table: Table, origin: NDArray[np.float32], pixel: F32, eps: F32, out: NDArray[np.int16]) -> None:
    """Island under every cell of `out` (rows along z, columns along x from `origin`), -1 where nothing is."""
    row = info(table)
    z = origin[2]
    for i in range(out.shape[0]):
        x = origin[0]
        for j in range(out.shape[1]):
            poly = navigable(table, x, origin[1], z, eps)
            out[i, j] = row[poly, ISLAND] if poly >= 0 else -1
            x = x + pixel
        z = z + pixel
