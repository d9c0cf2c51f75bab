"""What a server said, checked field by field: whoever answers at an address may answer anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, get_args

from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Answer, Conventions, Scalar, Sensor, StandsFor
from vlnbench.rollout import said
from vlnbench.util.durable.fields import BOOLEAN, COUNT, NUMBER, OBJECT, TEXT, Kind, check_fields
from vlnbench.util.visible import one_line

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
_REPORTS = Kind("a list", lambda value: type(value) is list)
_ANSWERS = Kind(
    "a list of lists of objects",
    lambda value: (
        type(value) is list and all(type(each) is list and all(map(OBJECT.fits, each)) for each in value)
    ),
)
_TOLD = {
    **dict.fromkeys(("text", "note"), TEXT),
    "actions": _ANSWER["actions"],
    "unparsable": BOOLEAN,
    **dict.fromkeys(("prompt_tokens", "images", "answer_tokens"), COUNT.or_null()),
    "log_probability": NUMBER.or_null(),
}
"""Fields of `Answer`."""
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
    known = {field.name for field in fields(Conventions)}
    unknown = {*found["sensors"]} - {*get_args(Sensor)} | {*found["expects"]} - known
    if unknown:
        raise UsageError(f"{address}: unknown sensors or conventions {one_line(sorted(map(str, unknown)))}")
    try:
        name = said.name(found["name"], "field 'name'")
        place = said.scalars(found["place"], "field 'place'")
        identity = said.scalars(found["identity"], "field 'identity'")
        expects = said.conventions(Conventions(**found["expects"]), "field 'expects'")
        code = None if found["code"] is None else said.name(found["code"], "field 'code'")
        description = said.lines(found.get("description", ""), "field 'description'")
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from error
    where_it_is = {key: one_line(value) for key, value in place.items()}
    named = one_line(", ".join(f"{key} {value}" for key, value in where_it_is.items()))
    return About(
        sensors=frozenset(found["sensors"]),
        expects=expects,
        identity=identity,
        stands_for=StandsFor(name, code, {"address": address, **where_it_is}),
        description=f"{address}: {name} ({named})\n{description}".rstrip(),
        max_batch=found["max_batch"],
        max_bytes=found["max_bytes"],
    )


def read_answer(
    found: Mapping[str, Any], count: int
) -> tuple[list[Action], list[dict[str, float]], list[list[Answer]]]:
    """Actions of so many episodes, what was counted about each, and what models said, in the order as sent.

    Raises UsageError if that is not what it says.
    """
    where = "its answer"
    check_fields(found, {**_ANSWER, "reports": _REPORTS}, where, needed=frozenset(_ANSWER), others=_ANYTHING)
    reports = found.get("reports", [{}] * count)
    for name, entries in (("actions", found["actions"]), ("reports", reports)):
        if len(entries) != count:
            raise UsageError(f"{where}: field '{name}': expected {count} entries, found {len(entries)}")
    try:
        actions, counted = [Action(each) for each in found["actions"]], list(map(said.counts, reports))
    except ValueError as error:
        raise UsageError(f"{where}: field 'reports': {error}") from error
    try:
        return actions, counted, _read_said(found, count)
    except UsageError as error:  # what is only told decides on nothing
        return actions, counted, [[Answer(note=str(error))]] * count


def _read_said(found: Mapping[str, Any], count: int) -> list[list[Answer]]:
    told = found.get("answers", [[]] * count)
    if not _ANSWERS.fits(told) or len(told) != count:
        raise UsageError(f"field 'answers': expected {count} lists of objects")
    for each in (answer for answers in told for answer in answers):
        check_fields(each, _TOLD, "it", others=_ANYTHING, inside="answers.")
    return [
        [Answer(**{name: each[name] for name in _TOLD if name in each}) for each in answers] for answers in told
    ]
