from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents.streamvln.options import StreamVLNTraining
from tests.matrix.conftest import FAKE, PARTS, Write
from vlnbench.data.benchmarks import BENCHMARKS
from vlnbench.errors import RunError, UsageError
from vlnbench.matrix.execution import Execution
from vlnbench.matrix.fields import digest
from vlnbench.matrix.rows import document, windows_per_s
from vlnbench.matrix.runner import check_none_crashed, find_places, format_counts, run_matrix
from vlnbench.matrix.spec import read_matrix
from vlnbench.matrix.work.folder import check_work, open_work
from vlnbench.matrix.work.stages import stages_of
from vlnbench.matrix.work.watcher import attempts
from vlnbench.util import machine

pytestmark = pytest.mark.slow  # trains and evaluates

ROOT = Path(__file__).parents[2]
WORK, RESULTS = Path("work"), Path("results")
TRAIN = {"checkpoint": "preset:streamvln-tiny", "trajectories": "sets", "steps": 4}

RUN = f"""
import sys
from pathlib import Path
from tests.matrix.conftest import FAKE, plan_all
from vlnbench.matrix import runner
from vlnbench.matrix.work import stages
from vlnbench.util import machine
from vlnbench.matrix.spec import read_matrix
stages.PROGRAM, machine.gpus, runner.plan_matrix = (FAKE,), list, plan_all
runner.run_matrix(read_matrix(Path(sys.argv[1])), Path({str(WORK)!r}), Path({str(RESULTS)!r}))
"""


def run(path: Path, **options: Any) -> dict[str, Any]:
    return run_matrix(read_matrix(path), WORK, RESULTS, **options)


def behave(monkeypatch: pytest.MonkeyPatch, **behaviors: str) -> None:
    monkeypatch.setenv("FAKE", json.dumps(behaviors))


def calls() -> list[str]:
    return Path("calls.txt").read_text().splitlines()


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.usefixtures("faked")
def test_settings_are_trained_evaluated_and_kept(write: Write) -> None:
    path = write(axes={"tunable_parts": [[PARTS[0]]], "evaluate.repeats": [1, 2]}, run={"jobs": 2})
    found = run(path)
    assert [row["status"] for row in found["rows"]] == ["done", "done"]
    assert sorted(calls()) == ["eval val_seen"] * 2 + ["eval val_unseen"] * 2 + [f"train {PARTS[0]}"]
    row = found["rows"][0]
    assert row["trainable_parameters"] == 100
    assert row["data"]["R2R"]["instructions"] == 9
    assert (row["steps"], row["steps_done"], row["windows_per_s"]) == (4, 4, 4.0)
    assert row["vram"] == {
        "planned": 2 * 10**9,
        "planned_low": 10**9,
        "planned_high": 3 * 10**9,
        "planned_for": "1x80GB",
        "fits": None,
        **dict.fromkeys(("allocated", "reserved", "device", "card", "capacity", "gpu")),
        "phases": {},
    }
    assert row["host"] > 0  # sampled: of a command that ends at once, hardly anything
    assert row["machine"]["packages"]["torch"]
    assert row["results"]["val_seen"]["metrics"]["SR"]["low"] is not None
    assert row["seconds"]["train"] > 0
    hours, cores = row["device_hours"], row["machine"]["cores"]
    assert hours["unit"] == "CPU-h"  # two settings at a time share the cores
    assert hours["train"] == pytest.approx(row["seconds"]["train"] * cores / 2 / 3600, abs=1e-5)
    assert hours["val_seen"] > 0
    assert row["results"]["val_seen"]["hours"]["agent"] is None  # the pretended rows do not tell it
    assert json.loads((RESULTS / "matrix.json").read_text()) == found
    again = run(path)
    assert again == found
    assert len(calls()) == 5


@pytest.mark.usefixtures("faked")
def test_processes_that_hang_are_no_crash(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    behave(monkeypatch, **{PARTS[0]: "stuck"})
    stuck = run(write())["rows"][0]
    assert (stuck["status"], stuck["exit_code"], stuck["reason"]) == ("timeout", 1, "train: no progress")


@pytest.mark.usefixtures("faked")
def test_failures_are_rows_until_they_are_tried_again(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    behave(monkeypatch, **{PARTS[0]: "oom", PARTS[1]: "crash", PARTS[2]: "hang"})
    path = write(run={"train_timeout_s": 3})
    oom, crash, hang = run(path)["rows"]
    assert (oom["status"], oom["exit_code"], oom["reason"]) == ("oom", 3, "train: out of GPU memory")
    assert (oom["vram"]["allocated"], oom["vram"]["reserved"]) == (79 * 10**9, 80 * 10**9)
    assert oom["trainable_parameters"] == 100
    assert (crash["status"], crash["exit_code"], crash["reason"]) == ("crash", 7, "train: exit code 7")
    assert crash["tail"] == [f"line {i}" for i in range(50, 100)]
    assert (hang["status"], hang["reason"]) == ("timeout", "train: not done after 3 s")
    assert (hang["steps_done"], hang["windows_per_s"]) == (2, 4.0)
    for row in (oom, crash, hang):
        assert row["results"] == {"val_seen": None, "val_unseen": None}
        assert row["log"] in format_counts(run(path))
    assert len(calls()) == 3  # failed settings are kept
    monkeypatch.delenv("FAKE")
    found = run(path, retry=True)
    assert [row["status"] for row in found["rows"]] == ["done"] * 3
    assert found["rows"][2]["steps_done"] == 4
    assert found["rows"][2]["seconds"]["train"] > 3  # both attempts


@pytest.mark.usefixtures("faked")
def test_what_does_not_fit_is_marked_and_skipped_where_asked(write: Write) -> None:
    path = write(run={"gpu": "24GB", "unfit": "skip"})
    assert [row["status"] for row in run(path)["rows"]] == ["skipped", "done", "done"]
    path = write(run={"gpu": "24GB"})
    rows = run(path)["rows"]
    assert [(row["status"], row["vram"]["fits"]) for row in rows] == [
        ("done", "no"),
        ("done", "yes"),
        ("done", "yes"),
    ]


@pytest.mark.usefixtures("faked")
@pytest.mark.parametrize(
    "end",
    [signal.SIGKILL, *(pytest.param(end, marks=pytest.mark.slow) for end in (signal.SIGTERM, signal.SIGINT))],
)
def test_ended_at_any_moment_it_goes_on_where_it_was(
    write: Write, monkeypatch: pytest.MonkeyPatch, end: signal.Signals
) -> None:
    """The second training is at work; the first one is finished and must not be done again."""
    behave(monkeypatch, **{PARTS[1]: "hang"})
    path = write()
    matrix = read_matrix(path)
    stage = stages_of(matrix, WORK, matrix.settings[1]).train
    # As the command line handles SIGTERM; a job that a shell starts in the background ignores SIGINT.
    names = ("SIGTERM", "SIGINT")
    handlers = [f"signal.signal(signal.{name}, signal.default_int_handler)" for name in names]
    code = "\n".join(["import signal", *handlers, RUN])
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
    )
    state = stage.folder / "run" / "state"
    try:
        wait_for(lambda: state.exists() and state.read_text() == "2")
        shown = document(read_matrix(path), WORK)["rows"]
        assert [row["status"] for row in shown] == ["done", "running", "pending"]
        process.send_signal(end)
        process.wait(300)
    finally:
        process.kill()
    wait_for(lambda: bool(attempts(stage.folder)))  # its watcher outlives a runner that was killed, by a moment
    with pytest.raises(ProcessLookupError):
        os.kill(int((stage.folder / "run" / "pid").read_text()), 0)
    assert [attempt["outcome"] for attempt in attempts(stage.folder)] == ["interrupted"]
    shown = document(read_matrix(path), WORK)["rows"]
    assert [row["status"] for row in shown] == ["done", "unfinished", "pending"]
    Path("go on").touch()
    found = run(path)
    assert [row["status"] for row in found["rows"]] == ["done"] * 3
    assert found["rows"][1]["steps_done"] == 4
    assert [calls().count(f"train {part}") for part in PARTS] == [1, 2, 1]
    logged = [
        json.loads(line)["step"] for line in (stage.folder / "run" / "train_log.jsonl").read_text().splitlines()
    ]
    assert logged == [1, 2, 3, 4]  # resumed, not begun again


@pytest.mark.usefixtures("faked")
def test_a_changed_file_is_refused_and_nothing_is_lost(write: Write) -> None:
    run(write(axes={"tunable_parts": [[PARTS[0]], [PARTS[1]]]}))
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file() and path.suffix != ".yaml"}
    changed = write(axes={"tunable_parts": [[PARTS[0]], [PARTS[2]]]})
    with pytest.raises(UsageError, match=r"work was begun \('mm_mlp_adapter' is gone or another\)"):
        run(changed)
    axes = {"tunable_parts": [[PARTS[0]], [PARTS[1]]]}
    with pytest.raises(UsageError, match=r"'mm_vision_tower' is gone or another"):
        run(write(axes=axes, evaluate={"episodes": 3}))
    with pytest.raises(UsageError, match=r"begun \(what is generated or collected\)"):
        run(write(axes=axes, collect={"EnvDrop": {"set": "envdrop"}}))
    with pytest.raises(UsageError, match=r"begun \(looks, which are said beforehand\)"):
        run(write(axes={**axes, "seed": [0]}, looks=[1]))
    after = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file() and path.suffix != ".yaml"}
    assert after == before
    other = Path("other")
    other.mkdir()
    (other / "mine").touch()
    with pytest.raises(UsageError, match="not empty and not the folder of a matrix"):
        run_matrix(read_matrix(changed), other, RESULTS)


@pytest.mark.usefixtures("faked")
def test_a_file_that_grows_keeps_what_is_done(write: Write) -> None:
    run(write(axes={"tunable_parts": [[PARTS[0]], [PARTS[1]]]}))
    axes = {"tunable_parts": [[PARTS[0]], [PARTS[1]]], "seed": [0, 1]}
    found = run(write(axes=axes, keep=[{"seed": "seed=0"}, {"tunable_parts": PARTS[1]}]))
    names = ["mm_vision_tower, seed=0", "mm_mlp_adapter, seed=0", "mm_mlp_adapter, seed=1"]
    assert [(row["name"], row["status"]) for row in found["rows"]] == [(name, "done") for name in names]
    assert [calls().count(f"train {part}") for part in PARTS] == [1, 2, 0]


@pytest.mark.usefixtures("faked")
def test_settings_at_a_time_share_the_cores(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cores", lambda: 7)
    run(write(collect={"More": {}}, axes={"tunable_parts": [[PARTS[0]], [PARTS[1]]]}, run={"jobs": 2}))
    logs = {path.parts[1]: (path.parent / "log.txt").read_text() for path in WORK.glob("*/*/log.txt")}
    assert {stage: text.split(": ")[1].split()[0] for stage, text in logs.items() if "share" in text} == {
        "prepare": "all",
        "train": "3",
        "eval": "3",
    }
    only = write(name="one", axes={"tunable_parts": [[PARTS[0]]]}, run={"jobs": 2})
    run_matrix(read_matrix(only), Path("one"), Path("of-one"))
    assert "share of the cores: 7\n" in next(Path("one").glob("train/*/log.txt")).read_text()


@pytest.mark.usefixtures("faked")
def test_results_of_other_work_are_kept(write: Write) -> None:
    path = write(axes={"tunable_parts": [[PARTS[0]]]})
    run(path)
    before = (RESULTS / "matrix.json").read_bytes()
    with pytest.raises(UsageError, match="results: holds the results of other work than elsewhere"):
        run_matrix(read_matrix(path), Path("elsewhere"), RESULTS)
    assert (RESULTS / "matrix.json").read_bytes() == before
    assert not Path("elsewhere").exists()


def test_gpus_are_divided_among_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(machine, "gpus", lambda: [machine.Gpu("A", 81_559)] * 5)
    places = find_places(Execution(gpus_per_setting=2), ())
    assert (places.slots, places.gpu) == ([("0", "1"), ("2", "3")], "79.6GiB")
    assert find_places(Execution(), ("3", "1")).slots == [("3",), ("1",)]
    assert find_places(Execution(gpus_per_setting=0, jobs=2), ()).slots == [(), ()]
    assert find_places(Execution(gpu="24GB"), ()).gpu == "24GB"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")
    assert find_places(Execution(), ()).slots == [("4",)]
    with pytest.raises(UsageError, match="expected at most 1"):
        find_places(Execution(gpus_per_setting=2), ())
    monkeypatch.setattr(machine, "gpus", list)
    assert find_places(Execution(gpus_per_setting=2, jobs=3), ()).slots == [(), (), ()]
    with pytest.raises(UsageError, match="shows no GPU"):
        find_places(Execution(), ("0",))


def test_work_of_an_older_protocol_is_refused(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = read_matrix(write(references=[]))
    with open_work(matrix, WORK):
        pass
    check_work(matrix, WORK)
    before = (WORK / "matrix.json").read_bytes()
    name = matrix.settings[0].evaluate["benchmark"]
    for newer in ({"version": 2}, {"generator": "houses2"}):
        with monkeypatch.context() as patched:
            patched.setitem(BENCHMARKS, name, replace(BENCHMARKS[name], **newer))
            with pytest.raises(UsageError, match=f"the protocol of {name} is another") as error:
                check_work(matrix, WORK)
            assert "\n" not in str(error.value)
    assert (WORK / "matrix.json").read_bytes() == before


@pytest.mark.usefixtures("faked")
@pytest.mark.parametrize(("found", "given"), [(1, {}), (2, {}), (2, {"frames": 32})])
def test_work_that_was_hashed_otherwise_is_found(write: Write, found: int, given: dict[str, Any]) -> None:
    """What was done is not done again; a setting that has changed since is refused."""
    path = write(references=[], train=TRAIN | given)
    matrix = read_matrix(path)
    whole = run_matrix(matrix, WORK, RESULTS)
    manifest = json.loads((WORK / "matrix.json").read_text()) | {"format": found}
    for number, (setting, entry) in enumerate(zip(matrix.settings, manifest["settings"], strict=True)):
        trained = f"{number:012x}"
        (WORK / "train" / setting.train_key).rename(WORK / "train" / trained)
        entry["key"] = digest([trained, setting.evaluate])
        entry["options"] |= StreamVLNTraining.BEFORE
        for split in setting.evaluate["splits"]:
            before = digest([trained, {**setting.evaluate, "splits": [split]}])
            (WORK / "eval" / setting.eval_key(split)).rename(WORK / "eval" / before)
    (WORK / "matrix.json").write_text(json.dumps(manifest))
    with pytest.raises(UsageError, match="is gone or another"):
        check_work(
            read_matrix(
                write(
                    references=[],
                    train=TRAIN | given | {"steps": 5},
                )
            ),
            WORK,
        )
    with pytest.raises(UsageError, match="is gone or another"):
        check_work(read_matrix(write(references=[], train=TRAIN | given, evaluate={"episodes": 9})), WORK)
    Path("calls.txt").unlink()
    again = run_matrix(matrix, WORK, RESULTS)
    assert not Path("calls.txt").exists()
    assert [row["results"] for row in again["rows"]] == [row["results"] for row in whole["rows"]]
    assert run_matrix(matrix, WORK, RESULTS) == again


def test_several_gpus_take_a_launcher(write: Write) -> None:
    matrix = read_matrix(write())
    setting = matrix.settings[0]
    command = stages_of(matrix, WORK, setting, gpus=4).train.command
    assert command[1:5] == ("-m", "torch.distributed.run", "--nproc-per-node=4", "--standalone")
    assert stages_of(matrix, WORK, setting, gpus=1).train.command[1:4] == ("-m", "vlnbench", "train")
    assert FAKE not in command


def test_the_rate_of_a_resumed_training_counts_every_step_once() -> None:
    log = [{"step": step, "windows_per_s": rate} for step, rate in ((2, 4.0), (4, 1.0), (4, 2.0), (5, 2.0))]
    assert windows_per_s(log, 8) == pytest.approx(40 / (16 / 4 + 16 / 2 + 8 / 2))
    assert windows_per_s([], 8) is None


def test_a_crash_is_told_at_the_end_and_a_small_gpu_is_a_result() -> None:
    rows = [{"name": name, "status": status} for name, status in (("a", "done"), ("b", "oom"), ("c", "timeout"))]
    check_none_crashed({"rows": rows})
    crashed = [{"name": name, "status": "crash"} for name in ("d", "e")]
    with pytest.raises(RunError, match=r"2 of 5 settings crashed, d, e: .*`vlnbench matrix retry`"):
        check_none_crashed({"references": crashed[:1], "rows": [*rows, crashed[1]]})
