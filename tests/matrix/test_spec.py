from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents.streamvln.options import StreamVLNOptions, StreamVLNTraining
from envs.houses.options import HousesOptions
from tests.matrix.conftest import PARTS, Write
from vlnbench.cli import main
from vlnbench.cli.collect import Collect
from vlnbench.cli.commands import Command
from vlnbench.cli.eval import Eval
from vlnbench.cli.selected import parse
from vlnbench.errors import UsageError
from vlnbench.matrix.fields import HASHED, hashed
from vlnbench.matrix.spec import read_matrix
from vlnbench.matrix.statistics.contrasts import Contrast
from vlnbench.matrix.work.older import document_of_today
from vlnbench.matrix.work.stages import arguments, prepare_stages, stages_of
from vlnbench.training.options import plain

ROOT = Path(__file__).parents[2]
MATRICES = ROOT / "results" / "matrices"


def test_the_product_of_the_axes_in_order(write: Write) -> None:
    axes = {
        "data": [
            {"label": "a", "sets": ["R2R"]},
            {"label": "b", "sets": ["R2R:2"], "steps_of": ["R2R"], "steps": None},
        ],
        "learning_rate": [1e-3, "2e-3"],
        "evaluate.repeats": [1, 2],
    }
    matrix = read_matrix(write(axes=axes, evaluate={"splits": ["val_seen"], "episodes": 5}))
    assert [each.name for each in matrix.settings][:3] == [
        "a, learning_rate=0.001, evaluate.repeats=1",
        "a, learning_rate=0.001, evaluate.repeats=2",
        "a, learning_rate=2e-3, evaluate.repeats=1",
    ]
    assert len(matrix.settings) == 8
    last = matrix.settings[-1]
    assert last.train.learning_rate == 2e-3
    assert (last.train.sets, last.train.steps, last.train.steps_of) == (("R2R:2",), None, ("R2R",))
    assert last.evaluate["repeats"] == 2
    assert last.evaluate["benchmark"] == "houses-r2r"
    assert len({each.key for each in matrix.settings}) == 8
    assert len({each.train_key for each in matrix.settings}) == 4  # evaluation does not change a training
    assert len({each.eval_key("val_seen") for each in matrix.settings}) == 8


def test_a_seed_may_draw_more_than_the_seed(write: Write) -> None:
    bases = ("streamvln-tiny", "streamvln-tiny-base")
    seeds = [{"label": each, "seed": seed, "checkpoint": each} for seed, each in enumerate(bases)]
    matrix = read_matrix(write(axes={"seed": seeds, "learning_rate": [1e-3, 2e-3]}))
    assert matrix.drawn == ("checkpoint",)
    assert matrix.axes["seed"] == bases
    assert tuple(each.train.checkpoint for each in matrix.settings[1:3]) == bases
    assert read_matrix(write(axes={"seed": [0, {"label": "b", "seed": 1}]})).drawn == ()


@pytest.mark.parametrize(
    "name", [pytest.param("tunable_parts_x_data", marks=pytest.mark.slow), "vlnce_augmentation"]
)
def test_a_new_option_leaves_settings_that_were_trained_as_they_were(name: str) -> None:
    """Those of committed matrices, which were hashed otherwise, are still those of their files."""
    rows = document_of_today(json.loads((MATRICES.parent / name / "matrix.json").read_text()))["rows"]
    settings = read_matrix(MATRICES / f"{name}.yaml").settings
    assert {each.name: each.key for each in settings} == {row["name"]: row["key"] for row in rows}
    rows[0]["options"]["seed"] += 1
    changed = document_of_today({"format": 2, "rows": rows})["rows"]
    assert [row["key"] for row in changed[1:]] == [row["key"] for row in rows[1:]]
    assert changed[0]["key"] != rows[0]["key"]


def test_what_was_a_default_is_left_out_where_the_checkpoint_says_it(write: Write, folder: Path) -> None:
    """A training of then on windows of 32 steps is today's from a checkpoint of 16 only where 32 is given."""
    config = json.loads((ROOT / "agents/checkpoints/streamvln-tiny/config.json").read_text())
    for frames, given in ((32, {}), (16, {"frames": 32})):
        (folder / "model").mkdir(exist_ok=True)
        (folder / "model" / "config.json").write_text(json.dumps(config | {"num_frames": frames}))
        train = {"checkpoint": "model", "trajectories": "sets", **given}
        (setting, *_) = read_matrix(write(train=train)).settings
        options = plain(setting.train) | StreamVLNTraining.BEFORE
        row = {"name": setting.name, "key": "", "options": options, "evaluate": setting.evaluate}
        (today,) = document_of_today({"format": 2, "rows": [row]})["rows"]
        assert (today["train_key"], today["key"]) == (setting.train_key, setting.key)
        assert today["options"] == plain(setting.train)


def test_an_option_counts_where_it_says_something(write: Write) -> None:
    """Given at its default it says nothing; so options can be added while matrices are under way."""
    axes = {"seed": [0], "questions_at_once": [None, 3], "prefetch": [2, 3], "group_ranks": [False]}
    settings = read_matrix(write(axes=axes)).settings
    assert len({each.train_key for each in settings}) == 4
    plain = replace(
        settings[0], train=StreamVLNTraining(checkpoint="c", out=Path(), tunable_parts=("mm_mlp_adapter",))
    )
    assert hashed(plain.train, plain.family) == {
        "version": HASHED,
        "family": "streamvln",
        "checkpoint": "c",
        "tunable_parts": ("mm_mlp_adapter",),
    }


def test_a_matrix_can_be_of_costs_alone(write: Write) -> None:
    matrix = read_matrix(write(axes={"seed": [0, 1]}, evaluate={"splits": []}, references=[]))
    assert [[*stages_of(matrix, Path("work"), each).by_name] for each in matrix.settings] == [["train"], ["train"]]
    assert not matrix.references


def test_of_the_product_only_what_is_kept(write: Write) -> None:
    keep = [{"seed": "seed=0"}, {"tunable_parts": ["mm_mlp_adapter"], "seed": ["seed=1"]}]
    axes = {"tunable_parts": [["mm_vision_tower"], ["mm_mlp_adapter"]], "seed": [0, 1, 2]}
    assert [each.name for each in read_matrix(write(axes=axes, keep=keep)).settings] == [
        "mm_vision_tower, seed=0",
        "mm_mlp_adapter, seed=0",
        "mm_mlp_adapter, seed=1",
    ]


def test_rates_of_parts_that_do_not_train_are_left_out(write: Write) -> None:
    train = {
        "checkpoint": "streamvln-tiny",
        "trajectories": "sets",
        "vision_tower_lr": "5e-6",
        "projector_lr": 1e-4,
    }
    first, second, third = read_matrix(write(train=train)).settings
    assert (first.train.vision_tower_lr, first.train.projector_lr) == (5e-6, None)
    assert (second.train.vision_tower_lr, second.train.projector_lr) == (None, 1e-4)
    assert (third.train.vision_tower_lr, third.train.projector_lr) == (None, None)
    assert "vision_tower_lr" not in third.given


def test_the_hash_follows_results_and_nothing_else(write: Write) -> None:
    first = read_matrix(write())
    assert read_matrix(write()).key == first.key
    assert read_matrix(write(run={"jobs": 3, "train_timeout_s": 9})).key == first.key
    assert read_matrix(write(name="other")).key == first.key
    assert read_matrix(write(evaluate={"episodes": 3})).key != first.key
    assert read_matrix(write(houses={"train_houses": 3})).key != first.key
    assert read_matrix(write(collect={"EnvDrop": {"set": "envdrop"}})).key != first.key


def test_options_become_a_command_line() -> None:
    options = {"sets": ("R2R", "EnvDrop"), "envdrop": True, "augment": False, "batch": 2, "steps": None, "a": ()}
    assert arguments(options) == ["--sets", "R2R", "EnvDrop", "--envdrop", "--no-augment", "--batch=2", "--a"]


BAD: dict[str, dict[str, Any]] = {
    "unknown section 'axis': did you mean 'axes'": {"axis": {}},
    "name None: expected letters": {"name": None},
    "name '../x': expected letters": {"name": "../x"},
    "axes: expected at least one axis": {"axes": None},
    "axes.batch: expected a list of at least one value": {"axes": {"batch": []}},
    "unknown axis 'tunable_part': did you mean 'tunable_parts'": {"axes": {"tunable_part": ["x"]}},
    "axes.data: value 1: expected a label": {"axes": {"data": [{"sets": ["R2R"]}]}},
    "axes.data: a: expected options beside": {"axes": {"data": [{"label": "a"}]}},
    "unknown option 'set': did you mean 'sets'": {"axes": {"data": [{"label": "a", "set": ["R2R"]}]}},
    "settings 1 and 2 are both named 'batch=1'": {"axes": {"batch": [1, 1]}},
    "axes.batch: value 1: 'batch=1000000000": {"axes": {"batch": [10**99]}},
    "...: give it a label beside its options": {"axes": {"sets": ["R" * 101]}},
    "axes a and batch both set batch": {"axes": {"a": [{"label": "x", "batch": 1}], "batch": [2]}},
    "unknown option 'lerning_rate': did you mean 'learning_rate'": {"train": {"lerning_rate": 1}},
    "checkpoint: expected a folder or a name": {"train": {"trajectories": "sets"}},
    "unknown option 'checkpoint'": {"evaluate": {"checkpoint": "x"}},
    "unknown split of houses-r2r 'val_unsen': did you mean 'val_unseen'": {"evaluate": {"splits": ["val_unsen"]}},
    "unknown benchmark 'r2r'": {"evaluate": {"benchmark": "r2r"}},
    "splits: expected each split once": {"evaluate": {"splits": ["val_seen", "val_seen"]}},
    "--max-batch 0: expected 1 or more": {"evaluate": {"max_batch": 0}},
    "batch 'two': input should be a valid integer": {"axes": {"batch": ["two"]}},
    "batch True: expected a number": {"axes": {"batch": [True]}},
    "zero 4: expected 0 to 3": {"axes": {"zero": [4]}},
    "unknown tunable part 'mm_vision': did you mean 'mm_vision_tower'": {"axes": {"tunable_parts": ["mm_vision"]}},
    "holds no annotations.json; unknown set 'EnvDrp': did you mean 'EnvDrop'": {
        "axes": {"sets": [["R2R", "EnvDrp"]]},
        "collect": {"EnvDrop": {"set": "envdrop"}},
    },
    "keep: expected a list of mappings": {"keep": {}},
    "keep: entry 1: expected a mapping": {"keep": ["a"]},
    "keep: unknown axis 'tunable_part': did you mean 'tunable_parts'": {"keep": [{"tunable_part": "a"}]},
    "keep: tunable_parts: unknown label 'mm_vision': did you mean 'mm_vision_tower'": {
        "keep": [{"tunable_parts": "mm_vision"}]
    },
    "keep: entry 1: tunable_parts: expected at least one label": {"keep": [{"tunable_parts": []}]},
    "num_history 5: expected a divisor": {
        "axes": {"history": [5]},
        "train": {"checkpoint": "streamvln-tiny", "trajectories": "sets", "frames": 32, "future_steps": 4},
    },
    "collect.EnvDrop: unknown option 'tour': did you mean 'tours'": {"collect": {"EnvDrop": {"tour": 3}}},
    "collect.EnvDrop: set 'envdrp': input should be": {"collect": {"EnvDrop": {"set": "envdrp"}}},
    "houses: rooms_min = 20: give a whole number": {"houses": {"rooms_min": 20}},
    "contrasts: expected a mapping": {"contrasts": ["a"]},
    "contrasts.a: expected a mapping": {"contrasts": {"a": []}},
    "contrasts: expected names of 1 to 100": {"contrasts": {" ": {}}},
    "contrasts.a: unknown field 'pair': did you mean 'pairs'": {"contrasts": {"a": {"pair": []}}},
    "contrasts.a: unknown axis 'sets'": {"contrasts": {"a": {"axis": "sets", "pairs": [["x", "y"]]}}},
    "contrasts.a: pairs: expected a list of [label, label": {
        "contrasts": {"a": {"axis": "tunable_parts", "pairs": ["mm_mlp_adapter"]}}
    },
    "contrasts.a: pairs: unknown label 'mm_mlp': did you mean 'mm_mlp_adapter'": {
        "contrasts": {"a": {"axis": "tunable_parts", "pairs": [["mm_mlp", "mm_vision_tower"]]}}
    },
    "contrasts.a: within: unknown axis 'look'": {
        "contrasts": {
            "a": {
                "axis": "tunable_parts",
                "pairs": [["mm_mlp_adapter", "mm_vision_tower"]],
                "within": {"look": "x"},
            }
        }
    },
    "contrasts.a: pairs: 'mm_mlp_adapter' stands in them twice": {
        "contrasts": {"a": {"axis": "tunable_parts", "pairs": [["mm_mlp_adapter", "mm_mlp_adapter"]]}}
    },
    "group: for objective: grpo; leave it out there": {"axes": {"group": [4]}},
    "unknown objective 'grop': did you mean 'grpo'": {"axes": {"objective": ["grop"]}},
    "run.jobs 0: expected 1 to 1024": {"run": {"jobs": 0}},
    "run.gpu 80: expected a size": {"run": {"gpu": "80"}},
    "run: unfit 'drop': input should be 'run' or 'skip'": {"run": {"unfit": "drop"}},
}


def test_contrasts_change_no_setting(write: Write) -> None:
    before = read_matrix(write())
    one, other, *_ = before.axes["tunable_parts"]
    asked = {"the first": {"axis": "tunable_parts", "pairs": [[one, other]]}}
    after = read_matrix(write(contrasts=asked))
    assert after.key == before.key
    assert after.contrasts == (Contrast("tunable_parts", "the first", ((one, other),)),)


@pytest.mark.parametrize("message", BAD)
def test_bad_files_are_one_line(message: str, write: Write) -> None:
    with pytest.raises(UsageError) as caught:
        read_matrix(write(**BAD[message]))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bad_file_ends_the_command_with_nothing_written(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(axes={"tunable_part": ["x"]})
    before = sorted(path.parent.rglob("*"))
    assert main(["matrix", "run", str(path)]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"vlnbench: error: {path}: unknown axis 'tunable_part': did you mean")
    assert len(printed.splitlines()) == 1
    assert sorted(path.parent.rglob("*")) == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: [", "not a matrix file in YAML"),
        ("- a", "expected a mapping of name"),
        ("a: 1\na: 2", "a stands twice"),
    ],
)
def test_broken_yaml_is_one_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        read_matrix(tmp_path / "m.yaml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem == "tunable_parts_x_data"))
        for path in sorted(MATRICES.glob("*.yaml"))
    ],
)
def test_the_files_in_the_repository_can_be_read(path: Path) -> None:
    matrix = read_matrix(path)
    assert matrix.name == path.stem
    parts = {setting.train.parts for setting in matrix.settings}
    if path.stem == "vlnce_augmentation":
        cells = Counter(
            (setting.train.checkpoint, setting.train.sets, setting.given.get("progress_weight"))
            for setting in matrix.settings
        )
        assert Counter(cells.values()) == {5: 6, 2: 6}
    elif path.stem.startswith("janusvln"):
        base, *others = matrix.settings
        together = [{"tunable_parts", "lora_rank"}, {"batch", "accumulation"}, {"workers", "prefetch"}]
        together.append({"feature_cache", "hang_minutes"})  # a second training with the same cache
        for setting in others:  # one lever at a time
            names = setting.given.keys() - {"seed"}
            changed = {name for name in names if setting.given[name] != base.given.get(name)}
            assert len(changed) == 1 or changed in together, setting.name
    elif path.stem in ("parts_x_shift", "augmentation_shift"):
        assert len(matrix.axes["seed"]) == 4
        assert matrix.looks == (2, 4)
    elif path.stem.startswith("pilot"):  # not the benchmark's houses
        assert {each.evaluate["data_root"] for each in matrix.settings} == {Path("houses1-2")}
    elif path.stem == "post_training":
        seeds = Counter((setting.given["objective"], setting.given.get("rollouts")) for setting in matrix.settings)
        assert seeds == {("supervised", None): 3, ("grpo", "steps"): 3, ("grpo", "episodes"): 3}
    elif path.stem == "post_training_memory":
        given = [setting.given for setting in matrix.settings]
        assert {each["batch"] * each["accumulation"] for each in given} == {16}  # walks in an update
        kinds = {(each["optimizer"], each["zero"]) for each in given}
        assert kinds >= {("adafactor", 0), ("adamw", 2), ("adamw", 3)}
    elif path.stem == "tunable_parts_x_data":
        trains = [setting.train for setting in matrix.settings]
        cells = Counter((each.parts, each.lora_rank, each.sets, each.steps) for each in trains)
        assert set(cells.values()) == {5}  # seeds
        assert len({(each.parts, each.lora_rank) for each in trains if each.sets == ("R2R", "DAgger")}) == 8
        assert len({(each.sets, each.steps) for each in trains if len(each.parts) == 3}) == 8
        assert len(cells) == 8 + 8 - 1
    elif path.stem != "smoke":
        assert len(parts) == 7
        arms = {(setting.train.sets, setting.train.steps_of) for setting in matrix.settings}
        assert arms == {(("R2R",), ()), (("R2R", "EnvDrop"), ()), (("R2R", "EnvDrop"), ("R2R",))}
    if path.stem.endswith("8b"):
        assert all(setting.train.vision_tower_lr for setting in matrix.settings if PARTS[0] in setting.train.parts)


def test_the_command_line_understands_every_command() -> None:
    """What the commands of the smoke matrix say is what the file says."""
    matrix = read_matrix(MATRICES / "smoke.yaml")
    setting, work = matrix.settings[1], Path("work")
    found = [*prepare_stages(matrix, work), *stages_of(matrix, work, setting)]
    houses, first, _, train, seen, _ = (parse(Command, stage.command[3:]) for stage in found)
    assert isinstance(houses, HousesOptions)
    assert (houses.train_houses, houses.envdrop_episodes) == (2, 24)
    assert isinstance(first, Collect)
    assert (first.set, first.tours, first.out) == ("r2r", 6, Path("data/smoke/trajectories/R2R"))
    assert isinstance(train, StreamVLNTraining)
    assert replace(setting.train, out=train.out) == StreamVLNTraining(**vars(train))
    assert isinstance(seen, Eval)
    assert (seen.split, seen.episodes) == ("val_seen", 2)
    assert seen.agent_options == StreamVLNOptions(max_new_tokens=8, checkpoint=train.out / "model")


def test_hardware_takes_the_place_of_what_the_file_says(write: Write) -> None:
    sections = {
        "hardware": {
            "8x80GB": {"train": {"batch": 2}, "run": {"gpus_per_setting": 8}},
            "1x24GB": {
                "train": {"batch": 1},
                "axes": {"tunable_parts": [["mm_mlp_adapter"]]},
                "run": {"gpu": "24GB"},
            },
        }
    }
    path = write(**sections)
    first, other = read_matrix(path), read_matrix(path, "1x24GB")
    assert (first.name, len(first.settings), first.execution.gpus_per_setting) == ("small_8x80GB", 3, 8)
    assert (other.name, len(other.settings), other.execution.gpu) == ("small_1x24GB", 1, "24GB")
    assert (first.settings[0].train.batch, other.settings[0].train.batch) == (2, 1)
    for hardware, given, said in (
        ("1x25GB", sections, "hardware: unknown name '1x25GB': did you mean '1x24GB'?"),
        ("", {"hardware": {"a": {"name": "x"}}}, "hardware.a: unknown section 'name'"),
        ("a", {}, "--hardware a: "),
    ):
        with pytest.raises(UsageError) as error:
            read_matrix(write(**given), hardware)
        assert said in str(error.value)


def test_a_set_that_is_still_to_come_has_its_windows(write: Write) -> None:
    """In a dry run; without that, a set that is not there is a mistake."""
    axes = {"sets": [["R2R"], ["R2R", "RxR"]], "tunable_parts": [["mm_mlp_adapter"]]}
    with pytest.raises(UsageError, match=r"RxR holds no annotations\.json"):
        read_matrix(write(axes=axes))
    assert len(read_matrix(write(axes=axes, run={"windows": {"RxR": 70000}})).settings) == 2
