"""Bounds of options, said in their annotations: `batch: Count = 2`, `share: Annotated[float, Ge(0)] = 0.5`."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Annotated, Any, get_args, get_type_hints

from annotated_types import Ge, GroupedMetadata, Gt, Interval, Le, Lt

from vlnbench.errors import UsageError

Count = Annotated[int, Ge(1)]
Processes = Annotated[int, Interval(ge=1, le=1024)]
"""All are started at once: a slip of the finger must not take the machine down."""
Natural = Annotated[int, Ge(0)]
Positive = Annotated[float, Interval(gt=0, lt=math.inf)]
NotNegative = Annotated[float, Interval(ge=0, lt=math.inf)]
Share = Annotated[float, Interval(ge=0, le=1)]
BelowOne = Annotated[float, Interval(ge=0, lt=1)]

_HOLDS = {
    Ge: lambda value, bound: value >= bound.ge,
    Gt: lambda value, bound: value > bound.gt,
    Le: lambda value, bound: value <= bound.le,
    Lt: lambda value, bound: value < bound.lt,
}


def check_bounds(options: Any, where: str = "--") -> None:
    """Raise UsageError for the first number of a dataclass beyond the bounds of its annotation, NaN included; None
    is an option that is not given. where: what stands before the option's name."""
    for name, bounds in _bounds(options.__class__).items():
        value = getattr(options, name)
        if value is not None and not all(_HOLDS[type(each)](value, each) for each in bounds):
            shown = name.replace("_", "-") if where == "--" else name
            raise UsageError(f"{where}{shown} {value}: expected {_said(bounds)}")


@cache
def _bounds(kind: type) -> dict[str, tuple[Any, ...]]:
    """Bounds by field. Those of a base hold where a class that derives from it gives only another default."""
    found: dict[str, tuple[Any, ...]] = {}
    for base in reversed(kind.__mro__):
        if is_dataclass(base):
            hints = get_type_hints(base, include_extras=True)
            found |= {each.name: bounds for each in fields(base) if (bounds := _of(hints[each.name]))}
    return found


def _of(hint: Any) -> tuple[Any, ...]:
    """The bounds in a type, also behind `| None`."""
    own = [bound for each in getattr(hint, "__metadata__", ()) for bound in _plain(each)]
    inner = () if own else get_args(hint)
    return (*own, *(bound for each in inner for bound in _of(each)))


def _plain(metadata: Any) -> list[Any]:
    if isinstance(metadata, GroupedMetadata):
        return [each for each in metadata if type(each) in _HOLDS]
    return [metadata] if type(metadata) in _HOLDS else []


def _said(bounds: tuple[Any, ...]) -> str:
    """Bounds in words."""
    limits = {type(each): getattr(each, type(each).__name__.lower()) for each in bounds}
    if limits.get(Lt) == math.inf:
        del limits[Lt]
    low, high = limits.get(Ge), limits.get(Le)
    if Gt in limits:
        upper = f", up to {high:g}" if high is not None else f" and below {limits[Lt]:g}" if Lt in limits else ""
        return f"a number above {limits[Gt]:g}{upper}"
    if Lt in limits:
        return f"{low:g} to below {limits[Lt]:g}"
    return f"{low:g} to {high:g}" if high is not None else f"{low:g} or more"
