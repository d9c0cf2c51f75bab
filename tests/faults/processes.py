"""Faults of clocks, simulators and servers."""

from __future__ import annotations

import os
import re
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

KEEPS_TIME = f"the run ends well; {ALIKE}; no time is below zero"


@fault("a clock that jumps back an hour every ten readings", KEEPS_TIME)
def clock_jumps_back(folder: Path) -> None:
    _jumps(folder, "-3600")


@fault("a clock that jumps ahead a day every ten readings", KEEPS_TIME)
def clock_jumps_ahead(folder: Path) -> None:
    _jumps(folder, "86400")


@fault("a clock that jumps a year back or ahead when a run is killed, twice", KEEPS_TIME + "; status speaks of it")
def clock_set_between(folder: Path) -> None:
    root, environment = write_world(folder / "data"), {"FAULT_DELAY": "0.02"}
    for years in (1, -1):
        out = folder / f"run{years}"
        command = arguments(root, out, env="tests.faults.envs:slow")
        first = start(command, environment)
        wait_for(lambda out=out, first=first: rows(out) or first.poll() is not None, "rows")  # type: ignore[misc]
        os.killpg(first.pid, signal.SIGKILL)
        first.communicate()
        for path in [out, *out.iterdir()]:  # as written by that clock
            os.utime(path, (path.stat().st_mtime + years * 3.2e7,) * 2)
        attempts = out / "attempts.jsonl"
        text = attempts.read_text()
        (year,) = re.findall(r'(?<="began":")\d{4}', text)
        attempts.write_text(text.replace(f'"began":"{year}', f'"began":"{int(year) + years}'))
        for more in (["status", str(out)], command, ["status", str(out)]):
            code, said = run(more, environment)
            assert code == 0, said
        same(out, "tests.faults.envs:slow")
        _sound(root, out)


def _jumps(folder: Path, seconds: str) -> None:
    root = write_world(folder / "data")
    evaluated(
        *arguments(root, folder / "run", env="tests.faults.envs:Jumping"), environment={"FAULT_JUMP": seconds}
    )
    same(folder / "run")
    _sound(root, folder / "run")


def _sound(root: Path, out: Path) -> None:
    assert all(each >= 0 for row in rows(out) for each in row["seconds"].values())
    code, said = run(["status", str(out)])
    assert code == 0, said
    assert run(["report", str(out), f"--data-root={root}", "--env=tests.faulty:plane"])[0] == 0


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
