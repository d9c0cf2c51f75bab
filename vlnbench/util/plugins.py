"""What other distributions add: agents, families, benchmarks and the like, found by their entry points.

A distribution offers, say, an agent by a line in the section `vlnbench.agents` of its entry points. Whatever is
wrong with it costs one line on stderr that names the distribution; nothing of it takes a name that vlnbench has.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, distributions
from typing import Any, TypeVar

from vlnbench.errors import UsageError
from vlnbench.util.loading import import_string
from vlnbench.util.progress import say

T = TypeVar("T")

KINDS = {
    "agents": "agent",
    "families": "family",
    "benchmarks": "benchmark",
    "envs": "environment",
    "simulators": "simulator",
    "rewards": "reward",
    "trackers": "tracker",
    "results": "format of results",
}
"""Groups of entry points, without the `vlnbench.` before their names: what one entry of each is called."""

_PREFIX = "vlnbench."
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,99}")
_TARGET = re.compile(r"\w+(\.\w+)*:\w+")


@dataclass(frozen=True, slots=True)
class Plugin:
    """One thing that another distribution offers.

    group: one of `KINDS`. target: import string of the thing. distribution: name and version of who offers it.
    """

    group: str
    name: str
    target: str
    distribution: str

    def load(self) -> Any:
        """The thing itself. Raises UsageError, in one line, whatever its import raises."""
        try:
            return import_string(self.target)
        except UsageError as error:
            raise self.error(str(error)[:300]) from error
        except SystemExit as error:  # a module that exits is a broken plug-in too
            raise self.error(f"{self.target.partition(':')[0]} raises SystemExit: {error}") from error

    def error(self, reason: str) -> UsageError:
        """An error that says who offers this and what is wrong with it."""
        return UsageError(f"{KINDS[self.group]} {self.name!r} of {self.distribution}: {reason}")


def plugins(group: str, own: Collection[str]) -> dict[str, Plugin]:
    """What other distributions offer in a group of `KINDS`, by name; imports nothing of it.

    own: names that vlnbench has itself. Entries under one of those, under a name that two distributions have, or
    that are no import strings are left out, with one warning for each.
    """
    found: dict[str, Plugin] = {}
    twice: set[str] = set()
    for each in _scan(tuple(sys.path)):
        if each.group != group:
            continue
        if each.name in own:
            warn(each.error("left out, vlnbench has one of that name"))
        elif not _NAME.fullmatch(each.name):
            warn(each.error("left out, expected a name of letters, digits and . _ -"))
        elif not _TARGET.fullmatch(each.target):
            warn(each.error(f"left out, expected package.module:OBJECT, found {each.target[:100]!r}"))
        elif each.name in found:
            warn(
                each.error(
                    f"left out, {found[each.name].distribution} has one of that name; uninstall one of them"
                )
            )
            twice.add(each.name)
        else:
            found[each.name] = each
    return {name: each for name, each in found.items() if name not in twice}


def readable(group: str, own: Collection[str], read: Callable[[Plugin], T]) -> dict[str, T]:
    """What `read` makes of those of a group that can be loaded; any other costs one warning.

    read: loads and checks one; raises UsageError for what it is not. own: see `plugins`.
    """
    made = {}
    for name, each in plugins(group, own).items():
        try:
            made[name] = read(each)
        except UsageError as error:
            warn(error)
    return made


@cache
def _scan(path: tuple[str, ...]) -> tuple[Plugin, ...]:
    """Every entry below an import path. As for imports, the first of several distributions of a name counts."""
    found: dict[str, list[Plugin]] = {}
    for distribution in distributions(path=list(path)):
        name = "a distribution"
        try:
            text = distribution.read_text("entry_points.txt")
            if text is None or _PREFIX not in text:  # nearly all; their other metadata are not read
                continue
            name = str(distribution.metadata["Name"])
            if name not in found:
                found[name] = []
                found[name] = list(_entries(distribution, f"{name} {distribution.metadata['Version']}"))
        except Exception as error:  # metadata of others: importlib.metadata raises whatever comes
            warn(UsageError(f"plug-ins of {name}: left out, its entry_points.txt cannot be read ({error})"))
    return tuple(sorted((each for some in found.values() for each in some), key=lambda each: each.distribution))


def _entries(distribution: Distribution, label: str) -> Iterator[Plugin]:
    for entry in distribution.entry_points:
        group = entry.group.removeprefix(_PREFIX)
        if entry.group.startswith(_PREFIX) and group in KINDS:
            yield Plugin(group, entry.name, entry.value.replace(" ", ""), label)


_warned: set[str] = set()


def warn(error: UsageError) -> None:
    """A line about a plug-in that is left out, once in the life of this process."""
    if str(error) not in _warned:
        _warned.add(str(error))
        say(f"warning: {error}")
