"""Which languages of RxR a benchmark wants, by code (en-US) or by the first part of it (en)."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from vlnbench.data.bodies import episodes_of
from vlnbench.data.protocol import Benchmark
from vlnbench.data.shipped import BENCHMARKS
from vlnbench.errors import UsageError

LANGUAGE = re.compile(r"[a-z]{2}-[A-Z]{2}")


def is_wanted(language: str, benchmark: Benchmark) -> bool:
    """Whether episodes in a language belong to a benchmark."""
    return not benchmark.languages or not {language, language[:2]}.isdisjoint(benchmark.languages)


def check_languages(benchmark: Benchmark, path: Path, found: Collection[str]) -> None:
    """Raise UsageError for a language without any episode; of a benchmark that ships, unless others have some.

    found: languages of all episodes of the files, of which `path` is the first.
    """
    known = {*found, *(language[:2] for language in found)}
    missing = [language for language in benchmark.languages if language not in known]
    ours = episodes_of(benchmark.name) in BENCHMARKS
    if found and missing and not (ours and len(missing) < len(benchmark.languages)):
        raise UsageError(
            f"{path}: field 'instruction.language': no episode in {', '.join(missing)}, expected by benchmark "
            f"{benchmark.name}; there are {', '.join(sorted(found))}: correct its languages, or get another file"
        )
