from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from agents.scripted import RandomAgent, StopAgent
from tests.evaluation.test_evaluate import plan
from tests.fakes import PlaneEnv
from tests.runs import make_identity, record, write_dataset
from vlnbench.cli import main
from vlnbench.errors import UsageError
from vlnbench.evaluation.evaluate import default_folder, evaluate
from vlnbench.evaluation.identity import IDENTITY_VERSION, read_identity
from vlnbench.evaluation.recorded import load_run
from vlnbench.evaluation.records import MANIFEST, ROWS, SUMMARY, read_rows
from vlnbench.rollout.inline import Inline

OLDER = Path(__file__).parent / "older" / MANIFEST
"""The manifest of a run that was made before identities had typed fields."""


def as_version_1(folder: Path, **changes: Any) -> None:
    """Rewrite the manifest of a run as it was written before version 2."""
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["identity"] = load_run(folder).identity.as_version_1() | changes
    (folder / MANIFEST).write_text(json.dumps(manifest))


class Tuned(RandomAgent):
    identity = {"checkpoint": "1e5", "compile": False, "frames": 64, "temperature": 0.5, "seedless": None}  # noqa: RUF012


def test_what_is_written_is_read_back_with_its_types(tmp_path: Path) -> None:
    evaluate(plan("tuned"), Inline(Tuned(), PlaneEnv()), tmp_path / "run")
    found = json.loads((tmp_path / "run" / MANIFEST).read_text())["identity"]
    assert found["identity_version"] == IDENTITY_VERSION == 2
    assert (found["episodes"], found["split_size"], found["partial"]) == (9, 9, False)
    assert found["agent_identity"] == Tuned.identity
    assert json.loads((tmp_path / "run" / SUMMARY).read_text())["identity"] == found
    identity = load_run(tmp_path / "run").identity
    assert asdict(identity) == found
    assert identity.flat()["agent_identity.frames"] == 64
    assert identity.episodes_of == "9 of 9"


def test_an_older_manifest_has_the_same_fields() -> None:
    before = json.loads(OLDER.read_text())["identity"]
    identity = read_identity(before, "manifest.json")
    assert (identity.identity_version, identity.episodes, identity.split_size) == (IDENTITY_VERSION, 300, 300)
    assert (identity.agent, identity.agent_code) == ("streamvln-tiny", "5ec9c9b5c074")
    assert identity.agent_identity == {
        "checkpoint": "f47f5d9cd46dd6732fa717035cb1f2fff373a2b85acb765a096471a937add179",
        "device": "cpu",
        "dtype": "float32",
        "attn": "sdpa",
        "compile": False,
        "max_new_tokens": 512,
        "num_frames": 64,
        "num_history": 8,
        "torch": "2.13.0+cpu",
        "transformers": "5.23.0",
    }
    assert identity.as_version_1() == before


def test_one_and_true_are_not_the_same() -> None:
    one, true = (make_identity(agent_identity={"compile": value}) for value in (1, True))
    assert one.differences(true) == {"agent_identity.compile": (1, True)}
    assert one.differences(make_identity(agent_identity={"compile": 1})) == {}


def test_every_command_reads_an_older_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_dataset(tmp_path / "data")
    older, newer = tmp_path / "older", tmp_path / "newer"
    record(data, Tuned(), newer)
    shutil.copytree(newer, older)
    as_version_1(older)
    assert load_run(older).identity.differences(load_run(newer).identity) == {
        "agent_identity.temperature": ("0.5", 0.5),
        "agent_identity.seedless": ("None", None),
    }
    shutil.copy(Path(__file__).parents[2] / "results" / "published.json", tmp_path)
    for command in (
        ["status"],
        ["rank"],
        ["compare", str(newer)],
        ["rescore", "--data-root", str(data)],
        ["report", "--data-root", str(data)],
        ["export", "--format", "evalai-r2r", "--out", str(tmp_path / "sub.json"), "--force", "--allow-partial"],
        ["leaderboard", "--results", str(tmp_path)],
    ):
        printed = []
        for folder in (older, newer):
            assert main([command[0], str(folder), *command[1:]]) == 0, capsys.readouterr().err
            lines = capsys.readouterr().out.replace(str(folder), "RUN").splitlines()
            printed.append([line for line in lines if " ago" not in line and "differ in" not in line])
        if command[0] in ("status", "rank", "rescore"):
            assert printed[0] == printed[1]
    assert "| 9 of 9 |" in (tmp_path / "leaderboard.md").read_text()


def test_an_older_run_goes_on_where_it_ended(tmp_path: Path) -> None:
    evaluate(plan("tuned"), Inline(Tuned(), PlaneEnv()), tmp_path)
    rows = (tmp_path / ROWS).read_bytes().splitlines(keepends=True)
    (tmp_path / ROWS).write_bytes(b"".join(rows[:4]))
    as_version_1(tmp_path)
    before = (tmp_path / MANIFEST).read_bytes()
    again: list[int] = []
    summary = evaluate(
        plan("tuned"), Inline(Tuned(), PlaneEnv()), tmp_path, lambda row, done, total: again.append(done)
    )
    assert (again, summary.complete, len(read_rows(tmp_path))) == ([5, 6, 7, 8, 9], True, 9)
    assert (tmp_path / MANIFEST).read_bytes() == before


def test_another_older_run_is_refused_in_one_line(tmp_path: Path) -> None:
    evaluate(plan("tuned"), Inline(Tuned(), PlaneEnv()), tmp_path)
    as_version_1(tmp_path, agent_frames="32")
    with pytest.raises(UsageError, match=r"holds another run: agent_identity.frames 32 \(now 64\)") as caught:
        evaluate(plan("tuned"), Inline(Tuned(), PlaneEnv()), tmp_path)
    assert len(str(caught.value).splitlines()) == 1


def test_a_command_finds_the_folder_that_it_had_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = default_folder(plan("stop"), Inline(StopAgent(), PlaneEnv()))
    evaluate(plan("stop"), Inline(StopAgent(), PlaneEnv()), folder)
    as_version_1(folder)
    older = folder.with_name(f"stop-{load_run(folder).identity.digest_version_1()}")
    folder.rename(older)
    assert default_folder(plan("stop"), Inline(StopAgent(), PlaneEnv())) == older
    assert default_folder(plan("stop", seed=1), Inline(StopAgent(), PlaneEnv())) != older


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"identity_version": 3}, "identity_version': expected 1 or 2, found 3"),
        ({"identity_version": True, "episodes": 9}, "identity_version"),
        ({"episodes": "9 of 9"}, "'identity.episodes': expected int, found '9 of 9'"),
        ({"episodes": True}, "'identity.episodes': expected int, found True"),
        ({"episodes": 10**12}, "'identity.episodes'"),
        ({"repeats": 0}, "'identity.repeats'"),
        ({"partial": "False"}, "'identity.partial': expected bool"),
        ({"agent": None}, "'identity.agent': expected str, found None"),
        ({"agent_identity": {"x": [1]}}, "'identity.agent_identity': expected dict"),
        ({"agent_code": 1}, "'identity.agent_code'"),
        ({"more": "x" * 10**6}, "'identity.more': unknown field"),
        ({"seed": "x" * 10**6}, r"'identity.seed': expected int, found 'x+\.\.\.$"),
    ],
)
def test_broken_identities_are_one_short_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=rf"^manifest.json: field '?.*{message}") as caught:
        read_identity(asdict(make_identity()) | changes, "manifest.json")
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("counts", [None, 300, "300", "300 of many", f"{'9' * 50} of 3"])
def test_broken_older_identities_are_one_short_line(counts: object) -> None:
    found = json.loads(OLDER.read_text())["identity"] | {"episodes": counts}
    with pytest.raises(UsageError, match=r"'identity.episodes': expected 'N of M', found"):
        read_identity(found, "manifest.json")
