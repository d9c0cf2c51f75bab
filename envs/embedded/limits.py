"""What a scene file, a navmesh file or a question about them may cost, checked before anything is allocated.

Every limit that a file can meet is here with its reason; docs/reference/limits.md lists them for users. A file
whose content unfolds (meshes that many nodes use, textures that compress well) may unfold to a fixed size that
costs less than 1 GB, and to more in proportion to its own size: scenes as they come are far below, and no small
file asks for gigabytes.
"""

from __future__ import annotations

from vlnbench.util.durable.limits import MAX_COORDINATE_M as MAX_COORDINATE_M

MAX_GLB_BYTES = 2**32 - 1
"""The header of a `.glb` counts its bytes in 32 bits."""

MAX_GLB_CHUNKS = 16
"""glTF 2.0 defines two."""

MAX_JSON_BYTES = 2**28
"""Decoded text takes up to four times as much."""

MAX_JSON_VALUES = 2_000_000
"""Commas and opening brackets in the JSON chunk: a value takes up to 250 bytes when it is read."""

MAX_NODES = 100_000
"""Nodes of the scene that is drawn: 25 microseconds each."""

MAX_PARTS = 50_000
"""Primitives, counted once for every node that uses their mesh: 100 microseconds each."""

FREE_TRIANGLES = 2**20
BYTES_PER_TRIANGLE = 4
MAX_TRIANGLES = 2**24
"""Triangles, counted once for every node that uses their mesh. Loading takes up to 450 bytes for each; a triangle
that is stored, not repeated, takes at least about 8 bytes of its file."""

VERTICES_PER_TRIANGLE = 3
"""Vertices are limited to this many for every triangle that may be: as many as triangles without an index have."""

MAX_TEXTURE_SIDE = 16384
"""Largest texture of common graphics cards, which habitat-sim needs to draw it."""

FREE_TEXELS = 2**26
TEXELS_PER_BYTE = 16
MAX_TEXELS = 2**30
"""Texels, counted once for every material that has factors or filters of its own for an image. Preparing takes 13
bytes for each; photographs take 0.1 to 0.5 bytes of their file for a texel. Indices into the pool with its mip
levels are 32-bit."""

MAX_CELLS = 2**24
"""Columns of the grid a navmesh is built on: 204 m x 204 m at 5 cm. Building takes 0.4 microseconds and 50 bytes
for each."""

MAX_SPANS = 2**25
"""Solid stretches of all columns together: two for every column of the largest grid."""

MAX_COVERED_CELLS = 2**27
"""Cells below the triangles a navmesh is built from, counted once for every triangle: 60 nanoseconds each."""

MAX_NAVMESH_M = 10_000.0
"""Largest side of a navmesh; a building is 100 m wide, and a navmesh of 5 cm cells cannot be wider than 3.3 km."""

MAX_MAP_CELLS = 2**24
"""Cells of a top-down map: 204 m x 204 m at 5 cm; a navigable cell takes 2.5 microseconds."""


def allowance(size: int, free: int, bytes_each: float, ceiling: int) -> int:
    """How many pieces a file of `size` bytes may unfold to: `free`, one more for every `bytes_each`, no more than
    `ceiling`."""
    return min(ceiling, free + int(size / bytes_each))
