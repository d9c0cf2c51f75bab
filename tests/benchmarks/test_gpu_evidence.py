"""The command that asks a GPU: what goes wrong in a case, resuming, the page and the planner's constants."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_evidence import measure as command
from benchmarks.gpu_evidence import pieces, record, runner
from benchmarks.gpu_evidence.fit import fit, measured
from benchmarks.gpu_evidence.pieces import (
    GB,
    MINUTES,
    RECORDED,
    SETTINGS,
    Case,
    Job,
    Piece,
    every,
    first,
)
from vlnbench.errors import UsageError

ROOT = Path(__file__).parents[2]
WAYS = ("works", "lacks", "memory", "breaks", "killed", "hangs")
HERE: dict[str, Any] = {"gpus": [], "packages": {}}


def piece(*ways: str, minutes: float = 0.0) -> Piece:
    return Piece("ways", "", "tests.benchmarks.gpu_cases", tuple(Case(way, minutes, 1) for way in ways))


def session(folder: Path, *ways: str, minutes: float = 1.0) -> tuple[int, dict[str, dict[str, Any]]]:
    """Run the ways once; returns how many are left, and all entries."""
    found = record.Record.open(folder / record.FILE, HERE, toy=True)
    found.begin("abc")
    made = piece(*ways)
    left = runner.run([(made, case) for case in made.cases], found, runner.Session(True, minutes))
    return left, record.read(folder / record.FILE)["pieces"].get("ways", {})


@pytest.mark.slow
def test_what_breaks_in_a_case_is_its_result_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "TOY_S", 15)
    left, found = session(tmp_path, *WAYS)
    assert left == 0
    assert {way: entry["status"] for way, entry in found.items()} == {
        "works": "done",
        "lacks": "skipped",
        "memory": "out of memory",
        "breaks": "failed",
        "killed": "failed",
        "hangs": "timed out",
    }
    assert found["works"]["found"] == {"before": 1, "after": 2}
    assert all(found[way]["found"] == {"before": 1} for way in WAYS[1:])
    assert found["breaks"]["reason"] == "ValueError: first line"
    assert "SIGKILL" in found["killed"]["reason"]
    assert "second line" in (tmp_path / "log.txt").read_text()

    (tmp_path / "log.txt").unlink()
    _, again = session(tmp_path, *WAYS)
    assert [way for way in WAYS if again[way]["session"] == 1] == ["lacks"]  # what is final is not asked again


def test_what_a_case_needs_is_looked_for_before_it_is_begun(tmp_path: Path) -> None:
    gpu = {"gpus": [{"name": "A", "memory_mib": 81_559}], "packages": {}}
    found = record.Record.open(tmp_path / record.FILE, gpu, toy=False)
    found.begin(None)
    large = Case("large", 0.5, 90)
    absent = Case("absent", 0.5, 1, ("json", "no_such_module"))
    made = Piece("ways", "", "tests.benchmarks.gpu_cases", (large, absent))
    assert runner.run([(made, case) for case in made.cases], found, runner.Session(False, 1.0)) == 0
    assert {way: entry["reason"] for way, entry in found.content["pieces"]["ways"].items()} == {
        "large": "takes about 90 GB, the GPU has 86",
        "absent": "not installed: no_such_module",
    }


def test_what_has_no_time_left_waits_for_another_session(tmp_path: Path) -> None:
    left, found = session(tmp_path, "works", minutes=0.1)
    assert (left, found) == (1, {})


@pytest.mark.slow
def test_a_killed_session_leaves_no_process_and_is_resumed(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from tests.benchmarks.test_gpu_evidence import session
session(Path({str(tmp_path)!r}), "works", "hangs")
"""
    began = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    partial = tmp_path / ".ways.hangs.json"
    deadline = time.monotonic() + 120
    while not (partial.exists() and "before" in partial.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    children = Path(f"/proc/{began.pid}/task/{began.pid}/children").read_text().split()
    assert children
    began.kill()
    assert began.wait() == -signal.SIGKILL
    while any(Path(f"/proc/{child}/cmdline").exists() and _runs(child) for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert record.read(tmp_path / record.FILE)["pieces"]["ways"].keys() == {"works"}
    _, found = session(tmp_path, "works", "breaks")
    assert (found["works"]["session"], found["breaks"]["session"]) == (0, 1)


def _runs(process: str) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def test_a_record_goes_on_with_its_own_kind_only(tmp_path: Path) -> None:
    path = tmp_path / record.FILE
    gpu = {"gpus": [{"name": "A", "memory_mib": 81_559}], "packages": {"torch": "2"}}
    record.Record.open(path, gpu, toy=False).begin(None)
    record.Record.open(path, gpu, toy=False)
    with pytest.raises(UsageError, match="is of a GPU; give another folder"):
        record.Record.open(path, gpu, toy=True)
    for changed in ({"gpus": [{"name": "B", "memory_mib": 81_559}]}, {"packages": {"torch": "3"}}):
        with pytest.raises(UsageError, match=f"field 'machine.{next(iter(changed))}'"):
            record.Record.open(path, {**gpu, **changed}, toy=False)
    path.write_text(json.dumps({"format": 2}))
    with pytest.raises(UsageError, match="field 'format': expected 1, found 2"):
        record.read(path)


def test_what_is_asked_takes_twenty_minutes_and_the_rest_comes_after(tmp_path: Path) -> None:
    minutes = [case.minutes for _, case in every()]
    assert sum(minutes) <= 45
    assert max(minutes) < 9
    assert len(SETTINGS) >= 8
    assert GB.keys() == SETTINGS.keys()
    assert sum(case.minutes for _, case in first()) <= MINUTES == 20
    names = [f"{each.name}/{case.name}" for each, case in first()]
    assert sum(name.startswith("training/") for name in names) == 8
    assert {f"parity/{name}" for name in RECORDED} < {*names}

    found = record.Record.open(tmp_path / record.FILE, HERE, toy=True)
    found.begin(None)
    for each, case in first():
        assert command.asked(found) == first()
        found.keep(each.name, case.name, {"status": "skipped"})
    assert command.asked(found) == every()


def test_what_is_wrong_in_a_record_is_said() -> None:
    right, other = {"same": 4, "tokens": 4}, {"same": 3, "tokens": 4}
    parity = {
        "a": {"status": "done", "found": {"float32": right, "bfloat16": other}},
        "agents": {"status": "done", "found": {"x, float32": other, "y, float32": {"same": 0, "tokens": 0}}},
    }
    failed = {"b": {"status": "failed"}, "c": {"status": "skipped"}, "d": {"status": "out of memory"}}
    assert record.wrong({"pieces": {"parity": parity, "training": failed}}) == [
        "training/b failed",
        "parity/agents, x, float32: 3 of 4 answers as recorded",
        "parity/agents, y, float32: 0 of 0 answers as recorded",
    ]


@pytest.mark.slow
def test_what_doctor_asks_is_recorded_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "FIRST", ("parity/streamvln-tiny",))
    command.measure(tmp_path / "out", toy=True)
    assert record.read(tmp_path / "out" / record.FILE)["pieces"]["parity"]["streamvln-tiny"]["status"] == "done"
    page = (tmp_path / "out" / command.PAGE).read_text()
    assert "| streamvln-tiny | float32 |" in page
    assert "| janusvln | not measured |" in page
    assert "torch " in page


GIGA = 10**9


def settings_record(count: int = 5) -> dict[str, Any]:
    """A record whose settings took 0.5 GB of context and 6 % of fragmentation, the last one 1 GB more."""
    cases = {}
    for number, name in enumerate(list(SETTINGS)[:count]):
        static, changing = 16 * GIGA, (number + 1) * 2 * GIGA
        allocated = static + changing
        reserved = allocated + round(0.06 * changing) + (GIGA if number == count - 1 else 0)
        usage = dict.fromkeys(("states", "gradients", "logits", "buffers", "temporaries"), 0)
        planned = {
            "usage": {"weights": static, "activations": changing, **usage},
            "allocated": allocated,
            "static": static,
            "changing": changing,
            "moment": "backward",
            "peak": allocated + GIGA,
            "low": allocated,
            "high": allocated + 2 * GIGA,
            "context": 700_000_000,
            "fragmentation": 300_000_000,
        }
        taken = {"allocated": allocated, "reserved": reserved, "context": 500_000_000, "device": None}
        found = {"planned": planned, "measured": {**taken, "ms_per_step": [1234.5]}}
        cases[name] = {"status": "done", "found": found, "session": 0}
    machine = {"gpus": [{"name": "Card", "memory_mib": 143_771}], "driver": "580", "cuda": "13.0", "cpu": "X"}
    machine |= {"cores": 16, "host_gb": 128.0, "python": "3.12", "packages": {"torch": "2.11"}}
    begun = {"began": "2026-12-01T00:00:00Z", "commit": "0123456789abcdef"}
    return {"format": 1, "toy": False, "machine": machine, "sessions": [begun], "pieces": {"training": cases}}


def plans_of(content: dict[str, Any]) -> dict[str, Any]:
    cases = content["pieces"]["training"]
    return {name: case["found"]["planned"] for name, case in cases.items() if "found" in case}


def test_how_far_plans_lie_is_said_of_most_and_of_the_worst() -> None:
    content = settings_record()
    found = fit(measured(content, plans_of(content)))
    assert (found.context, found.settings) == (500_000_000, 5)
    # 1.3 GB more than allocated, where 6 % of 2 to 10 GB were reserved, and 1 GB more in the last one
    assert found.held == (940_000_000, 1_180_000_000)
    few = settings_record(3)
    with pytest.raises(UsageError, match="3 settings were measured on a GPU; expected at least 4"):
        fit(measured(few, plans_of(few)))


@pytest.mark.slow
def test_a_page_of_a_record_shows_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.gpu_evidence import page

    content = settings_record(len(SETTINGS))
    content["pieces"]["turns"] = {"sdpa": {"status": "out of memory", "found": turns_found()}}
    content["pieces"]["training"]["tower"] = {"status": "skipped", "reason": "not installed: deepspeed"}
    plan = content["pieces"]["training"]["projector"]["found"]["planned"]
    monkeypatch.setattr(page, "plan", lambda options: options)
    monkeypatch.setattr(page, "shown", lambda planned: plan)
    page.write(content, tmp_path / "gpu.md", tmp_path / "pictures")
    text = (tmp_path / "gpu.md").read_text()
    assert "| GPU | Card (150.8 GB) |" in text
    assert "| projector | 18.0 | 18.0 | +0.0 % | 19.0 (18.0 to 20.0) | 18.6 | 1,234 |" in text
    assert "| tower | 18.0 | skipped | not measured |" in text
    assert "| sdpa | 2 | out of memory |" in text
    assert "| training/tower | skipped | not installed: deepspeed |" in text
    assert {path.name for path in (tmp_path / "pictures").iterdir()} == {"gpu_training.png", "gpu_turns.png"}


def turns_found() -> dict[str, Any]:
    way = {"ms_per_turn": 250.0, "episodes_per_hour": 960.0, "tokens_per_s": 900.0}
    row = {"episodes": 1, "no_guess": way, "guess_right": way, "planned": GIGA, "allocated": 2 * GIGA}
    return {"rows": [row, {"episodes": 2, "out_of_memory": True}]}


@pytest.mark.slow
def test_the_committed_page_is_what_the_module_makes(tmp_path: Path) -> None:
    """Of the committed record; plans also are what the pieces say that they need."""
    from benchmarks.gpu_evidence import page

    for name, planned in (plans := page.planned()).items():
        assert GB[name] == pytest.approx(planned["peak"] / 1e9, abs=0.6), name
    found = record.read(ROOT / "results" / "gpu" / "nvidia_h200.json")
    committed = page.PAGE.read_text(encoding="utf-8")
    assert committed == page.text(found, plans, {"training": "gpu_training.png"})


@pytest.mark.gpu
@pytest.mark.parametrize("case", [*RECORDED, "agents"])
def test_logits_on_a_gpu_are_those_of_the_recordings(case: str, tmp_path: Path) -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    check_parity(case, Job(case, toy=False, out=tmp_path / "found.json"))


@pytest.mark.slow
@pytest.mark.parametrize("case", [*RECORDED, "agents"])
def test_logits_on_the_cpu_are_those_of_the_recordings(case: str, tmp_path: Path) -> None:
    check_parity(case, Job(case, toy=True, out=tmp_path / "found.json"))


def check_parity(case: str, job: Job) -> None:
    """Every token in float32; bfloat16 has eight bits, and blocks add to one another's errors."""
    import torch

    from agents.common.decoders import generate as decode
    from benchmarks.gpu_evidence import parity
    from benchmarks.gpu_evidence.pieces import CannotRunError

    before = decode.DRAFT, torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        found = parity.run(job)
    except CannotRunError as reason:
        pytest.skip(str(reason))
    finally:
        decode.DRAFT = before[0]
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before[1:]
    assert not record.wrong({"pieces": {"parity": {case: {"status": "done", "found": found}}}})
    if case == "agents":
        return
    assert found["float32"]["relative"] < 1e-4
    if case != "vlnce":
        assert found["bfloat16"]["relative"] < 0.1


@pytest.mark.long
@pytest.mark.slow
def test_every_piece_runs_at_toy_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but most training settings; parity at toy size has a test of its own."""
    settings = [f"training/{name}" for name in ("adapters", "projector-offloaded", "all-adafactor")]
    asked = (*settings, *(each.name for each in pieces.PIECES if each.name not in ("training", "parity")))
    monkeypatch.setattr(pieces, "FIRST", asked)
    monkeypatch.setattr(command, "MINUTES", 40)
    command.measure(tmp_path / "out", toy=True)
    log = (tmp_path / "out" / "log.txt").read_text()
    content = record.read(tmp_path / "out" / record.FILE)
    for each, case in first():
        entry = content["pieces"][each.name][case.name]
        lacking = entry["status"] == "skipped" and entry["reason"].startswith(
            ("not installed", "CUDA graphs need a GPU")
        )
        assert lacking or entry["status"] == "done", (each.name, case.name, entry, log[-5000:])
    for name in settings:
        taken = content["pieces"]["training"][name.partition("/")[2]]["found"]
        assert taken["measured"]["allocated"] == pytest.approx(taken["planned"]["allocated"], rel=0.02)
    ways = content["pieces"]["episodes"]["houses"]["found"]["ways"].values()
    assert len({way["steps"] for way in ways}) == 1  # the same episodes, whoever runs them
    assert content["pieces"]["small"]["streamvln-tiny"]["found"]["differences"] == {"CPU, float32": 0.0}
