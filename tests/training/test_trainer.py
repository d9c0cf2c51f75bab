from __future__ import annotations

import hashlib
import json
import shutil
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch

from agents.streamvln.family import create
from agents.streamvln.network import load
from agents.streamvln.options import PARTS, part_of
from tests.agents.streamvln.test_conversations import write_set
from tests.training.driver import kill_after, log_of, run_all
from tests.training.workshop import SMALL, TEXTS, write_walks

pytestmark = pytest.mark.slow  # importing DeepSpeed alone takes seconds

RATES = {"learning_rate": 1e-3, "vision_tower_lr": 1e-4, "projector_lr": 3e-3}


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small checkpoint, base/, and a trajectory set, trajectories/R2R."""
    root = tmp_path_factory.mktemp("workshop")
    create(SMALL, root / "base", TEXTS * 20, seed=0)
    write_walks(root / "trajectories/R2R", (40, 12, 9))
    return root


def options(workshop: Path, out: Path, **changes: Any) -> dict[str, Any]:
    settings = {
        "checkpoint": workshop / "base",
        "trajectories": workshop / "trajectories",
        "out": out,
        "steps": 2,
        "log_every": 1,
        "workers": 0,
        "warmup": 0.0,
        "schedule": "constant",
        **RATES,
    }
    return {**settings, **changes}


def digests(folder: Path) -> dict[str, str]:
    return {
        name: hashlib.sha256(parameter.detach().numpy().tobytes()).hexdigest()
        for name, parameter in load(folder).named_parameters()
    }


COMBINATIONS = [parts for size in (1, 2, 3) for parts in combinations(PARTS, size)]
STAGES = {
    **{f"zero-{stage}": {"zero": stage} for stage in range(4)},
    "offloaded": {"zero": 2, "offload_optimizer": True},
    "all offloaded": {"zero": 3, "offload_optimizer": True, "offload_parameters": True},
}


def with_parts(request: dict[str, Any], parts: tuple[str, ...]) -> dict[str, Any]:
    """The request for these parts alone: a learning rate of a frozen part would be refused."""
    unused = [
        name for name, part in zip(("vision_tower_lr", "projector_lr"), PARTS, strict=False) if part not in parts
    ]
    return {name: value for name, value in request.items() if name not in unused} | {"tunable_parts": list(parts)}


@pytest.fixture(scope="module")
def runs(workshop: Path) -> dict[str, dict[str, Any]]:
    """Answers by name, with each run's folder: all in one process, for importing DeepSpeed takes the most time."""
    trained = workshop / "trained"
    shutil.copytree(workshop / "trajectories" / "R2R", workshop / "two sets" / "R2R")
    shutil.copytree(workshop / "trajectories" / "R2R", workshop / "two sets" / "EnvDrop")
    shutil.copytree(workshop / "trajectories" / "R2R", workshop / "questions" / "R2R")
    write_set(workshop / "questions" / "Questions")
    both = {"trajectories": workshop / "two sets", "steps": None}
    named = {f"frozen {parts}": with_parts(options(workshop, trained), parts) for parts in COMBINATIONS}
    named |= {name: options(workshop, trained, steps=1, **changes) for name, changes in STAGES.items()}
    packed = {"zero": 0, "gradient_checkpointing": False}
    for name, changes in {"mixed": {}, "mixed, packed": packed}.items():
        named[name] = options(workshop, trained, steps=1, dtype="mixed", **changes)
    named["adapters"] = with_parts(options(workshop, trained, lora_rank=4, learning_rate=1e-2), ())
    named |= {
        "one set": options(workshop, trained, **both),
        "with envdrop": options(workshop, trained, envdrop=True, **both),
        "matched": options(workshop, trained, envdrop=True, steps_of=["R2R"], **both),
        "twice": options(workshop, trained, sets=["R2R:2"], epochs=0.5, **both),
        "preset": options(workshop, trained, checkpoint="preset:streamvln-tiny", steps=1),
        "preset for questions": options(
            workshop,
            trained,
            checkpoint="preset:streamvln-tiny",
            trajectories=workshop / "questions",
            vocabulary_of=["Questions"],
            steps=1,
        ),
        "whole by muon": with_parts(options(workshop, trained, **RESUMED, **MUON), (PARTS[1],)),
        "larger images": options(workshop, trained, image_size=48, steps=1),
        "other rhythm": options(workshop, trained, frames=64, history=4, future_steps=2, steps=1),
        "questions": options(
            workshop,
            trained,
            checkpoint="preset:streamvln-tiny",
            trajectories=workshop / "questions",
            sets=["R2R", "Questions:4"],
            wording="evaluation",
            group_by_length=True,
            steps=3,
        ),
        "whole": with_parts(options(workshop, trained, **RESUMED), (PARTS[1],)),
        "accumulated": options(workshop, trained, zero=2, batch=2, accumulation=2, steps=3),
        "tracked": options(workshop, trained, tracker=[f"{FAKES}Recording", f"{FAKES}RaisesInLog"]),
    }
    for name, request in named.items():
        request["out"] = trained / name
    answers = run_all([*named.values(), named["one set"]])
    assert answers.pop()["steps"] == 0  # complete: nothing is done again
    return {name: answer | {"out": trained / name} for name, answer in zip(named, answers, strict=True)}


FAKES = "tests.fake_trackers:"
RESUMED = {"steps": 6, "save_every": 2, "lora_rank": 4}
MUON = {"optimizer": "muon", "zero": 0}


@pytest.mark.parametrize("parts", COMBINATIONS, ids="+".join)
def test_frozen_parts_keep_every_byte_and_tuned_ones_move(
    workshop: Path, runs: dict[str, dict[str, Any]], parts: tuple[str, ...]
) -> None:
    run = runs[f"frozen {parts}"]
    assert run["steps"] == 2
    before, after = digests(workshop / "base"), digests(run["out"] / "model")
    for name in before:
        trained = part_of(name) in parts and "post_layernorm" not in name
        if not trained:
            assert after[name] == before[name], name
        elif "embed_tokens" not in name and "k_proj.bias" not in name:  # those may have no gradient
            assert after[name] != before[name], name


def test_every_zero_stage_trains_alike_and_at_the_rates_of_the_parts(
    workshop: Path, runs: dict[str, dict[str, Any]]
) -> None:
    base = dict(load(workshop / "base").named_parameters())
    expected = {PARTS[0]: 1e-4, PARTS[1]: 3e-3, PARTS[2]: 1e-3}
    for name in STAGES:
        assert runs[name]["loss"] == pytest.approx(runs["zero-0"]["loss"], abs=1e-6)
        largest = dict.fromkeys(PARTS, 0.0)
        for key, parameter in load(runs[name]["out"] / "model").named_parameters():
            moved = float((parameter - base[key]).detach().abs().max())
            largest[part_of(key)] = max(largest[part_of(key)], moved)
        for part, rate in expected.items():  # the first step of Adam moves by its learning rate
            assert largest[part] == pytest.approx(rate, rel=2e-3), (name, part)
        (entry,) = log_of(runs[name]["out"])
        assert entry["learning_rates"] == expected
        assert entry["memory"][0]["host"] > 0


@pytest.mark.parametrize("name", ["mixed", "mixed, packed"])
def test_products_alone_are_in_half_precision(runs: dict[str, dict[str, Any]], name: str) -> None:
    loss, exact = runs[name]["loss"], runs["zero-0"]["loss"]
    assert loss == pytest.approx(exact, rel=5e-3)
    assert loss != pytest.approx(exact, rel=1e-6)
    assert {parameter.dtype for parameter in load(runs[name]["out"] / "model").parameters()} == {torch.float32}


def test_two_processes_see_the_batches_of_one(
    workshop: Path, runs: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    requests = [
        options(workshop, tmp_path / f"two-{zero}", zero=zero, batch=2, accumulation=1, steps=3) for zero in (2, 3)
    ]
    dealt = {"zero": 0, "gradient_checkpointing": False}  # packed, so the windows go to other ranks than otherwise
    requests.append(options(workshop, tmp_path / "dealt", **dealt, batch=2, accumulation=1, steps=3))
    alone = runs["accumulated"]
    for request, answer in zip(requests, run_all(requests, processes=2), strict=True):
        assert answer["loss"] == pytest.approx(alone["loss"], abs=1e-5)
        one_model, two_models = (load(folder / "model") for folder in (alone["out"], request["out"]))
        for first, second in zip(one_model.parameters(), two_models.parameters(), strict=True):
            torch.testing.assert_close(first, second, atol=2e-4, rtol=0)
        assert len(log_of(request["out"])[-1]["memory"]) == 2


@pytest.mark.parametrize(("whole", "changes"), [("whole", {}), ("whole by muon", MUON)])
def test_a_resumed_run_is_bit_equal(
    workshop: Path, runs: dict[str, dict[str, Any]], tmp_path: Path, whole: str, changes: dict[str, Any]
) -> None:
    """Killed after a save: the run goes on and ends with the same bytes, dropout of adapters included."""
    stopped = with_parts(options(workshop, tmp_path / "stopped", **RESUMED, **changes), (PARTS[1],))
    kill_after(stopped, 2)
    interrupted = not (tmp_path / "stopped" / "model").exists()
    run_all([stopped])
    assert interrupted
    assert json.loads((tmp_path / "stopped" / "threads.json").read_text()) == {"threads": 1}
    assert digests(tmp_path / "stopped" / "model") == digests(runs[whole]["out"] / "model")


def test_timing_a_batch_changes_nothing(workshop: Path, tmp_path: Path) -> None:
    """A run that chooses its threads ends with the bytes of one that is told them, dropout included."""
    chosen, told = (
        with_parts(options(workshop, tmp_path / name, lora_rank=4), (PARTS[1],)) for name in ("chosen", "told")
    )
    run_all([chosen], threads="")
    threads = json.loads((tmp_path / "chosen" / "threads.json").read_text())["threads"]
    run_all([told], threads=str(threads))
    assert digests(tmp_path / "chosen" / "model") == digests(tmp_path / "told" / "model")


def test_adapters_train_beside_a_frozen_model_and_are_merged(
    workshop: Path, runs: dict[str, dict[str, Any]]
) -> None:
    before, after = digests(workshop / "base"), digests(runs["adapters"]["out"] / "model")
    changed = {name for name in before if after[name] != before[name]}
    projections = {name for name in before if name.startswith("model.layers.") and name.endswith("_proj.weight")}
    assert changed == projections


def test_a_model_acts_in_the_rhythm_that_it_was_trained_in(runs: dict[str, dict[str, Any]]) -> None:
    rhythms = [load(runs[name]["out"] / "model").config for name in ("other rhythm", "zero-3")]
    found = [(each.num_frames, each.num_history, each.num_future_steps) for each in rhythms]
    assert found == [(64, 4, 2), (32, 8, 4)]


def test_images_can_have_another_size(workshop: Path, runs: dict[str, dict[str, Any]]) -> None:
    trained = load(runs["larger images"]["out"] / "model")
    assert (trained.config.vision.image_size, trained.config.image_tokens) == (48, 4)
    expected = load(workshop / "base", image_size=48).tower.get_submodule("embeddings.position_embedding").weight
    moved = trained.tower.get_submodule("embeddings.position_embedding").weight - expected
    assert 0 < float(moved.detach().abs().max()) < 2e-4  # one step of Adam at the tower's rate, 1e-4
    pixels = torch.zeros(1, 3, 48, 48)
    assert trained.project(trained.patch_features(pixels)).shape == (1, 4, SMALL.hidden_size)


def test_steps_can_be_those_of_other_sets(runs: dict[str, dict[str, Any]]) -> None:
    steps = {name: runs[name]["steps"] for name in ("one set", "with envdrop", "matched", "twice")}
    assert steps == {"one set": 2, "with envdrop": 4, "matched": 2, "twice": 2}


def test_trackers_are_told_the_log_and_change_nothing(runs: dict[str, dict[str, Any]]) -> None:
    out = runs["tracked"]["out"]
    told = [json.loads(line) for line in (out / "told.jsonl").read_text().splitlines() if '["run' not in line]
    logged = log_of(out)
    assert [(kind, step) for kind, step, _ in told] == [("log", 1), ("log", 2), ("finish", None)]
    for (_, _, values), entry in zip(told, logged, strict=False):
        assert (values["loss"], values["windows_per_s"]) == (entry["loss"], entry["windows_per_s"])
        assert {f"learning_rates/{name}" for name in entry["learning_rates"]} <= set(values)
        assert values["memory/0/host"] > 0
    assert (told[-1][2]["loss"], told[-1][2]["steps"]) == (runs["tracked"]["loss"], 2)
    assert digests(out / "model") == digests(runs[f"frozen {COMBINATIONS[-1]}"]["out"] / "model")


def test_a_preset_trains_from_scratch(runs: dict[str, dict[str, Any]]) -> None:
    assert runs["preset"]["steps"] == 1
    assert (runs["preset"]["out"] / "model" / "tokenizer.json").exists()


def test_a_preset_trains_on_questions_beside_trajectories(runs: dict[str, dict[str, Any]]) -> None:
    assert runs["questions"]["steps"] == 3
    out = runs["questions"]["out"]
    assert json.loads((out / "train.json").read_text())["data"]["Questions"] == {"windows": 2, "weight": 4.0}
    texts = (out / "model" / "tokenizer.json").read_text(encoding="utf-8")
    assert "What" in texts  # a word of the questions alone


def test_a_preset_has_words_of_sets_that_it_is_not_trained_on(runs: dict[str, dict[str, Any]]) -> None:
    out = runs["preset for questions"]["out"]
    assert list(json.loads((out / "train.json").read_text())["data"]) == ["R2R"]
    word = '"What"'
    assert word in (out / "model" / "tokenizer.json").read_text(encoding="utf-8")
    assert word not in (runs["preset"]["out"] / "model" / "tokenizer.json").read_text(encoding="utf-8")


def test_counts_of_parameters_and_data_are_recorded(runs: dict[str, dict[str, Any]]) -> None:
    counts = json.loads((runs[f"frozen {(PARTS[1],)}"]["out"] / "counts.json").read_text())
    sizes = dict.fromkeys(PARTS, 0)
    for name, parameter in load(runs[f"frozen {(PARTS[1],)}"]["out"] / "model").named_parameters():
        sizes[part_of(name)] += parameter.numel()
    assert counts["parameters"] == sum(sizes.values())
    assert counts["trainable"] == {**dict.fromkeys(PARTS, 0), PARTS[1]: sizes[PARTS[1]], "lora": 0}
    found = {"trajectories": 3, "instructions": 6, "conversations": 0, "windows": 8, "weight": 1.0}
    assert counts["data"] == {"R2R": found}


def test_bad_input_is_one_line_and_writes_nothing(
    workshop: Path, runs: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    contradicting = tmp_path / "ds.json"
    contradicting.write_text(json.dumps({"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}))
    optimizing = tmp_path / "optimizer.json"
    optimizing.write_text(json.dumps({"optimizer": {"type": "AdamW"}}))
    lost = tmp_path / "lost"
    shutil.copytree(workshop / "trajectories", lost)
    next(lost.rglob("003.jpg")).unlink()
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes").write_text("mine")
    cases: dict[str, dict[str, Any]] = {
        "unknown tunable part 'mm_vision_towr': did you mean 'mm_vision_tower'": {
            "tunable_parts": ["mm_vision_towr"]
        },
        "--tunable-parts: nothing would be trained": {"tunable_parts": []},
        "--vision-tower-lr: mm_vision_tower is not in --tunable-parts": {"tunable_parts": [PARTS[1]]},
        "--zero 4: expected 0 to 3": {"zero": 4},
        "--offload-parameters: needs --zero 3": {"offload_parameters": True},
        "--batch 0: expected 1 or more": {"batch": 0},
        "--image-size 3: expected at least a patch, 16 pixels": {"image_size": 3},
        "--tracker: unknown tracker 'tensorbord': did you mean 'tensorboard'": {"tracker": ["tensorbord"]},
        "zero_optimization.stage 3 contradicts the options, which make it 2": {"deepspeed": contradicting},
        "optimizer: would override the learning rates": {"deepspeed": optimizing},
        "annotations.json: not there": {"sets": ["R2"]},
        "--sets R2R ./R2R/:0.3: one set twice; name it once": {"sets": ["R2R", "./R2R/:0.3"]},
        "--sets EnvDrop:0.5 EnvDrop: one set twice (--envdrop adds EnvDrop)": {
            "sets": ["EnvDrop:0.5"],
            "envdrop": True,
        },
        "--steps-of R2R R2R:2: one set twice": {"steps": None, "steps_of": ["R2R", "R2R:2"]},
        "--sets R2R:0: expected NAME or NAME:WEIGHT": {"sets": ["R2R:0"]},
        "(1 frames missing)": {"trajectories": lost},
        "--checkpoint streamvln-tiney: no such file or folder, and unknown checkpoint 'streamvln-tiney'": {
            "checkpoint": "streamvln-tiney"
        },
        "--checkpoint preset:streamvln-tin: unknown preset 'streamvln-tin'": {
            "checkpoint": "preset:streamvln-tin"
        },
        "base has its words, only a preset:NAME is given some": {"vocabulary_of": ["R2R"]},
        "R3R/annotations.json: not there": {"checkpoint": "preset:streamvln-tiny", "vocabulary_of": ["R3R"]},
        "--feature-cache: mm_vision_tower is trained": {"feature_cache": tmp_path / "cache"},
        "not one step; lower --batch": {"steps": None, "batch": 100},
        "not empty and not the folder of a training": {"out": other},
        "num_history 5: expected a divisor of num_frames, 32": {"history": 5},
        "holds another training: ": {"out": runs["one set"]["out"], "learning_rate": 2e-3},
    }
    requests = [{**options(workshop, tmp_path / "out"), **changes} for changes in cases.values()]
    for expected, answer in zip(cases, run_all(requests), strict=True):
        assert expected in answer.get("error", "trained"), expected
        assert "\n" not in answer["error"]
    assert not (tmp_path / "out").exists()
