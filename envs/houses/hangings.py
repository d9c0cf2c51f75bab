"""Pictures and windows: flat panels on walls."""

from __future__ import annotations

from .meshes import Part, box, colored


def painting(color: str, width: float, height: float) -> list[Part]:
    """A framed picture with its lower edge at y = 0 and its back at z = 0."""
    return [
        *colored("pine", box((-width / 2, 0, 0), (width / 2, height, 0.03))),
        *colored("cream", box((-width / 2 + 0.05, 0.05, 0.03), (width / 2 - 0.05, height - 0.05, 0.034))),
        *colored(color, box((-width * 0.3, height * 0.25, 0.034), (width * 0.3, height * 0.75, 0.038))),
    ]


def window(width: float, height: float) -> list[Part]:
    """A window with its lower edge at y = 0 and its back at z = 0."""
    bar = box((-0.02, 0.06, 0.02), (0.02, height - 0.06, 0.04))
    sill = box((-width / 2 - 0.05, -0.04, 0), (width / 2 + 0.05, 0.0, 0.1))
    pane = box((-width / 2 + 0.06, 0.06, 0.02), (width / 2 - 0.06, height - 0.06, 0.026))
    return [
        *colored("white", box((-width / 2, 0, 0), (width / 2, height, 0.02)), bar, sill),
        *colored("glass", pane),
    ]
