"""Lists of names as people write them: on the command line and in matrix files commas separate them as well."""

from __future__ import annotations


def split_names(text: str) -> tuple[str, ...]:
    """The names in `NAME[,NAME]`, without spaces around them; none in an empty text."""
    return tuple(name.strip() for name in text.split(",")) if text.strip() else ()
