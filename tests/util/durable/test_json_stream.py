"""Lists and JSON lines, an element at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vlnbench.errors import UsageError
from vlnbench.util.durable import json_stream
from vlnbench.util.durable.json_stream import elements

records = st.lists(
    st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=9) | st.none(), max_size=3)
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records, st.sampled_from([1, 7, 1 << 20]), st.sampled_from(["", "\n", "\n\n  "]))
def test_lists_and_lines_hold_the_same(tmp_path: Path, found: list[Any], size: int, end: str) -> None:
    path, texts = tmp_path / "records.json", [json.dumps(each, ensure_ascii=False) for each in found]
    with patch.object(json_stream, "CHUNK", size):
        for text in (f"[{' , '.join(texts)}]{end}", "\n".join(texts) + end):
            path.write_text(text, encoding="utf-8")
            assert list(elements(path)) == found


@pytest.mark.parametrize("text", ['[{"a": 1}, ', '[{"a": 1}', '{"a": 1}\n{"a"', "[1] 2", "nothing", "[1 2]"])
def test_what_is_cut_off_or_damaged_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "records.json").write_text(text)
    with pytest.raises(UsageError, match=r"records\.json: not a readable"):
        list(elements(tmp_path / "records.json"))
