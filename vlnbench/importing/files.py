"""The files of other programs' results: which belong together, and what they hold."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from vlnbench.errors import UsageError
from vlnbench.importing.formats import Found, ResultFormat, every_format, get_format
from vlnbench.importing.layouts import lines
from vlnbench.util.durable.fields import short
from vlnbench.util.durable.json_stream import members

MOST_FILES = 200_000
"""Files that are looked at below the given folders; some programs write one for every episode."""
_MOST_NAMED, _MOST_TRIED = 12, 20


@dataclass(slots=True)
class Foreign:
    """The files of one evaluation.

    split, checkpoint: as names tell, else empty; `named`: the split stands in names of files, not of folders,
    which may be a default. totals: files of means alone.
    """

    split: str = ""
    checkpoint: str = ""
    named: bool = False
    files: list[Path] = field(default_factory=list)
    totals: list[Path] = field(default_factory=list)
    shards: set[tuple[int, int]] = field(default_factory=set)

    def read(self, kind: ResultFormat) -> tuple[list[Found], list[Found]]:
        """Episodes, and means. Raises UsageError for what is neither."""
        episodes: list[Found] = []
        means: list[Found] = []
        for path in self.totals:
            alone = list(lines(path))
            if not alone or not all(map(kind.is_total, alone)):
                raise UsageError(_wrong(kind, [path], [path]))
            means += alone
        for path in self.files:
            for found in kind.layout(path):
                if kind.is_total(found):
                    means.append(found)
                    continue
                for name in kind.needed:
                    if name not in found.fields:
                        raise UsageError(f"{found.where}: field {name!r}: missing{_hint(kind, path)}")
                episodes.append(found)
        return episodes, means

    @property
    def missing_shards(self) -> list[str]:
        """Shards that names speak of and that are not there."""
        there = {shard for shard, _ in self.shards}
        return [str(shard) for shard in range(max((of for _, of in self.shards), default=0)) if shard not in there]


def collect(paths: Sequence[Path], name: str, splits: Iterable[str]) -> tuple[ResultFormat, list[Foreign]]:
    """The format of the files at these paths, and the evaluations that they are of, by split and checkpoint.

    A file that is named itself may be called anything. name: of the format; empty: the one that fits. splits:
    names that folders may have. Raises UsageError where nothing fits, saying what is there and what that may be.
    """
    given = list(dict.fromkeys(_every(paths)))
    kind = get_format(name) if name else _told(given)
    found: dict[tuple[str, str], Foreign] = {}
    for path in given:
        named, means = re.fullmatch(kind.files, path.name), re.fullmatch(kind.totals_files, path.name)
        if not (named or means or path in paths):
            continue
        match = named or means
        told = {key: value for key, value in match.groupdict().items() if value} if match else {}
        split = told.get("split") or next((part for part in reversed(path.parts[:-1]) if part in splits), "")
        key = (split, told.get("checkpoint", ""))
        one = found.setdefault(key, Foreign(*key))
        one.named |= "split" in told
        (one.totals if means else one.files).append(path)
        if "shard" in told:
            one.shards.add((int(told["shard"]), int(told["shards"])))
    wrong = next((one.files for one in found.values() if one.files and not kind.fits(one.files[0])), None)
    if wrong or not found:
        raise UsageError(_wrong(kind, wrong or given, paths))
    return kind, [found[key] for key in sorted(found)]


def _every(paths: Sequence[Path]) -> Iterator[Path]:
    """Files at these paths and below, by name; links to folders are not followed."""
    count = 0
    for path in paths:
        if path.is_file():
            yield path
        elif not path.is_dir():
            raise UsageError(f"{path}: there is no such file or folder")
        for folder, inner, names in os.walk(path):
            inner.sort()
            count += len(names)
            if count > MOST_FILES:
                raise UsageError(f"{path}: holds more than {MOST_FILES:,} files; name the folder of the results")
            yield from (Path(folder, each) for each in sorted(names))


def _told(given: Sequence[Path]) -> ResultFormat:
    """The one format that fits. Raises UsageError naming those that may be, or that none is."""
    texts = _texts(given)
    kinds = {each.name: each for path in texts for each in looks_like(path)}
    if len(kinds) == 1:
        return next(iter(kinds.values()))
    if kinds:
        raise UsageError(f"{texts[0]}: may be of the formats {', '.join(kinds)}; say which with --format")
    raise UsageError(f"{described(texts[0]) if texts else 'no file of JSON there'}: of no known --format")


def looks_like(path: Path) -> list[ResultFormat]:
    """The formats that fit a file: those that also call it so, if there are any; else those that call means so."""
    fitting = [each for each in every_format() if each.fits(path)]
    named = [each for each in fitting if re.fullmatch(each.files, path.name)]
    return named or fitting or [each for each in every_format() if re.fullmatch(each.totals_files, path.name)]


def described(path: Path) -> str:
    """What a file holds, in a few words. Raises UsageError where that cannot be read."""
    with suppress(UsageError, StopIteration):
        name, value = next(members(path))
        if isinstance(value, dict):
            return f"{path}: begins with {short(name)}, an object of {_listed(value)}"
    first = next(iter(lines(path)), None)
    if first is None:
        return f"{path}: empty"
    return f"{path}: begins with an object of {_listed(first.fields)}"


def _listed(found: Mapping[str, Any]) -> str:
    names = [ascii(name)[1:-1][:40] for name in islice(found, _MOST_NAMED + 1)]
    more = ", ..." if len(names) > _MOST_NAMED else ""
    return (", ".join(names[:_MOST_NAMED]) or "nothing") + more


def _wrong(kind: ResultFormat, files: Sequence[Path], paths: Sequence[Path]) -> str:
    """What was expected, what there is, and what it looks like."""
    want = f"not of format {kind.name}, which is files of {kind.source} with {', '.join(kind.needed)}"
    texts = _texts(files)
    if not texts:
        return f"{', '.join(map(str, paths))}: {want}; there is no file of JSON"
    path = next((each for each in texts if looks_like(each)), texts[0])
    return f"{described(path)}: {want}{_hint(kind, path)}"


def _hint(kind: ResultFormat, path: Path) -> str:
    names = [each.name for each in looks_like(path) if each.name != kind.name]
    return f"; it looks like --format {' or '.join(names)}" if names else ""


def _texts(files: Sequence[Path]) -> list[Path]:
    return [path for path in files if path.suffix in (".json", ".jsonl", ".gz")][:_MOST_TRIED]
