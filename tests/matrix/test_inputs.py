"""Settings that differ in what the network sees: each is evaluated as it was trained."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MATRIX = """
name: seen
houses: {data_root: data, train_houses: 2, val_unseen_houses: 1, train_episodes: 12, val_seen_episodes: 2,
         val_unseen_episodes: 2, rooms_min: 4, rooms_max: 5}
collect:
  R2R: {benchmark: houses-r2r, set: r2r, data_root: data, frame_width: 64, tours: 4}
train: {checkpoint: preset:qwen-vl-tiny, trajectories: data/trajectories, batch: 1, accumulation: 1, steps: 1,
        workers: 0, log_every: 1}
evaluate: {data_root: data, splits: [val_unseen], episodes: 1, envs: 1}
axes:
  inputs:
    - {label: one earlier frame, history: 1, max_pixels: 3136}
    - {label: two earlier frames, history: 2, max_pixels: 6272}
run: {jobs: 1, gpus_per_setting: 0}
"""


@pytest.mark.slow
@pytest.mark.needs("deepspeed")
def test_each_setting_is_evaluated_as_it_was_trained(tmp_path: Path) -> None:
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    command = [sys.executable, "-m", "vlnbench", "matrix", "run", "matrix.yaml"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stderr
    rows = json.loads((tmp_path / "results" / "seen" / "matrix.json").read_text())["rows"]
    trained = {(row["options"]["history"], row["options"]["max_pixels"]) for row in rows}
    manifests = [json.loads(path.read_text()) for path in (tmp_path / "runs").rglob("manifest.json")]
    seen = [each["identity"]["agent_identity"] for each in manifests]
    evaluated = {(each["history"], each["max_pixels"]) for each in seen if each}  # references have none
    assert evaluated == trained == {(1, 3136), (2, 6272)}
