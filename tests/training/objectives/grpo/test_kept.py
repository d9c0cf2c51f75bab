from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vlnbench.errors import RunError, UsageError
from vlnbench.interfaces import Action
from vlnbench.training.objectives.grpo import kept
from vlnbench.training.objectives.grpo.kept import FOLDER, Keeper, encode, read_rollouts, recompute
from vlnbench.training.objectives.grpo.rewards import Completion
from vlnbench.util.durable.files import write_json

COMPLETION = Completion(0.5, (Action.MOVE_FORWARD, Action.STOP), (Action.MOVE_FORWARD, Action.TURN_LEFT))


def line(update: int, **changes: Any) -> dict[str, Any]:
    made = {"update": update, "prompt": 7, "member": 0, "rewards": {"match-decayed": 2 / 3}, "advantage": 0.25}
    return {**made, "missing": "", "note": "", "completion": encode(COMPLETION), **changes}


def folder(out: Path) -> Path:
    out.mkdir(exist_ok=True)
    write_json(out / "train.json", {"options": {"rollouts": "steps", "rewards": []}})
    return out


def test_what_was_kept_is_read_and_judged_again(tmp_path: Path) -> None:
    Keeper(folder(tmp_path), 1.0, 0).keep(1, [line(1), line(1, missing="failed", completion=None, advantage=None)])
    first, second = read_rollouts(tmp_path)
    assert first.completion == COMPLETION
    assert (second.completion, second.advantage, second.missing) == (None, None, "failed")
    ((first, found),) = recompute(tmp_path)
    assert found == dict(first.rewards)
    ((_, other),) = recompute(tmp_path, ["match-exact", "format:2"])
    assert other == {"match-exact": 0.0, "format": 0.5}


def test_a_run_that_goes_on_makes_what_came_after_its_state_again(tmp_path: Path) -> None:
    first = Keeper(folder(tmp_path), 1.0, 0)
    for update in (1, 2, 3):
        first.keep(update, [line(update)])
    (tmp_path / FOLDER / ".update-000004.jsonl.gz.99999999").write_bytes(b"half")
    Keeper(tmp_path, 1.0, 1)
    assert [each.update for each in read_rollouts(tmp_path)] == [1]
    assert [path.name for path in (tmp_path / FOLDER).iterdir()] == ["update-000001.jsonl.gz"]


def test_the_folder_grows_no_larger_than_was_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    most = 500
    keeper = Keeper(folder(tmp_path), most / 1e9, 0)
    for update in range(1, 9):
        keeper.keep(update, [line(update)])
    written = list((tmp_path / FOLDER).iterdir())
    assert 1 <= len(written) < 8
    assert sum(path.stat().st_size for path in written) <= most
    assert capsys.readouterr().err.count("as large as --rollouts-gb allows") == 1
    Keeper(folder(tmp_path / "none"), 0.0, 0).keep(1, [line(1)])
    assert not list((tmp_path / "none" / FOLDER).iterdir())


def test_a_disk_that_is_full_stops_the_run_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    keeper = Keeper(folder(tmp_path), 1.0, 0)
    monkeypatch.setattr(kept, "write_bytes", full)
    with pytest.raises(RunError, match=r"update-000001.jsonl.gz: cannot be written \(No space left"):
        keeper.keep(1, [line(1)])


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    Keeper(folder(tmp_path), 1.0, 0).keep(1, [line(1, completion={"formed": 1.0})])
    with pytest.raises(UsageError, match=r"update-000001.jsonl.gz: line 1: not a rollout"):
        list(read_rollouts(tmp_path))
