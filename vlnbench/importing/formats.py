"""What a format of other programs' results is, and which there are. Loads nothing heavy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from vlnbench.errors import UsageError, unknown
from vlnbench.util.loading import import_module, import_string
from vlnbench.util.plugins import plugins, readable

LENGTH = "length"
"""What `ResultFormat.totals` maps the number of episodes to."""

_LOOKED_AT = 3


class Found(NamedTuple):
    """One object of a file. where: file, and line or episode, for messages; fields: as they lie there."""

    where: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ResultFormat:
    """A format in which the evaluation of other people's code writes its results.

    source: whose code writes it, for people. benchmark: whose episodes it is of where nobody says.
    files: regular expression of the names of its files below a folder; groups `split`, `checkpoint`, `shard` and
    `shards` (of how many) where names tell. layout: the objects of a file, see `layouts`.
    scores: their names -> fields of `metrics.Scores`; what it does not have stays unknown. episode, scene: names
    of these fields; no scene: "". path: field of what the agent walked, from which episodes are scored here.
    totals: names of means, in a line of its own among the others or in `totals_files`, -> fields as in `scores`,
    or `LENGTH`.
    """

    name: str
    source: str
    benchmark: str
    files: str
    layout: Callable[[Path], Iterator[Found]]
    scores: Mapping[str, str] = field(default_factory=dict, hash=False)
    episode: str = "episode_id"
    scene: str = ""
    path: str = ""
    totals: Mapping[str, str] = field(default_factory=dict, hash=False)
    totals_files: str = ""

    @property
    def needed(self) -> tuple[str, ...]:
        """Fields that every episode has."""
        own = [name for name, ours in self.scores.items() if ours in ("success", "spl", "distance_to_goal")]
        return (self.episode, *([self.path] if self.path else own))

    def is_total(self, found: Found) -> bool:
        """Whether an object holds means, not an episode."""
        return self.episode not in found.fields and any(name in self.totals for name in found.fields)

    def fits(self, path: Path) -> bool:
        """Whether the first objects of a file look like it, whatever the file is called."""
        first: list[Found] = []
        with suppress(UsageError):  # of what comes later; whoever reads all of it says so
            for each in islice(self.layout(path), _LOOKED_AT):
                first += [] if self.is_total(each) else [each]
        return bool(first) and all(name in each.fields for each in first for name in self.needed)


def get_format(name: str) -> ResultFormat:
    """A format by its name or import string. Raises UsageError for what is none."""
    own = _own()
    if ":" in name or name in own:
        return _checked(import_string(own.get(name, name)), name)
    added = plugins("results", own)
    if name not in added:
        text = unknown("format of results", name, [*own, *added])
        raise UsageError(f"--format: {text}; or give an import string package.module:OBJECT")
    return _checked(added[name].load(), name)


def every_format() -> list[ResultFormat]:
    """Those with a name, but for those of other distributions that cannot be loaded."""
    own = _own()
    added = readable("results", own, lambda each: _checked(each.load(), each.name))
    return [*(get_format(name) for name in own), *added.values()]


def _own() -> dict[str, str]:
    formats: dict[str, str] = import_module("agents.table").RESULTS
    return formats


def _checked(found: Any, name: str) -> ResultFormat:
    if not isinstance(found, ResultFormat):
        raise UsageError(f"format of results {name!r}: expected a vlnbench.importing.formats.ResultFormat")
    return found
