"""Checkpoints of NaVILA, read as an agent does."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from tests.fuzz.judge import Builder
from tests.fuzz.kinds import checkpoints

read = checkpoints.read
write = partial(checkpoints.write_one, "navila")
corpus: Mapping[str, tuple[Builder, str]] = {"honest": checkpoints.honestly("navila")}
