from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.matrix.conftest import PARTS, Write
from vlnbench.cli import main
from vlnbench.errors import UsageError
from vlnbench.matrix.parts import Part, merge, units_of
from vlnbench.matrix.runner import run_matrix
from vlnbench.matrix.spec import read_matrix


def names(path: Path, part: Part) -> list[str]:
    return [name for unit in part.choose(units_of(read_matrix(path), Path("work"))) for name in unit.names]


def test_shards_are_all_of_it_and_share_nothing(write: Write) -> None:
    """Settings with one training stay together, and references are dealt out like trainings."""
    axes = {"tunable_parts": [[part] for part in PARTS], "evaluate.repeats": [1, 2]}
    path = write(axes=axes, references=["blind", "random"])
    every = names(path, Part())
    assert every[:2] == ["blind (repeats=1)", "blind (repeats=2)"]
    shards = [names(path, Part(shard=f"{i}/3")) for i in (1, 2, 3)]
    assert sorted(name for shard in shards for name in shard) == sorted(every)
    for shard in shards:
        trained = [name for name in shard if "mm_" in name]
        assert len(trained) == 2
        assert len({name.split(",")[0] for name in trained}) == 1
    assert names(path, Part(only=("*mlp*", "random (repeats=1)"))) == [
        "random (repeats=1)",
        "mm_mlp_adapter, evaluate.repeats=1",
        "mm_mlp_adapter, evaluate.repeats=2",
    ]


def test_seeds_come_one_after_the_other(write: Write) -> None:
    path = write(axes={"tunable_parts": [[PARTS[0]], [PARTS[1]]], "seed": [3, 0]}, references=["blind"])
    wanted = [f"{part}, seed={seed}" for seed in (3, 0) for part in PARTS[:2]]
    assert names(path, Part()) == ["blind", *wanted]


@pytest.mark.parametrize("shard", ["0/2", "3/2", "1", "a/b", "1/0", "-1/2"])
def test_a_shard_that_is_none_is_refused(write: Write, shard: str) -> None:
    with pytest.raises(UsageError, match="expected I/N with I from 1 to N"):
        names(write(), Part(shard=shard))


def test_a_name_of_nothing_is_refused(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(references=["blind"])
    assert main(["matrix", "run", str(path), "--only", "mm_*", "blnd"]) == 2
    assert "--only: unknown setting or reference 'blnd'" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_the_command_takes_names_with_commas(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """Every name of a setting with several axes has one."""
    path = write(axes={"tunable_parts": [[part] for part in PARTS], "evaluate.repeats": [1, 2]}, references=[])
    name = "mm_mlp_adapter, evaluate.repeats=1"
    assert main(["matrix", "run", str(path), "--only", name, "mm_none, *"]) == 2
    message = capsys.readouterr().err
    assert "unknown setting or reference 'mm_none, *'" in message
    assert f"; {name}; " in message


@pytest.mark.slow
@pytest.mark.usefixtures("faked")
def test_parts_run_apart_and_merged_are_the_whole(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(references=["blind"], run={"gpus_per_setting": 0})
    matrix = read_matrix(path)
    whole = run_matrix(matrix, Path("work"), Path("whole"))
    for number in (1, 2):
        part = Part(shard=f"{number}/2")
        found = run_matrix(matrix, Path(f"work-{number}"), Path(f"part-{number}"), part=part)
        assert {row["status"] for row in found["rows"]} == {"done", "pending"}
    merged = merge([Path("part-1"), Path("part-2")], Path("merged"))
    assert [row["status"] for row in [*merged["references"], *merged["rows"]]] == ["done"] * 4
    for name in ("rows", "references"):
        assert [(row["name"], row["results"]) for row in merged[name]] == [
            (row["name"], row["results"]) for row in whole[name]
        ]
    assert main(["matrix", "merge", "merged", "part-1", "--results", "merged"]) == 0
    assert "small: 3 done" in capsys.readouterr().out
    assert json.loads(Path("merged/matrix.json").read_text()) == merged
    assert Path("merged/matrix.md").is_file()


def document(**changes: Any) -> dict[str, Any]:
    """Results of one setting, trained and evaluated."""
    identity = {"benchmark": "b", "dataset_sha256": "d", "simulator": "s"}
    row = {
        "name": "one",
        "status": "done",
        "options": {"checkpoint": "c", "sets": ["R2R"], "envdrop": False},
        "evaluate": {"benchmark": "b"},
        "train": {"started_from": "f", "world_size": 1, "dtype": "float32", "data_sha256": "x"},
        "results": {"val_seen": {"identity": identity, "metrics": {"SR": {"mean": 0.5}}}},
    }
    return {"name": "m", "key": "k", "axes": {}, "splits": ["val_seen"], "references": [], "rows": [row]} | changes


def put(folder: str, content: dict[str, Any]) -> Path:
    Path(folder).mkdir()
    (Path(folder) / "matrix.json").write_text(json.dumps(content))
    return Path(folder)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("train", "started_from"), "other", "their trainings differ in started_from (other and f)"),
        (("train", "world_size"), 2, "their trainings differ in world_size (2 and 1)"),
        (("train", "data_sha256"), "y", "their data differ in data_sha256 (y and x)"),
        (("results", "val_seen", "identity", "simulator"), "t", "their evaluations differ in simulator (t and s)"),
        (("results", "val_seen", "identity", "dataset_sha256"), "e", "differ in dataset_sha256 (e and d)"),
    ],
)
def test_what_does_not_belong_side_by_side_is_refused(
    folder: Path, path: tuple[str, ...], value: Any, message: str
) -> None:
    other = document()
    row = other["rows"][0]
    row["name"] = "two"
    place = row
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    parts = [put("a", document()), put("b", other)]
    with pytest.raises(UsageError) as error:
        merge(parts, Path("out"))
    assert message in str(error.value)
    assert not Path("out").exists()


def test_the_furthest_row_counts_and_two_results_are_refused(folder: Path) -> None:
    failed = document()
    failed["rows"][0] |= {"status": "oom", "results": {"val_seen": None}}
    assert merge([put("a", failed), put("b", document())], Path("out"))["rows"] == document()["rows"]
    other = document()
    other["rows"][0]["results"]["val_seen"]["metrics"]["SR"]["mean"] = 0.6
    with pytest.raises(UsageError, match="'one' is done in b and in c, with different results"):
        merge([Path("b"), put("c", other)], Path("out"))


@pytest.mark.parametrize("name", ["name", "key", "axes", "splits", "contrasts", "looks"])
def test_parts_of_different_matrices_are_refused(folder: Path, name: str) -> None:
    with pytest.raises(UsageError, match=f"b: {name} is not that of a"):
        merge([put("a", document()), put("b", document(**{name: "other"}))], Path("out"))


def test_results_of_another_matrix_are_kept(folder: Path) -> None:
    out = put("out", document(key="other"))
    with pytest.raises(UsageError, match="out: holds the results of another matrix"):
        merge([put("a", document())], out)
    with pytest.raises(UsageError, match=r"matrix\.json: not there"):
        merge([Path("nothing")], Path("new"))
    with pytest.raises(UsageError, match="field 'rows': expected a list of settings"):
        merge([put("empty", document(rows=[]))], Path("new"))
