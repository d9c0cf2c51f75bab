"""Faults of served models that are asked over HTTP."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any

from tests.agents.openai.stub import Reply, Stub, says, stub
from tests.faults.registry import fault
from tests.faults.worlds import (
    EPISODES,
    arguments,
    rows,
    run,
    write_world,
)


def _asked(folder: Path, server: Stub, *more: str) -> tuple[int, str]:
    root = write_world(folder / "data") if not (folder / "data").exists() else folder / "data"
    options = ["--agent=openai", f"--base-url={server.url}", "--model=tiny", "--retries=1", "--request-timeout=1"]
    return run(arguments(root, folder / "run", *options, *more, env="tests.faults.envs:Pictured"))


def _stops(_: dict[str, Any]) -> Reply:
    return says("STOP")


@fault(
    "a served model that answers what is no action, no JSON, no choice, or nothing",
    "every episode has a row; the run ends, with exit code 0 or with 1 and one line",
)
def model_talks_nonsense(folder: Path) -> None:
    nonsense: tuple[Reply, ...] = (
        says("I would rather not."),
        says(None),
        says("\ud83d" + 3000 * "x"),
        (200, {"choices": []}),
        (200, {"choices": [{"message": 7}]}),
        (200, []),
        (200, "<html>not JSON"),
        (200, ""),
        (200, "[" * 100_000),
    )
    for number, reply in enumerate(nonsense):
        with stub() as server:
            server.default = _stops  # the question before the run
            server.replies.extend([says("STOP")])
            server.default = lambda body, reply=reply: _copy(reply)
            code, said = _asked(folder / str(number), server, "--max-errors=1.0")
            assert code in (0, 1, 2), said
            made = rows(folder / str(number) / "run")
            assert len(made) == EPISODES or code, f"{reply!r:.60}: exit code {code}, {len(made)} rows: {said}"


def _copy(reply: Reply) -> Reply:
    return copy.deepcopy(reply)


@fault(
    "a served model that answers 429, 500 or 503 to every third request",
    "requests are sent again; every episode is ok",
)
def model_answers_errors(folder: Path) -> None:
    for status in (429, 500, 503):
        counted = iter(range(10**6))

        def answer(body: dict[str, Any], status: int = status, counted: Any = counted) -> Reply:
            failing = next(counted) % 3 == 2
            return (
                (status, {"error": {"message": "busy"}, "headers": {"Retry-After": "0"}})
                if failing
                else says("STOP")
            )

        with stub() as server:
            server.default = answer
            code, said = _asked(folder / str(status), server)
        assert code == 0, said
        assert [row["status"] for row in rows(folder / str(status) / "run")] == ["ok"] * EPISODES


@fault(
    "a served model that hangs from its second answer on, and answers again later",
    "each episode is an error row after the request's timeout; --retry-errors makes the run whole",
)
def model_hangs(folder: Path) -> None:
    with stub() as server:
        server.default = _stops
        gate = threading.Event()

        def answer(body: dict[str, Any]) -> Reply:
            if len(server.requests) > 2 and not gate.is_set():
                server.delay_s = 2.0
            return says("STOP")

        server.default = answer
        code, said = _asked(folder, server, "--turn-timeout=1.5", "--max-errors=1.0", "--max-batch=12")
        assert code in (0, 1), said
        failed = [row for row in rows(folder / "run") if row["status"] != "ok"]
        assert failed, "nothing hung"
        gate.set()
        server.delay_s = 0.0
        code, said = _asked(folder, server, "--turn-timeout=1.5", "--max-errors=1.0", "--retry-errors")
        assert code == 0, said
    assert [row["status"] for row in rows(folder / "run")].count("ok") >= EPISODES
