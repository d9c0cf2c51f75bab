from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.matrix.conftest import PARTS, Write
from vlnbench.errors import UsageError
from vlnbench.matrix import parts
from vlnbench.matrix.runner import run_matrix
from vlnbench.matrix.spec import read_matrix
from vlnbench.matrix.work.stages import Stage, stages_of
from vlnbench.matrix.work.store import adopt, publish, training_identity

STORE = Path("store")


def finished(folder: str, identity: dict[str, Any], data: str | None = None) -> Stage:
    """A training that is done, as its records have it."""
    run = Path(folder) / "run"
    (run / "model").mkdir(parents=True)
    digest = hashlib.sha256(json.dumps(identity["sets"]).encode()).hexdigest()[:16]
    (run / "train.json").write_text(
        json.dumps({"started_from": identity["started_from"], "data_sha256": data or digest})
    )
    return Stage("train", Path(folder), (), (run / "model").is_dir)


def open_stage(folder: str) -> Stage:
    return Stage("train", Path(folder), (), (Path(folder) / "run" / "model").is_dir)


IDENTITY: dict[str, Any] = {"started_from": "f", "sets": [["R2R", 1.0, "abc"]], "options": {"seed": 0}}


def test_finished_work_is_found_by_what_it_is(folder: Path) -> None:
    publish(STORE, finished("a", IDENTITY), IDENTITY)
    stage = open_stage("work/b")
    assert not adopt(STORE, stage, {**IDENTITY, "options": {"seed": 1}})
    assert adopt(STORE, stage, IDENTITY)
    assert stage.complete()
    assert stage.folder.resolve() == Path("a").resolve()
    publish(STORE, stage, IDENTITY)  # a link is not shared in its turn
    assert (next(STORE.iterdir()) / "work").resolve() == Path("a").resolve()


def test_work_that_is_gone_is_done_again_and_takes_its_place(folder: Path) -> None:
    publish(STORE, finished("a", IDENTITY), IDENTITY)
    stage = open_stage("work/b")
    assert adopt(STORE, stage, IDENTITY)
    shutil.rmtree("a")
    assert not stage.complete()
    assert not adopt(STORE, open_stage("c"), IDENTITY)
    publish(STORE, finished("d", IDENTITY), IDENTITY)
    assert adopt(STORE, stage, IDENTITY)
    assert stage.folder.resolve() == Path("d").resolve()


def test_records_that_do_not_agree_are_refused(folder: Path) -> None:
    publish(STORE, finished("a", IDENTITY), IDENTITY)
    shutil.rmtree("a")
    finished("a", IDENTITY, data="other")
    with pytest.raises(UsageError, match="data_sha256 other: expected"):
        adopt(STORE, open_stage("b"), IDENTITY)
    entry = next(STORE.iterdir())
    (entry / "identity.json").write_text(json.dumps({**IDENTITY, "options": {"seed": 7}}))
    with pytest.raises(UsageError, match="is of other work than its name says"):
        adopt(STORE, open_stage("b"), IDENTITY)
    assert not Path("b").exists()


def test_work_that_has_begun_is_not_replaced(folder: Path) -> None:
    publish(STORE, finished("a", IDENTITY), IDENTITY)
    begun = open_stage("b")
    begun.folder.mkdir()
    (begun.folder / "attempts.jsonl").write_text('{"outcome": "interrupted"}\n')
    assert not adopt(STORE, begun, IDENTITY)
    assert not begun.folder.is_symlink()


def test_data_are_hashed_as_a_training_records_them(write: Write) -> None:
    from vlnbench.training.data import TrainingSet, digest

    train = {"checkpoint": "streamvln-tiny-base", "trajectories": "sets", "steps": 4, "sets": ["R2R:2"]}
    setting = read_matrix(write(train=train)).settings[0]
    identity = training_identity(setting, 0)
    content: Any = None
    recorded = digest([TrainingSet(name, content, weight, sha) for name, weight, sha in identity["sets"]])
    publish(STORE, finished("a", identity, data=recorded), identity)
    assert adopt(STORE, open_stage("b"), identity)


def test_what_a_training_is_depends_on_content_and_not_on_places(write: Write) -> None:
    train = {"checkpoint": "streamvln-tiny-base", "trajectories": "sets", "steps": 4}
    (first, other) = read_matrix(write(train=train, axes={"seed": [0, 1]})).settings
    identity = training_identity(first, 0)
    assert identity != training_identity(other, 0)
    assert identity != training_identity(first, 2)
    Path("sets").rename("moved")
    (moved, _) = read_matrix(
        write(train={**train, "trajectories": "moved", "workers": 7}, axes={"seed": [0, 1]})
    ).settings
    assert training_identity(moved, 0) == identity
    named = {"checkpoint": "preset:streamvln-tiny", "trajectories": "moved", "vocabulary_of": ["R2R"]}
    spoken = read_matrix(write(train={**train, **named})).settings[0]
    words = training_identity(spoken, 0)
    (Path("moved") / "R2R" / "annotations.json").write_text("[1]")
    assert training_identity(moved, 0) != identity
    assert training_identity(spoken, 0)["vocabulary_of"] != words["vocabulary_of"]


@pytest.mark.slow
@pytest.mark.usefixtures("faked")
def test_a_second_matrix_does_only_what_the_first_has_not_done(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    def evaluation(of: Any, options: Any, split: str) -> dict[str, Any]:
        known = {"fingerprint": "f" * 12, "dataset_sha256": "d" * 64}  # as the fake evaluation records them
        return {"of": of, "split": split, "agent": options["agent"], **known}

    monkeypatch.setattr(parts, "evaluation_identity", evaluation)  # there is no data set here
    run: dict[str, Any] = {"store": "store", "gpus_per_setting": 0}
    first = read_matrix(write(axes={"tunable_parts": [[PARTS[0]], [PARTS[1]]]}, run=run, references=["blind"]))
    found = run_matrix(first, Path("work"), Path("results"))
    Path("calls.txt").unlink()
    axes = {"tunable_parts": [[PARTS[1]], [PARTS[2]]]}
    second = read_matrix(write(name="second", axes=axes, run=run, references=["blind"]))
    shared = run_matrix(second, Path("other"), Path("others"))
    calls = sorted(Path("calls.txt").read_text().splitlines())
    assert calls == ["eval val_seen", "eval val_unseen", f"train {PARTS[2]}"]
    assert [row["status"] for row in [*shared["rows"], *shared["references"]]] == ["done"] * 3
    assert shared["rows"][0]["results"] == found["rows"][1]["results"]
    assert shared["rows"][0]["seconds"] == found["rows"][1]["seconds"]
    assert stages_of(second, Path("other"), second.settings[0]).train.folder.is_symlink()
