"""Heights of the surface under one polygon.

Follows the algorithm of Recast 1.6.0 (Mikko Mononen, zlib license).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.embedded.kernels.jit import inner_kernel
from envs.embedded.navmesh.build.compact import Surface
from envs.embedded.navmesh.build.filters import step_x, step_z
from envs.embedded.navmesh.build.grid import Grid
from envs.embedded.navmesh.build.kinds import Flag, Int, Real
from envs.embedded.navmesh.build.polygons import Polygons
from envs.embedded.navmesh.tiles.polymesh import NO_INDEX

UNSET = 0xFFFF
"""Height of a cell that no floor was found for."""

_AROUND_X = (0, -1, 0, 1, 1, 1, 0, -1, -1)
_AROUND_Z = (0, -1, -1, -1, 0, 1, 1, 1, 0)
_FIRST_RING = 8
_RING_STEP = 8
_BIG = np.float32(3.4028234663852886e38)
_NUDGE = np.float32(0.01)


class Patch(NamedTuple):
    """Heights in cells over a rectangle of `width` x `depth` cells that starts at (x, z).

    heights: at least width * depth entries, row by row along z. queue: scratch, rows (x, z, floor).
    """

    heights: NDArray[np.int32]
    queue: NDArray[np.int32]
    x: int
    z: int
    width: int
    depth: int


@inner_kernel
def patch_bounds(mesh: Polygons, p: Int, grid: Grid) -> tuple[Int, Int, Int, Int, Int]:
    """First cell and size (x, z, width, depth) of the cells around polygon p, and its number of corners."""
    x0: Int = grid.width
    z0: Int = grid.depth
    x1: Int = 0
    z1: Int = 0
    n = 0
    for j in range(mesh.polys.shape[1] // 2):
        v = mesh.polys[p, j]
        if v == NO_INDEX:
            break
        x0 = min(x0, np.int64(mesh.verts[v, 0]))
        x1 = max(x1, np.int64(mesh.verts[v, 0]))
        z0 = min(z0, np.int64(mesh.verts[v, 2]))
        z1 = max(z1, np.int64(mesh.verts[v, 2]))
        n += 1
    x0, z0 = max(0, x0 - 1), max(0, z0 - 1)
    return x0, z0, min(grid.width, x1 + 1) - x0, min(grid.depth, z1 + 1) - z0, n


@inner_kernel
def _copy_region(
    surface: Surface, region: NDArray[Any], wanted: Int, patch: Patch, stride: Int
) -> tuple[Int, Flag]:
    """Heights of the floors of region `wanted`; seeds queued at its border, and whether there was any floor."""
    size = 0
    found = False
    for pz in range(patch.depth):
        for px in range(patch.width):
            column = patch.x + px + (patch.z + pz) * stride
            for i in range(surface.start[column], surface.start[column + 1]):
                if region[i] != wanted:
                    continue
                patch.heights[px + pz * patch.width] = surface.height[i]
                found = True
                for direction in range(4):
                    a = surface.neighbor[i, direction]
                    if a != -1 and region[a] != wanted:
                        patch.queue[size, 0] = patch.x + px
                        patch.queue[size, 1] = patch.z + pz
                        patch.queue[size, 2] = i
                        size += 1
                        break
                break
    return size, found


@inner_kernel
def _nearest_floor(surface: Surface, mesh: Polygons, p: Int, size: Int, patch: Patch, stride: Int) -> Int:
    """Floor nearest in height to a corner of polygon p; its cell goes to queue row 0. -1 where there is none."""
    best = -1
    smallest = UNSET
    for j in range(size):
        v = mesh.polys[p, j]
        for k in range(9):
            if smallest == 0:
                return best
            x = np.int64(mesh.verts[v, 0]) + _AROUND_X[k]
            z = np.int64(mesh.verts[v, 2]) + _AROUND_Z[k]
            if x < patch.x or x >= patch.x + patch.width or z < patch.z or z >= patch.z + patch.depth:
                continue
            for i in range(surface.start[x + z * stride], surface.start[x + z * stride + 1]):
                d = abs(np.int64(mesh.verts[v, 1]) - surface.height[i])
                if d < smallest:
                    smallest = d
                    best = i
                    patch.queue[0, 0] = x
                    patch.queue[0, 1] = z
                    patch.queue[0, 2] = i
    return best


@inner_kernel
def _seed_center(surface: Surface, mesh: Polygons, p: Int, size: Int, patch: Patch, stride: Int) -> Int:
    """Walk from a corner towards the polygon's center; queue the floor reached as the only seed. Seeds queued."""
    if _nearest_floor(surface, mesh, p, size, patch, stride) == -1:
        return 0
    center_x: Int = 0
    center_z: Int = 0
    for j in range(size):
        center_x += np.int64(mesh.verts[mesh.polys[p, j], 0])
        center_z += np.int64(mesh.verts[mesh.polys[p, j], 2])
    center_x //= size
    center_z //= size
    cells = patch.width * patch.depth
    for k in range(cells):
        patch.heights[k] = 0
    x, z, i = patch.queue[0, 0], patch.queue[0, 1], patch.queue[0, 2]
    depth = 1
    while depth > 0:
        depth -= 1
        x, z, i = patch.queue[depth, 0], patch.queue[depth, 1], patch.queue[depth, 2]
        if x == center_x and z == center_z:
            break
        sideways = 2 if center_x > x else 0
        direct = (1 if center_z > z else 3) if x == center_x else sideways
        for k in range(4):
            # The direct way goes on the stack last, in exchange for direction 3: it is tried first.
            direction = direct if k == 3 else (3 if k == direct else k)
            a = surface.neighbor[i, direction]
            px = x + step_x(direction) - patch.x
            pz = z + step_z(direction) - patch.z
            if a == -1 or px < 0 or px >= patch.width or pz < 0 or pz >= patch.depth:
                continue
            if patch.heights[px + pz * patch.width] != 0:
                continue
            patch.heights[px + pz * patch.width] = 1
            patch.queue[depth, 0] = px + patch.x
            patch.queue[depth, 1] = pz + patch.z
            patch.queue[depth, 2] = a
            depth += 1
    for k in range(cells):
        patch.heights[k] = UNSET
    patch.heights[x - patch.x + (z - patch.z) * patch.width] = surface.height[i]
    patch.queue[0, 0] = x
    patch.queue[0, 1] = z
    patch.queue[0, 2] = i
    return 1


@inner_kernel
def fill_patch(
    surface: Surface, region: NDArray[Any], mesh: Polygons, p: Int, size: Int, patch: Patch, stride: Int
) -> None:
    """Heights under polygon p with `size` corners: of its own region first, then spread to the neighbors."""
    for k in range(patch.width * patch.depth):
        patch.heights[k] = UNSET
    end, found = _copy_region(surface, region, mesh.region[p], patch, stride)
    if not found:
        end = _seed_center(surface, mesh, p, size, patch, stride)
    head = 0
    while head < end:
        x, z, i = patch.queue[head, 0], patch.queue[head, 1], patch.queue[head, 2]
        head += 1
        for direction in range(4):
            a = surface.neighbor[i, direction]
            if a == -1:
                continue
            px = x + step_x(direction) - patch.x
            pz = z + step_z(direction) - patch.z
            if px < 0 or px >= patch.width or pz < 0 or pz >= patch.depth:
                continue
            if patch.heights[px + pz * patch.width] != UNSET:
                continue
            patch.heights[px + pz * patch.width] = surface.height[a]
            patch.queue[end, 0] = x + step_x(direction)
            patch.queue[end, 1] = z + step_z(direction)
            patch.queue[end, 2] = a
            end += 1


@inner_kernel
def patch_height(
    patch: Patch,
    x: Real,
    y: Real,
    z: Real,
    cell: Real,
    cell_height: Real,
    radius: Int,
) -> Int:
    """Height in cells at a point in meters; from the nearest ring of cells with one where its own has none."""
    inverse = np.float32(1.0) / cell
    px = min(max(int(np.floor(x * inverse + _NUDGE)) - patch.x, 0), patch.width - 1)
    pz = min(max(int(np.floor(z * inverse + _NUDGE)) - patch.z, 0), patch.depth - 1)
    height = int(patch.heights[px + pz * patch.width])
    if height != UNSET:
        return height
    dx, dz, step_x, step_z = 1, 0, 1, 0
    side = 2 * radius + 1
    ring_end = _FIRST_RING
    ring_size = _FIRST_RING + _RING_STEP
    nearest = _BIG
    for k in range(side * side - 1):
        nx = px + dx
        nz = pz + dz
        if nx >= 0 and nz >= 0 and nx < patch.width and nz < patch.depth:
            candidate = int(patch.heights[nx + nz * patch.width])
            if candidate != UNSET:
                d = abs(np.float32(candidate) * cell_height - y)
                if d < nearest:
                    height = candidate
                    nearest = d
        if k + 1 == ring_end:
            if height != UNSET:
                break
            ring_end += ring_size
            ring_size += _RING_STEP
        if dx == dz or (dx < 0 and dx == -dz) or (dx > 0 and dx == 1 - dz):
            step_x, step_z = -step_z, step_x
        dx += step_x
        dz += step_z
    return height
