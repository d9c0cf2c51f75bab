"""What lies at the paths that a view is asked for: runs, trainings, matrices, and folders of results."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from vlnbench.errors import UsageError
from vlnbench.evaluation.records import MANIFEST, ROWS
from vlnbench.evaluation.status import TRAINING, TRAINING_LOG
from vlnbench.leaderboard.board import PUBLISHED
from vlnbench.matrix.rows import DOCUMENT

MOST = 500
"""Runs, trainings and matrices that one page may hold."""
_DEEP = 6


@dataclass(slots=True)
class Found:
    """Folders by what they are of, each in the order in which it was found."""

    runs: list[Path] = field(default_factory=list)
    trainings: list[Path] = field(default_factory=list)
    matrices: list[Path] = field(default_factory=list)
    results: list[Path] = field(default_factory=list)

    def stamp(self) -> tuple[tuple[str, int, int], ...]:
        """Changes when a file that the page is made of does."""
        named = {
            MANIFEST: self.runs,
            ROWS: self.runs,
            TRAINING: self.trainings,
            TRAINING_LOG: self.trainings,
            DOCUMENT: self.matrices,
            PUBLISHED: self.results,
        }
        paths = [folder / name for name, folders in named.items() for folder in folders]
        found = []
        for path in paths:
            try:
                facts = path.stat()
            except OSError:  # gone, or not begun
                continue
            found.append((str(path), facts.st_mtime_ns, facts.st_size))
        return tuple(found)


def find(paths: Iterable[Path]) -> Found:
    """Everything at these paths and below. Raises UsageError for a path without any of it, and for too much."""
    found = Found()
    kinds = {MANIFEST: found.runs, TRAINING: found.trainings, DOCUMENT: found.matrices, PUBLISHED: found.results}
    for path in paths:
        if not path.is_dir():
            raise UsageError(f"{path}: no folder; expected runs, trainings, matrices, or a folder that holds some")
        before = sum(map(len, kinds.values()))
        for folder, names in _folders(path):
            for name, known in kinds.items():
                if name in names and folder not in known:
                    known.append(folder)
            if sum(map(len, kinds.values())) > MOST:
                raise UsageError(f"{path}: holds more than {MOST} runs, trainings and matrices; name fewer")
        if sum(map(len, kinds.values())) == before and not any(path in known for known in kinds.values()):
            raise UsageError(f"{path}: holds no run ({MANIFEST}), training ({TRAINING}) or matrix ({DOCUMENT})")
    return found


def _folders(path: Path) -> Iterator[tuple[Path, set[str]]]:
    """Folders from `path` down with the names of their files, by name; links are not followed."""
    for folder, inner, names in os.walk(path):
        inner.sort()
        yield Path(folder), set(names)
        if len(Path(folder).relative_to(path).parts) >= _DEEP:
            inner.clear()
