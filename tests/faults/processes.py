"""Faults of clocks, simulators and servers."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.faults.registry import ALIKE, fault
from tests.faults.worlds import (
    arguments,
    evaluated,
    finish,
    rows,
    run,
    same,
    start,
    wait_for,
    write_world,
)


@fault("a clock that jumps back an hour every ten readings", f"the run ends well; {ALIKE}; no time is below zero")
def clock_jumps_back(folder: Path) -> None:
    root = write_world(folder / "data")
    command = arguments(root, folder / "run", env="tests.faults.envs:JumpingBack")
    evaluated(*command)
    same(folder / "run")
    assert all(each >= 0 for row in rows(folder / "run") for each in row["seconds"].values())
    code, said = run(["status", str(folder / "run")])
    assert code == 0, said
    assert run(["report", str(folder / "run"), f"--data-root={root}", "--env=tests.faulty:plane"])[0] == 0


@fault(
    "a simulator that is stopped (SIGSTOP) in the middle of an episode",
    "after --episode-timeout its episode is an error row and the run ends; --retry-errors makes it whole, and "
    + ALIKE,
)
def simulator_stopped(folder: Path) -> None:
    root = write_world(folder / "data")
    command = [*arguments(root, folder / "run", "--episode-timeout=3", "--max-errors=0.5")]
    command[command.index("--envs=1")] = "--envs=2"
    code, said = run(command, {"FAULTS": "5=stop"})
    assert code == 0, said
    failed = [row for row in rows(folder / "run") if row["status"] != "ok"]
    assert [row["episode_id"] for row in failed] == ["5"], failed
    assert failed[0]["status"] in ("timeout", "error"), failed
    evaluated(*command, "--retry-errors")
    same(folder / "run")


@fault(
    "a server killed (SIGKILL) under two clients, twice, and served again at the same port",
    "both clients wait and go on; " + ALIKE,
)
def server_killed(folder: Path) -> None:
    root = write_world(folder / "data")
    tokens = {"VLNBENCH_TOKEN": "sesame", "FAULT_DELAY": "0.02"}
    serving, port = _serve(0, tokens)
    clients = [
        start(
            arguments(
                root, folder / f"run-{i}", f"--agent=remote://127.0.0.1:{port}", env="tests.faults.envs:slow"
            ),
            tokens,
        )
        for i in range(2)
    ]
    for number in (1, 4):
        wait_for(
            lambda number=number: all(len(rows(folder / f"run-{i}")) >= number for i in range(2)), "rows of both"
        )
        os.killpg(serving.pid, signal.SIGKILL)
        serving.communicate()
        serving, _ = _serve(port, tokens)
    for client in clients:
        code, said = finish(client)
        assert code == 0, said
    os.killpg(serving.pid, signal.SIGKILL)
    serving.communicate()
    for i in range(2):
        same(folder / f"run-{i}")


def _serve(port: int, environment: Mapping[str, str | None]) -> tuple[Any, int]:
    """A server of the random agent, and its port."""
    process = start(["serve", "--agent=random", f"--port={port}"], environment)
    line = process.stderr.readline().decode()
    assert " at remote://" in line, line + process.stderr.read().decode()
    threading.Thread(target=process.stdout.read, daemon=True).start()
    return process, int(line.split(" at ")[1].split(";")[0].rpartition(":")[2])
