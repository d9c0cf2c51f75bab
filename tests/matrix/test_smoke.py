"""The smoke matrix whole, as a user runs it: houses, trajectories, training, evaluation, tables and plots."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMOKE = ROOT / "results" / "matrices" / "smoke.yaml"


@pytest.mark.long
@pytest.mark.slow
def test_the_smoke_matrix_runs_whole(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "vlnbench", "matrix", "run", str(SMOKE)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    for _ in range(2):
        result = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1800
        )
        assert result.returncode == 0, result.stderr
        assert "smoke: 4 done" in result.stdout
    assert "train" not in result.stderr  # the second time there is nothing to do
    found = json.loads((tmp_path / "results" / "smoke" / "matrix.json").read_text())
    assert [each["results"]["val_unseen"]["metrics"]["SR"]["mean"] for each in found["references"]][1] == 1.0
    rows = found["rows"]
    for row in rows:
        assert row["trainable"]["mm_mlp_adapter"] > 0
        assert (row["trainable"]["mm_language_model"] > 0) == row["name"].startswith("all parts")
        assert set(row["data"]) == ({"R2R", "EnvDrop"} if "EnvDrop" in row["name"] else {"R2R"})
        assert (row["steps"], row["steps_done"]) == (2, 2)
        assert row["windows_per_s"] > 0
        assert row["host"] > 10**8
        assert row["vram"]["planned"] > 10**8
        for split in ("val_seen", "val_unseen"):
            assert row["results"][split]["episodes"] == 2
            assert 0 <= row["results"][split]["metrics"]["SR"]["mean"] <= 1
    assert [each["name"] for each in found["contrasts"]] == ["more than the projector"]
    assert "more than the projector" in (tmp_path / "results" / "smoke" / "effects.csv").read_text()
    names = {path.name for path in (tmp_path / "results" / "smoke").iterdir()}
    assert {"matrix.csv", "matrix.md", "sr_vs_vram.png", "sr_vs_vram.svg", "effects.png"} <= names
