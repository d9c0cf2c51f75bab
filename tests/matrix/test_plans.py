"""What a matrix will need is planned before its checkpoint and its data are there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.matrix.conftest import Write
from vlnbench.errors import UsageError
from vlnbench.matrix.execution import Execution, parse_size
from vlnbench.matrix.needs.plans import make_plans
from vlnbench.matrix.needs.table import There, format_needs
from vlnbench.matrix.spec import Matrix, read_matrix
from vlnbench.util.cards import PEAKS, peak, usual

ROOT = Path(__file__).parents[2]


@pytest.fixture
def absent(write: Write) -> Any:
    """A matrix of a checkpoint that is not there, on sets that will be collected."""

    def make(family: str, part: str, train: dict[str, Any] | None = None, **run: Any) -> Matrix:
        own = {"family": family, "checkpoint": "checkpoints/none", "trajectories": "elsewhere"}
        collect = {"R2R": {"set": "r2r"}}
        axes = {"tunable_parts": [[part]]}
        own |= train or {}
        return read_matrix(write(train=own, collect=collect, axes=axes, run={"gpus_per_setting": 8, **run}))

    return make


def needs(matrix: Matrix, plans: Any, host: int | None = None) -> str:
    pace = matrix.execution.pace(matrix.execution.gpu, None)
    return format_needs(matrix, plans, {}, There(host, Path("runs"), pace))


def header(shown: str) -> str:
    return next(line for line in shown.splitlines() if line.lstrip().startswith("setting"))


def test_a_checkpoint_that_is_not_there_is_planned_by_published_sizes(absent: Any) -> None:
    matrix = absent("streamvln", "mm_mlp_adapter", gpu="80GB")
    (planned,) = make_plans(matrix, matrix.execution.gpu).values()
    assert planned["peak"] == pytest.approx(23.4e9, rel=0.01)
    assert (planned["fits"], planned["planned_as"]) == ("yes", "streamvln-8b")
    shown = needs(matrix, {matrix.settings[0].train_key: planned})
    assert "planned by the published sizes streamvln-8b, as the checkpoint is not there" in " ".join(shown.split())
    assert "no steps: elsewhere/R2R/annotations.json: not there" in shown
    assert "GPU-h" not in header(shown)
    assert "no GPU here" not in shown
    assert "host: not judged, as the machines are not this one" in shown


def test_of_several_sizes_one_is_named(absent: Any) -> None:
    matrix = absent("janusvln", "mm_mlp")
    (planned,) = make_plans(matrix, None).values()
    assert planned["peak"] is None
    assert "checkpoints/none is not there" in planned["error"]
    assert "run: {plan_as: NAME}, one of janusvln-7b, janusvln-3b" in planned["error"]
    matrix = absent("janusvln", "mm_mlp", plan_as="janusvln-9b")
    (planned,) = make_plans(matrix, None).values()
    assert planned["error"].startswith("run.plan_as janusvln-9b: no such file or folder")


def test_without_data_the_windows_of_the_file_make_steps_and_hours(absent: Any) -> None:
    """128 windows a step on 8 GPUs; 6 operations per weight and position would be 10 times the projector's."""
    matrix = absent("streamvln", "mm_mlp_adapter", gpu="80GB", card="H100", host="200GB", windows={"R2R": 25600})
    plans = make_plans(matrix, "80GB")
    (planned,) = plans.values()
    assert planned["steps"] == 25600 // (2 * 2 * 8)
    assert planned["windows"] * 8 == 25600
    hours = 25600 * planned["flops"] / (0.4 * 989e12) / 3600
    shown = needs(matrix, plans, parse_size("200GB"))
    row = next(line for line in shown.splitlines() if line.lstrip().startswith("1  mm_mlp_adapter")).split()
    assert row[2:] == ["800", "23.4", "yes", "32.0", "yes", "16.1", f"{hours:.2f}"]
    told = " ".join(shown.split())
    assert "sets that are not there have the windows that run.windows says: R2R 25,600" in told
    assert "40% of the 989 TFLOPS of H100; " in told
    assert "32.0 no" in needs(matrix, plans, parse_size("24GB"))


def test_nothing_is_computed_without_a_word(absent: Any) -> None:
    """Every column that is left out, and every place without a number, has its reason."""
    matrix = absent("streamvln", "mm_mlp_adapter")
    shown = needs(matrix, make_plans(matrix, None))
    assert header(shown).split() == ["setting", "VRAM", "host", "disk"]
    for said in (
        "no steps: elsewhere/R2R",
        "fits: not judged",
        "host: not judged",
        "GPU-h: not computed, as no card",
    ):
        assert said in " ".join(shown.split()), said


def test_what_a_card_computes_is_found_by_the_drivers_name() -> None:
    names = {
        "NVIDIA H100 80GB HBM3": "H100",
        "NVIDIA H100 PCIe": "H100 PCIe",
        "NVIDIA A100-SXM4-80GB": "A100",
        "NVIDIA A10": "A10",
        "NVIDIA H20": "H20",
        "NVIDIA GeForce RTX 4090": "RTX 4090",
        "NVIDIA RTX 6000 Ada Generation": "RTX 6000 Ada",
        "NVIDIA L40S": "L40S",
    }
    assert {name: peak(name) for name in names} == {name: PEAKS[card] for name, card in names.items()}
    assert peak("NVIDIA GeForce GTX 1080") is None
    assert (usual("80GB"), usual("79.2GiB"), usual("11GB")) == ("A100", None, None)


def test_the_expected_share_is_below_what_half_of_the_measured_trainings_reached() -> None:
    """Of the committed record: operations by the planner, seconds by the GPU, in the step that was fastest."""
    record = json.loads((ROOT / "results" / "gpu" / "nvidia_h200.json").read_text())
    assert record["machine"]["gpus"][0]["name"] == "NVIDIA H200"
    from benchmarks.gpu_evidence.pieces import SETTINGS
    from vlnbench.training.family.find import find_family
    from vlnbench.training.memory.plan import plan, window_flops

    chosen = find_family("", "streamvln-8b")
    shares = []
    for name in ("projector", "adapters", "tower"):
        measured = record["pieces"]["training"][name]["found"]["measured"]["ms_per_step"]
        options = chosen.family.check_plannable()(model="streamvln-8b", gpus="1x141GB", **SETTINGS[name])
        windows = options.batch * options.accumulation
        operations = windows * window_flops(plan(options, chosen), chosen)
        shares.append(operations / (min(measured[1:]) / 1000) / (PEAKS["H200"] * 1e12))
    assert [round(share, 2) for share in shares] == [0.55, 0.43, 0.5]


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ({"card": "H101"}, "run.card: unknown card 'H101': did you mean 'H100'?"),
        ({"host": "lots"}, "run.host lots: expected a size such as 80GB or 79.2GiB"),
        ({"windows": {"R2R": 0}}, "run.windows: R2R 0: expected 1 or more"),
        ({"machines": 2, "gpus_per_setting": 0}, "run.machines 2: needs GPUs"),
        ({"launch": ("srun",)}, "run.launch: is for several machines"),
        ({"machines": 2, "rendezvous": "here"}, "run.rendezvous here: expected HOST:PORT"),
    ],
)
def test_what_cannot_be_is_named(run: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=r"^run\.") as error:
        Execution(**run).check("run")
    assert str(error.value).startswith(said)


def test_the_size_of_a_feature_cache_is_said_beforehand(absent: Any) -> None:
    """Of 34 x 46 patches VGGT makes 2,048 numbers each; a tower that trains has no features."""
    cache = {"feature_cache": "features", "history": 1}
    matrix = absent("janusvln", "mm_vision", train=cache, plan_as="janusvln-7b", windows={"R2R": 631244})
    plans = make_plans(matrix, None)
    assert plans[matrix.settings[0].train_key]["cache"] == 631244 * 34 * 46 * 2048 * 2
    told = " ".join(needs(matrix, plans).split())
    assert "all features take 4,044 GB; feature_cache_gb 20 holds 0.5% of them" in told
    matrix = absent("janusvln", "mm_mlp", train=cache, plan_as="janusvln-7b", windows={"R2R": 631244})
    told = " ".join(needs(matrix, make_plans(matrix, None)).split())
    assert "its size is not known: how many frames R2R has is not known" in told


def test_features_of_frames_that_are_there_are_counted(folder: Path, write: Write) -> None:
    record = {"id": 1, "video": "images/s_r2r_000001", "instructions": ["Go."], "actions": [-1, 1, 1, 1, 1]}
    frames = folder / "sets" / "R2R" / str(record["video"]) / "rgb"
    frames.mkdir(parents=True)
    for step in range(5):
        (frames / f"{step:03d}.jpg").touch()
    (folder / "sets" / "R2R" / "annotations.json").write_text(json.dumps([record]))
    train = {"family": "streamvln", "checkpoint": "preset:streamvln-tiny", "trajectories": "sets", "steps": 4}
    train |= {"feature_cache": "features", "augment": False}
    parts = {"tunable_parts": [["mm_mlp_adapter"]]}
    matrix = read_matrix(write(train=train, axes=parts, run={"gpus_per_setting": 0}))
    (planned,) = make_plans(matrix, None).values()
    assert planned["cache"] == 5 * 8 * 8 * 128 * 4, "frames, patches, width and bytes"
