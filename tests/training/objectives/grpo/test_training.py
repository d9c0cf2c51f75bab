from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from agents.streamvln.network import load
from agents.streamvln.options import PARTS, StreamVLNTraining
from tests.fakes import make_episode
from tests.families import Whole
from tests.training.driver import log_of, run_all
from tests.training.objectives.grpo import doubles
from tests.training.recurrent import RECURRENT, RecurrentTraining
from tests.training.rewarded import rewarded
from vlnbench.cli import main
from vlnbench.data.sets import TRAJECTORIES
from vlnbench.errors import UsageError
from vlnbench.training.family.find import find_family
from vlnbench.training.objectives import make_objective
from vlnbench.training.objectives.grpo.episodes import Episodes
from vlnbench.training.objectives.grpo.kept import read_rollouts, recompute
from vlnbench.training.objectives.grpo.options import GRPOOptions
from vlnbench.training.objectives.grpo.prefix import ExpertFirst
from vlnbench.training.objectives.grpo.rollouts import RolloutRequest
from vlnbench.training.setup import Process

DOUBLES = f"{doubles.__name__}:"


def options(workshop: Path, out: Path, **changes: Any) -> dict[str, Any]:
    settings = {
        "checkpoint": workshop / "base",
        "trajectories": workshop / "trajectories",
        "out": out,
        "objective": "grpo",
        "rollouts": "steps",
        "rewards": [f"{DOUBLES}tokens"],
        "frames": 8,
        "history": 2,
        "future_steps": 4,
        "wording": "published",
        "group": 2,
        "batch": 4,
        "accumulation": 1,
        "steps": 2,
        "answer_tokens": 4,
        "log_every": 1,
        "warmup": 0.0,
        "schedule": "constant",
        "learning_rate": 1e-3,
        "zero": 0,
        "gradient_checkpointing": False,
    }
    return {**settings, **changes}


def lesson(workshop: Path, out: Path) -> dict[str, Any]:
    """A training on labels, after which a network names actions, and so has something to be judged by."""
    own = {each.name for each in fields(GRPOOptions)}
    given = options(workshop, out, steps=30, learning_rate=1e-2, wording="evaluation", objective="supervised")
    return {name: value for name, value in given.items() if name not in own}


def walks(workshop: Path, out: Path, **changes: Any) -> dict[str, Any]:
    """The same in simulators."""
    settings = {
        "rollouts": "episodes",
        "rewards": [f"{DOUBLES}actions", "near"],
        "benchmark": "rxr-ce",
        "split": "val_unseen",
        "data_root": workshop / "data",
        "allow_partial": True,
        "env": f"{DOUBLES}ColorPlane",
        "envs": 1,
        "step_cap": 12,
    }
    return options(workshop, out, **{**settings, **changes})


def digests(folder: Path) -> dict[str, str]:
    return {
        name: hashlib.sha256(parameter.detach().numpy().tobytes()).hexdigest()
        for name, parameter in load(folder).named_parameters()
    }


@pytest.fixture(scope="module")
def runs(workshop: Path) -> dict[str, Path]:
    """Folders of trainings, all in one process, for importing DeepSpeed takes the most time."""
    trained = workshop / "trained"
    long = {"steps": 4, "save_every": 2, "iterations": 2, "beta": 0.05}
    taught = workshop / "taught"
    first = lesson(workshop, taught)
    named = {
        "projector": options(workshop, trained, tunable_parts=[PARTS[1]], gradient_checkpointing=True),
        "constant": options(workshop, trained, rewards=[f"{DOUBLES}constant"], steps=1),
        "in one": options(workshop, trained, steps=1, batch=8),
        "in four": options(workshop, trained, steps=1, batch=2, accumulation=4),
        "in four, zero 2": options(workshop, trained, steps=1, batch=2, accumulation=4, zero=2),
        "zero 3": options(workshop, trained, zero=3, beta=0.1, learning_rate=1e-2),
        "adapters": options(
            workshop, trained, tunable_parts=[], lora_rank=2, lora_dropout=0.0, beta=0.1, learning_rate=1e-2
        ),
        "whole": options(workshop, trained, **long),
        "walks": walks(workshop, trained, **long, batch=6, expert_prefix=0.5, stop_beyond=1.0),
    }
    for name, request in named.items():
        request["out"], request["checkpoint"] = trained / name, taught / "model"
    answers = run_all([first, *named.values()])
    assert [each.get("error") for each in answers] == [None] * (1 + len(named))
    return {name: trained / name for name in named}


@pytest.mark.slow
def test_frozen_parts_keep_every_byte_and_tuned_ones_move(workshop: Path, runs: dict[str, Path]) -> None:
    before, after = digests(workshop / "taught" / "model"), digests(runs["projector"] / "model")
    moved = {name for name in before if before[name] != after[name]}
    assert moved == {name for name in before if "mm_projector" in name}


@pytest.mark.slow
def test_the_log_tells_of_rollouts_and_ratios(runs: dict[str, Path]) -> None:
    first, second = log_of(runs["projector"])
    told = first["grpo"]
    assert told["ratio"] == 1.0
    assert told["drawn_apart"] < 1e-4
    assert 0 < told["tokens"] <= 4
    assert told["reward"] == pytest.approx(told[f"reward_{DOUBLES}tokens"])
    assert first["seconds"]["rollout"] > 0
    assert first["memory_rollout"] == [None]
    assert first["grad_norm"] > 0, "without ZeRO, too"
    assert second["step"] == 2
    units = json.loads((runs["projector"] / "train.json").read_text())["units"]
    assert units == {
        "completions_per_gpu": 4,
        "prompts_per_update": 2,
        "group": 2,
        "windows_per_forward_pass": 4,
        "optimizer_steps_per_update": 1,
    }


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("whole", 4), ("walks", 6)])
def test_rewards_can_be_computed_again(runs: dict[str, Path], name: str, count: int) -> None:
    """From what the folder keeps: those of then to the last bit, others, and the advantages."""
    kept = list(read_rollouts(runs[name]))
    again = list(recompute(runs[name]))
    assert [each for each in kept if each.completion] == [each for each, _ in again]
    assert all(dict(each.rewards) == found for each, found in again)
    assert [each.update for each in kept] == [1] * count + [2] * count
    learned = [each for each in kept if each.advantage is not None]
    assert learned
    assert sum(each.advantage or 0.0 for each in learned) == pytest.approx(0.0, abs=1e-9)
    log = log_of(runs[name])
    means = [sum(found.values()) for each, found in again if each.update == 1]
    assert log[0]["grpo"]["reward"] == pytest.approx(sum(means) / len(means), abs=1e-6)
    others = [found for _, found in recompute(runs[name], ["format"])]
    assert all(found.keys() == {"format"} for found in others)


@pytest.mark.slow
def test_a_constant_reward_changes_no_byte(workshop: Path, runs: dict[str, Path]) -> None:
    assert log_of(runs["constant"])[0]["grpo"]["no_spread"] == 1.0
    assert digests(runs["constant"] / "model") == digests(workshop / "taught" / "model")


@pytest.mark.slow
def test_batches_and_shards_do_not_change_the_update(workshop: Path, runs: dict[str, Path]) -> None:
    norms = [log_of(runs[name])[0]["loss"] for name in ("in one", "in four", "in four, zero 2")]
    assert norms[1:] == [pytest.approx(norms[0], abs=1e-5)] * 2
    lengths = [log_of(runs[name])[0]["grad_norm"] for name in ("in one", "in four", "in four, zero 2")]
    assert lengths[1:] == [pytest.approx(lengths[0], rel=1e-3)] * 2
    first = dict(load(runs["in one"] / "model").named_parameters())
    for name in ("in four", "in four, zero 2"):
        other = dict(load(runs[name] / "model").named_parameters())
        # The first step of AdamW is the sign of the gradient: what is all but 0 may go either way.
        same = [bool(((first[key] - other[key]).abs() < 1e-5).float().mean() > 0.99) for key in first]
        assert all(same), name


@pytest.mark.slow
def test_two_processes_make_the_update_of_one(workshop: Path, runs: dict[str, Path], tmp_path: Path) -> None:
    request = options(
        workshop, tmp_path / "two", steps=1, batch=4, zero=2, checkpoint=workshop / "taught" / "model"
    )
    (answer,) = run_all([request], processes=2)
    assert "error" not in answer
    one, two = (log_of(folder)[0] for folder in (runs["in one"], tmp_path / "two"))
    assert two["loss"] == pytest.approx(one["loss"], abs=1e-5)
    for name in ("reward", "tokens", "no_spread", "entropy"):
        assert two["grpo"][name] == pytest.approx(one["grpo"][name], abs=1e-4), name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zero 3", "adapters"])
def test_zero_3_and_adapters_learn_and_stray_from_what_they_were(runs: dict[str, Path], name: str) -> None:
    """The reference is a whole copy of a network that is scattered, and a network without its adapters."""
    first, second = (entry["grpo"] for entry in log_of(runs[name]))
    assert first["ratio"] == second["ratio"] == 1.0
    assert first["kl"] == 0.0
    assert second["kl"] > 0
    assert first["drawn_apart"] < 1e-4
    assert second["drawn_apart"] < 1e-4


@pytest.mark.slow
def test_walks_in_simulators_are_learned_from(runs: dict[str, Path]) -> None:
    entries = log_of(runs["walks"])
    told = entries[0]["grpo"]
    assert told["simulator_s"] > 0
    assert 1 <= told["actions"] <= 12
    assert told["reward"] == pytest.approx(told[f"reward_{DOUBLES}actions"] + told["reward_near"], abs=1e-5)
    assert sum(entry["grpo"].get("unreachable", 0) for entry in entries) >= 1, "episode 8 has had its turn"
    assert "ratio" not in entries[1]["grpo"] or entries[1]["grpo"]["ratio"] != 1.0, "the second step on the same"


def test_walks_of_a_group_share_the_start_and_differ_in_seed(workshop: Path) -> None:
    made = _episodes(workshop)
    tasks = [made._task(RolloutRequest(1, member, "5"), update=5) for member in range(4)]
    assert len({task.episode.episode_id for task in tasks}) == 1
    assert len({task.seed for task in tasks}) == 4
    assert tasks[0] == made._task(RolloutRequest(1, 0, "5"), update=5)
    assert made._task(RolloutRequest(1, 0, "6"), update=6).seed != tasks[0].seed


def test_walks_end_and_begin_where_they_should(workshop: Path) -> None:
    made = _episodes(workshop, stop_beyond=2.0, step_cap=30, expert_prefix=0.5, prefix_updates=4)
    reference = make_episode(1, distance=4.0).ground_truth
    assert reference is not None
    count = len(reference.actions)  # 17
    assert made._task(RolloutRequest(0, 0, "1"), 1).max_steps == min(30, 2 * count)
    prefixes = [made._task(RolloutRequest(0, 0, str(update)), update).kind for update in (1, 3, 5)]
    lengths = [len(each.actions) if isinstance(each, ExpertFirst) else 0 for each in prefixes]
    assert lengths == [count // 2, count // 4, 0]


def _episodes(workshop: Path, **changes: Any) -> Episodes:
    settings = walks(workshop, workshop / "none", **changes)
    settings["rewards"] = tuple(settings["rewards"])
    kind = rewarded(StreamVLNTraining)(**{**settings, "checkpoint": str(workshop / "base")})
    return Episodes(kind, find_family("", str(workshop / "base"))[0].load_trains())


ALONE = Process(0, 0, 1, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group": 1}, "--group 1: expected 2 or more"),
        ({"group": 3}, "--batch 4 x --accumulation 1 is 4 answers or walks per update: expected a multiple of"),
        ({"temperature": 0.0}, "--temperature 0.0: expected a number above 0"),
        ({"rollouts": None}, "--rollouts: --objective grpo needs it"),
        ({"dtype": "mixed"}, "--dtype mixed: not with --objective grpo"),
        ({"top_p": 0.0}, "--top-p 0.0: expected a number above 0, up to 1"),
        ({"clip_low": 1.0}, "--clip-low 1.0: expected"),
        ({"beta": -1.0}, "--beta -1.0: expected 0 or more"),
        ({"iterations": 3, "save_every": 500}, "--save-every 500: expected a multiple of --iterations 3"),
        ({"expert_prefix": 0.5}, "--expert-prefix: for --rollouts episodes; leave it out"),
    ],
    ids=lambda value: "" if isinstance(value, str) else ",".join(value),
)
def test_options_that_cannot_be(workshop: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        rewarded(StreamVLNTraining)(**options(workshop, workshop / "none", **changes)).check()
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 200}, "ask for 100 prompts in an update, and there are 10"),
        ({"rewards": (f"{DOUBLES}undefined",)}, "it returned nan; expected a finite number"),
        ({"rewards": (f"{DOUBLES}broken",)}, "it raised KeyError"),
        (
            {"sets": ("Questions",)},
            "conversations.json: questions have no actions that answers could be compared with",
        ),
        ({"feature_cache": Path("cache"), "augment": False}, "--feature-cache: for --objective supervised"),
    ],
    ids=lambda value: "" if isinstance(value, str) else ",".join(value),
)
def test_what_cannot_be_learned_from_is_one_line(workshop: Path, changes: dict[str, Any], message: str) -> None:
    made = rewarded(StreamVLNTraining)(**options(workshop, workshop / "none", **changes))
    family = find_family("", str(workshop / "base"))[0].load_trains()
    with pytest.raises(UsageError) as caught:
        make_objective(made, family, ALONE)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_walks_whose_labels_are_not_what_was_done_are_one_line(workshop: Path, tmp_path: Path) -> None:
    shutil.copytree(workshop / "trajectories" / "R2R", tmp_path / "DAgger")
    file = tmp_path / "DAgger" / TRAJECTORIES
    records = json.loads(file.read_text())
    records[1]["labels"] = [1] * len(records[1]["actions"])
    file.write_text(json.dumps(records))
    made = rewarded(StreamVLNTraining)(
        **options(workshop, workshop / "none", trajectories=tmp_path, sets=("DAgger",))
    )
    family = find_family("", str(workshop / "base"))[0].load_trains()
    with pytest.raises(UsageError, match=r"annotations.json: has labels of single steps \(collect --relabel\)"):
        make_objective(made, family, ALONE)


def test_a_family_without_chances_is_refused(workshop: Path) -> None:
    made = rewarded(RecurrentTraining)(
        checkpoint="preset:recurrent-small", out=workshop / "none", objective="grpo", rollouts="episodes", group=2
    )
    with pytest.raises(UsageError, match="models of this family give no log-probabilities of what they do"):
        make_objective(made, Whole(RECURRENT), ALONE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--rewards", f"{DOUBLES}undefined"],
            f"reward {DOUBLES}undefined: for made-up rollouts, before anything",
        ),
        (
            ["--rewards", f"{DOUBLES}broken"],
            f"reward {DOUBLES}broken: for made-up rollouts, before anything ran, it",
        ),
        (
            ["--temperature", "0"],
            "--temperature 0.0: expected a number above 0",
        ),
        (
            ["--sets", "Questions"],
            "conversations.json: questions have no actions that answers could be compared with",
        ),
        (
            ["--family", "tests.training.recurrent:RECURRENT"],
            "--objective grpo: models of this family give no log-",
        ),
    ],
    ids=["not a number", "raises", "temperature 0", "no labels", "no log-probabilities"],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    workshop: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out, family = workshop / "refused", "--family" in arguments
    checkpoint = "preset:recurrent-small" if family else str(workshop / "base")
    given = ["--checkpoint", checkpoint, "--out", str(out), "--trajectories", str(workshop / "trajectories")]
    grpo = ["--objective", "grpo", "--rollouts", "steps", "--group", "2", "--batch", "4", "--accumulation", "1"]
    assert main(["train", *given, *grpo, *([] if family else ["--frames", "8"]), *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("vlnbench: error: ")
    assert message in line
    assert not out.exists()
