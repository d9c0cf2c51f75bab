from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.runs import make_identity
from vlnbench.errors import UsageError
from vlnbench.evaluation import records
from vlnbench.matrix.spec import read_matrix
from vlnbench.matrix.work import folder as work
from vlnbench.training.collect import collect, questions
from vlnbench.training.options import TrainOptions, plain
from vlnbench.training.run import folder as run_folder
from vlnbench.util.durable import files, locks
from vlnbench.util.durable.files import remove_leftovers, write_bytes, write_json
from vlnbench.util.durable.folder import Kind, appearing, find_manifest, inner, open_folder
from vlnbench.util.durable.locks import LOCK, locked
from vlnbench.util.durable.owners import InUseError

KIND = Kind("thing", "thing.json")
KINDS = [records.KIND, run_folder.KIND, collect.KIND, questions.KIND, work.KIND]
ROOT = Path(__file__).parents[3]

KILLED = """
import fcntl, os, signal, sys
from pathlib import Path
from vlnbench.util.durable.folder import Kind, open_folder

def refuse(file, how):
    raise OSError(37, "No locks available")

if sys.argv[3] == "cannot lock":
    fcntl.flock = refuse
os.replace = lambda *paths, **where: os.kill(os.getpid(), signal.SIGKILL)
with open_folder(Path(sys.argv[1]), Kind("thing", sys.argv[2]), {"a": 1}):
    pass
"""


def names(folder: Path) -> list[str]:
    """What is in a folder beside its lock."""
    return sorted(path.name for path in folder.iterdir() if path.name != LOCK)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.noun)
@pytest.mark.parametrize("where", ["locks", "cannot lock"])
def test_a_kill_before_the_first_rename_does_not_stop_the_same_command(
    tmp_path: Path, kind: Kind, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "cannot lock":
        monkeypatch.setattr(locks, "_SETTLE_S", 0.05)
        monkeypatch.setattr(locks, "flock", lambda *_: False)
        monkeypatch.setattr(files, "flock", lambda *_: False)
    folder = tmp_path / "new" / "folder"
    command = [sys.executable, "-c", KILLED, str(folder), kind.manifest, where]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run(command, env=env).returncode == -signal.SIGKILL
    [left] = names(folder)
    assert left.startswith(f".{kind.manifest}.")
    assert find_manifest(folder, kind) is None
    with open_folder(folder, kind, {"a": 1}):
        assert names(folder) == [kind.manifest]
    assert find_manifest(folder, kind) == {"a": 1}


def test_leftovers_of_every_file_go_when_a_folder_is_taken_up_again(tmp_path: Path) -> None:
    with open_folder(tmp_path, KIND, {"a": 1}):
        pass
    for name in (".summary.json.12", ".plans.json.99999", ".notes.12", ".summary.json.12x", "mine.json.3"):
        (tmp_path / name).write_text("half")
    with open_folder(tmp_path, KIND, {"a": 1}):
        assert names(tmp_path) == [".notes.12", ".summary.json.12x", "mine.json.3", "thing.json"]


def test_what_is_being_written_is_no_leftover(tmp_path: Path) -> None:
    (tmp_path / ".a.json.12").touch()
    with (tmp_path / ".a.json.12").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        remove_leftovers(tmp_path)
        write_bytes(tmp_path / "a.json", b"new")
        assert names(tmp_path) == [".a.json.12", "a.json"]
    write_bytes(tmp_path / "b.json", b"new")
    assert names(tmp_path) == [".a.json.12", "a.json", "b.json"]
    write_bytes(tmp_path / "a.json", b"newer")
    assert names(tmp_path) == ["a.json", "b.json"]
    assert (tmp_path / "a.json").read_bytes() == b"newer"


def test_many_processes_replace_one_file_and_leave_nothing(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from vlnbench.util.durable.files import write_bytes
for _ in range(200):
    write_bytes(Path(sys.argv[1]), sys.argv[2].encode() * 1000)
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", script, str(tmp_path / "a.json")]
    running = [subprocess.Popen([*command, letter], env=env) for letter in "abc"]
    assert [process.wait() for process in running] == [0, 0, 0]
    assert names(tmp_path) == ["a.json"]
    assert (tmp_path / "a.json").read_bytes()[:1] * 1000 == (tmp_path / "a.json").read_bytes()


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json(tmp_path / "a.json", {"a": 1})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_json(tmp_path / "a.json", {"a": 2})
    assert names(tmp_path) == ["a.json"]
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": 1}


def opened(folder: Path, **manifest: object) -> AbstractContextManager[None]:
    return open_folder(folder, KIND, {"a": 1, **manifest})


def test_another_folder_is_refused_with_the_differing_fields_and_left_as_it_is(tmp_path: Path) -> None:
    with opened(tmp_path, b=2, c=3, d=4, e="x" * 1000):
        pass
    (tmp_path / ".thing.json.12").touch()
    with pytest.raises(UsageError, match=r"holds another thing: b 2 \(now 3\); choose another --out$"):
        opened(tmp_path, b=3, c=3).__enter__()
    with pytest.raises(
        UsageError, match=r"e 'x+\.\.\. \(now None\), b 2 \(now 0\), c 3 \(now 0\) and 1 more;"
    ) as caught:
        opened(tmp_path, e=None, b=0, c=0, d=0).__enter__()
    assert len(str(caught.value)) < 400
    assert names(tmp_path) == [".thing.json.12", "thing.json"]


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(UsageError, match="another process is writing there"):
        opened(tmp_path).__enter__()
    with locked(tmp_path):
        pass


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    folder.chmod(0o500)
    try:
        yield
    finally:
        folder.chmod(0o700)


def test_what_is_no_folder_of_ours_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    for name in (".thing.json", "thing.json.12", ".other.json.12"):
        (tmp_path / name).touch()
        with pytest.raises(UsageError, match="not empty and not the folder of a thing; choose another --out"):
            opened(tmp_path).__enter__()
        assert names(tmp_path) == [name]
        (tmp_path / name).unlink()
    (tmp_path / "thing.json").write_text("{")
    with pytest.raises(UsageError, match=r"thing.json: broken JSON"):
        opened(tmp_path).__enter__()
    with pytest.raises(UsageError, match="cannot be written"):
        opened(tmp_path / "thing.json").__enter__()
    with pytest.raises(UsageError, match="a file, not the folder of a thing"):
        find_manifest(tmp_path / "thing.json", KIND)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_place_is_refused(tmp_path: Path) -> None:
    with read_only(tmp_path), pytest.raises(UsageError, match=r"cannot be written \(Permission denied\)"):
        opened(tmp_path / "x").__enter__()


def test_runs_are_told_apart_by_their_identity(tmp_path: Path) -> None:
    manifest = {"identity": asdict(make_identity()), "metrics_version": 1, "created": "today"}
    with records.RunFolder(tmp_path, manifest):
        pass
    (tmp_path / ".summary.json.12").touch()
    with records.RunFolder(tmp_path, {**manifest, "created": "tomorrow"}):
        assert names(tmp_path) == ["episodes.jsonl", "manifest.json", "trajectories.jsonl"]


def test_a_training_that_was_killed_before_its_states_goes_on(tmp_path: Path) -> None:
    options = TrainOptions(checkpoint="c", out=tmp_path / "run", steps=20, workers=0)
    asked = plain(options)
    manifest = {"format": 1, "world_size": 1, "options": asked}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".train.json.12").write_text("{")
    with run_folder.open_run(options, manifest):
        pass
    (tmp_path / "run" / "state").rmdir()
    with run_folder.open_run(options, {**manifest, "options": {**asked, "workers": 2}}):
        assert names(tmp_path / "run") == ["state", "train.json"]
    with pytest.raises(
        UsageError, match=r"run: holds another training: world_size 1 \(now 2\), steps 20 \(now 9\);"
    ):
        run_folder.open_run(options, {**manifest, "world_size": 2, "options": {**asked, "steps": 9}}).__enter__()


def test_a_matrix_goes_on_after_a_kill_before_its_first_rename(tmp_path: Path) -> None:
    matrix = read_matrix(ROOT / "results" / "matrices" / "smoke.yaml")
    (tmp_path / ".matrix.json.12").write_text("{")
    work.check_work(matrix, tmp_path)
    with work.open_work(matrix, tmp_path):
        assert names(tmp_path) == ["matrix.json"]
    (tmp_path / ".plans.json.12").write_text("{")
    with work.open_work(matrix, tmp_path):
        assert names(tmp_path) == ["matrix.json"]


KILLED_WITHIN = """
import os, signal, sys
from pathlib import Path
from vlnbench.util.durable.folder import appearing
with appearing(Path(sys.argv[1]), "set") as made:
    (made / "half").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    out = tmp_path / "set"
    subprocess.run([sys.executable, "-c", KILLED_WITHIN, str(out)], check=False)
    (tmp_path / ".set.v2.abcdefgh").mkdir()  # of a folder set.v2
    assert len(list(tmp_path.glob(".set.*"))) == 3  # a lock and two folders
    assert not out.exists()
    with pytest.raises(ValueError, match="wrong"), appearing(out, "set") as made:  # noqa: PT012
        (made / "half").write_text("half")
        raise ValueError("wrong")
    assert [path.name for path in tmp_path.iterdir()] == [".set.v2.abcdefgh"]
    with appearing(out, "set") as made:
        (made / "whole").write_text("whole")
        with pytest.raises(InUseError), appearing(out, "set"):
            pass
    assert [path.name for path in out.iterdir()] == ["whole"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".set.v2.abcdefgh", "set"]
    with pytest.raises(UsageError, match="give a new folder for the set"), appearing(out, "set"):
        pass


def test_no_link_leads_out_of_a_folder(tmp_path: Path) -> None:
    inner(tmp_path / "state")
    inner(tmp_path / "state")
    assert (tmp_path / "state").is_dir()
    (tmp_path / "elsewhere").mkdir()
    for name, target in (("link", tmp_path / "elsewhere"), ("nowhere", tmp_path / "absent")):
        (tmp_path / name).symlink_to(target)
        with pytest.raises(UsageError, match=f"{name}: a link, through which nothing is written"):
            inner(tmp_path / name)
    assert not (tmp_path / "absent").exists()
