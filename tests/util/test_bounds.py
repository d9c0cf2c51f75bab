from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any

import pytest
from annotated_types import Ge, Interval

from vlnbench.errors import UsageError
from vlnbench.util.bounds import BelowOne, Count, Natural, NotNegative, Positive, Share, check_bounds


@dataclass(frozen=True)
class Options:
    count: Count | None = None
    batch_size: Natural = 0
    rate: Positive = 1.0
    decay: NotNegative = 0.0
    share: Share = 1.0
    warmup: BelowOne = 0.0
    top: Annotated[float, Interval(gt=0, le=1)] = 1.0
    patience: Annotated[float, Ge(0)] = math.inf
    name: str = ""


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("count", 0, "--count 0: expected 1 or more"),
        ("batch_size", -1, "--batch-size -1: expected 0 or more"),
        ("rate", 0.0, "--rate 0.0: expected a number above 0"),
        ("rate", math.inf, "--rate inf: expected a number above 0"),
        ("decay", math.nan, "--decay nan: expected 0 or more"),
        ("share", 1.5, "--share 1.5: expected 0 to 1"),
        ("warmup", 1.0, "--warmup 1.0: expected 0 to below 1"),
        ("top", 0.0, "--top 0.0: expected a number above 0, up to 1"),
        ("patience", math.nan, "--patience nan: expected 0 or more"),
    ],
)
def test_what_lies_beyond_is_one_line(field: str, value: Any, message: str) -> None:
    check_bounds(Options())
    with pytest.raises(UsageError) as error:
        check_bounds(replace(Options(), **{field: value}))
    assert str(error.value) == message


def test_another_default_has_the_same_bounds() -> None:
    @dataclass(frozen=True)
    class Derived(Options):
        count: int | None = 4
        share: Annotated[float, Ge(2)] = 2.0

    check_bounds(Derived())
    with pytest.raises(UsageError, match="--count 0: expected 1 or more"):
        check_bounds(Derived(count=0))


def test_a_field_of_a_file_is_named_as_it_stands_there() -> None:
    with pytest.raises(UsageError, match=r"^f\.yaml: run\.batch_size -1: expected 0 or more$"):
        check_bounds(Options(batch_size=-1), "f.yaml: run.")
