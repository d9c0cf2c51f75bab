"""Reads image files that others wrote."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from PIL import Image

from vlnbench.errors import UsageError
from vlnbench.util.durable.limits import regular

MOST_PIXELS = 4096
"""Width and height of an image."""

AGAIN = "collect the set again"
"""What to do about images that cannot be read."""


def content_of(path: Path, remedy: str) -> bytes:
    """The bytes of an image file. Raises UsageError if it cannot be read."""
    try:
        return regular(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); {remedy}") from error


def decoded(
    path: Path, read: Callable[[Image.Image], NDArray[Any]], remedy: str, content: bytes | None = None
) -> NDArray[Any]:
    """What `read` makes of an image file, whose content may be known.

    Raises UsageError for one that is broken or larger than a camera's.
    """
    try:
        with Image.open(io.BytesIO(content_of(path, remedy) if content is None else content)) as image:
            if max(image.size) > MOST_PIXELS:
                raise UsageError(f"{path}: {image.width}x{image.height} pixels, expected at most {MOST_PIXELS}")
            return read(image)
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:  # SyntaxError is Pillow's for broken PNG
        raise UsageError(f"{path}: cannot be read as an image ({error}); {remedy}") from error


def beside(folder: Path, image: Path, kind: str) -> Path:
    """Where the image of another kind (depth, semantic) lies that belongs to one below `folder`/images."""
    below = image.relative_to(folder)
    return folder / kind / Path(*below.parts[1:]).with_suffix(".png")


def check_there(file: Path, kind: str, paths: Sequence[Path]) -> None:
    """Raise UsageError where images that a set of questions, `file`, should have are missing."""
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise UsageError(
            f"{file}: {len(missing)} of {len(paths)} {kind} images are missing, first {missing[0]}; make the set "
            f"with data questions --{kind}"
        )
