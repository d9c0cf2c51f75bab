"""What a server said, checked field by field: whoever answers at an address may answer anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, get_args

from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Conventions, Scalar, Sensor, StandsFor
from vlnbench.util.durable.fields import COUNT, NUMBER, OBJECT, SCALAR, TEXT, Kind, check_fields

_LONGEST, _MOST_LINES = 300, 20
_ACTIONS = frozenset(map(int, Action))
_LIMIT = Kind("a whole number from 1 of up to 18 digits", lambda value: COUNT.fits(value) and value > 0)
_LISTED = Kind("a list of texts", lambda value: type(value) is list and all(map(TEXT.fits, value)))
_ABOUT = {
    "name": TEXT,
    "code": TEXT.or_null(),
    "sensors": _LISTED,
    "expects": OBJECT,
    "identity": OBJECT,
    "max_batch": _LIMIT,
    "max_bytes": _LIMIT,
    "place": OBJECT,
}
_ANSWER = {
    "actions": Kind(
        "a list of actions from 0 to 5",
        lambda value: type(value) is list and all(type(each) is int and each in _ACTIONS for each in value),
    )
}
_REPORTS = Kind("a list of objects", lambda value: type(value) is list and all(map(OBJECT.fits, value)))
_ANYTHING = Kind("anything", lambda value: True)


@dataclass(frozen=True)
class About:
    """What a server says of the agent that it serves. max_batch, max_bytes: of one message."""

    sensors: frozenset[Sensor]
    expects: Conventions
    identity: Mapping[str, Scalar]
    stands_for: StandsFor
    description: str
    max_batch: int
    max_bytes: int


def read_about(found: Mapping[str, Any], address: str) -> About:
    """Read the answer to a hello. Raises UsageError if it is not one."""
    where = f"{address}: what it says of its agent"
    optional = {"description": TEXT}
    check_fields(found, {**_ABOUT, **optional}, where, needed=frozenset(_ABOUT), others=_ANYTHING)
    conventions = dict.fromkeys((field.name for field in fields(Conventions)), NUMBER.or_null())
    unknown = {*found["sensors"]} - {*get_args(Sensor)} | {*found["expects"]} - conventions.keys()
    if unknown:
        shown = one_line(", ".join(sorted(map(str, unknown))))
        raise UsageError(f"{address}: unknown sensors or conventions {shown}")
    check_fields(found["expects"], conventions, where, inside="expects.")
    for name in ("identity", "place"):
        for key in found[name]:
            if not TEXT.fits(key):
                raise UsageError(f"{where}: field '{name}': expected names that are text")
        check_fields(found[name], {}, where, others=SCALAR, inside=f"{name}.")
    place = {one_line(name): one_line(value) for name, value in found["place"].items()}
    named = ", ".join(f"{name} {value}" for name, value in place.items())
    lines = [f"{address}: {one_line(found['name'])} ({named})", *found.get("description", "").splitlines()]
    return About(
        sensors=frozenset(found["sensors"]),
        expects=Conventions(**found["expects"]),
        identity=found["identity"],
        stands_for=StandsFor(found["name"], found["code"], {"address": address, **place}),
        description="\n".join(map(one_line, lines[:_MOST_LINES])),
        max_batch=found["max_batch"],
        max_bytes=found["max_bytes"],
    )


def read_answer(found: Mapping[str, Any], count: int) -> tuple[list[Action], list[dict[str, float]]]:
    """Actions of so many episodes, and what was counted about each, in the order in which they were sent.

    Raises UsageError if that is not what it says.
    """
    where = "its answer"
    check_fields(found, {**_ANSWER, "reports": _REPORTS}, where, needed=frozenset(_ANSWER), others=_ANYTHING)
    reports = found.get("reports", [{}] * count)
    for name, entries in (("actions", found["actions"]), ("reports", reports)):
        if len(entries) != count:
            raise UsageError(f"{where}: field '{name}': expected {count} entries, found {len(entries)}")
    for report in reports:
        for name in report:
            if not TEXT.fits(name):
                raise UsageError(f"{where}: field 'reports': expected names that are text")
        check_fields(report, {}, where, others=NUMBER, inside="reports.")
    return [Action(each) for each in found["actions"]], [dict(report) for report in reports]


def one_line(said: Any) -> str:
    """Foreign text in one line that a terminal can show, cut off where it is long."""
    text = " ".join(str(said).split())
    shown = "".join(each if each.isprintable() else "?" for each in text)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."
