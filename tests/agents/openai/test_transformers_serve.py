"""The agent against a real server: `transformers serve` with a tiny vision-language model of random weights."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agents.openai.agent import OpenAIAgent
from agents.openai.options import OpenAIOptions
from tests.fakes import make_set
from tests.faulty import PictureEnv
from vlnbench.data.benchmarks import get_benchmark
from vlnbench.errors import UsageError
from vlnbench.evaluation.evaluate import evaluate, make_plan
from vlnbench.evaluation.records import read_rows
from vlnbench.rollout.inline import Inline

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("fastapi", "uvicorn", "openai")),
        reason="transformers serve needs fastapi, uvicorn and openai",
    ),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """URL and name of the model."""
    folder = tmp_path_factory.mktemp("tiny")
    subprocess.run([sys.executable, "-m", "tests.agents.openai.tiny_vlm", str(folder)], check=True, timeout=600)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(folder)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    log = (folder / "log").open("w")
    process = subprocess.Popen(command, env={**os.environ, "HF_HUB_OFFLINE": "1"}, stdout=log, stderr=log)
    try:
        for _ in range(6000):
            assert process.poll() is None, (folder / "log").read_text()
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/v1", str(folder)
    finally:
        process.terminate()
        process.wait(120)
        log.close()


def test_a_run_asks_records_and_repeats_itself(served: tuple[str, str], tmp_path: Path) -> None:
    """Random weights answer nothing that can be read: every episode stops, every token is counted."""
    planned = make_plan(get_benchmark("houses-r2r"), make_set("set", 3), "openai", count=None, seed=0, repeats=1)
    for name in ("first", "second"):
        options = OpenAIOptions(base_url=served[0], model=served[1], retries=1, max_answer_tokens=8)
        evaluate(planned, Inline(OpenAIAgent(options), PictureEnv()), tmp_path / name)
    rows = [[replace(row, seconds={}) for row in read_rows(tmp_path / name)] for name in ("first", "second")]
    assert rows[0] == rows[1]
    for row in rows[0]:
        assert row.status == "ok"
        assert row.report["requests"] == row.report["unreadable_answers"] == 2
        assert 0 < row.report["completion_tokens"] <= 16
        assert row.report["prompt_tokens"] > 500


def test_another_model_is_refused_by_its_server(served: tuple[str, str]) -> None:
    with pytest.raises(UsageError, match=r"nobody answers|check --base-url and --model"):
        OpenAIAgent(OpenAIOptions(base_url=served[0], model="another", retries=0))
