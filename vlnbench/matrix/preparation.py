"""The sections of a matrix file that say what is made before anything is trained: houses and sets of walks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vlnbench.data.generator import get_generator
from vlnbench.errors import UsageError
from vlnbench.matrix.fields import check_known, checked, convert, mapping, types_of
from vlnbench.rollout.agent_names import options_type
from vlnbench.training.collect.options import CollectOptions

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Names of matrices and of folders of sets."""


def collected(options: Any, name: str, section: str) -> dict[str, Any]:
    """Options of `vlnbench collect` for a set, those of its driving agent included. section: file and section."""
    where = f"{section}.{name}"
    if not NAME.fullmatch(name):
        raise UsageError(f"{where}: expected the name of a folder")
    given = mapping(options, where)
    kind = checked(lambda: options_type(str(given.get("agent", CollectOptions.agent))), where)
    driver = types_of(kind) if given.get("dagger") is True else {}
    types = {**driver, **types_of(CollectOptions, without=("out", "agent_options"))}
    check_known(given, types, f"{where}: option")
    made = convert(given, types, where)
    asked = {key: value for key, value in made.items() if key not in driver}
    drives = kind(**{key: value for key, value in made.items() if key in driver})
    checked(lambda: CollectOptions(out=Path(name), **asked, agent_options=drives).check(), where)
    return made


def generated_data(name: str, options: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Options of a generator of data."""
    where, kind = f"{path}: {name}", get_generator(name).options
    types = types_of(kind)
    check_known(options, types, f"{where}: option")
    made = convert(options, types, where)
    checked(lambda: kind(**made).check(), where)
    return made
