"""Trainings by rewards that are killed, go on and end with the same bytes; and what they leave."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from agents.janusvln.options import FAMILY as JANUSVLN
from agents.janusvln.options import PARTS as JANUS_PARTS
from agents.streamvln.agent import StreamVLNAgent
from agents.streamvln.options import StreamVLNOptions
from agents.vlnce.agent import VLNCEAgent
from agents.vlnce.family import TABLE as RECURRENT_TABLE
from agents.vlnce.options import ACTION_HEAD, STATE_ENCODER, VLNCEOptions
from agents.vlnce.options import FAMILY as VLNCE
from tests.fakes import make_episode
from tests.families import Whole
from tests.training.driver import ROOT, log_of, run_all
from tests.training.objectives.grpo.doubles import ENDS_AT
from tests.training.objectives.grpo.test_learner import TEXTS
from tests.training.objectives.grpo.test_training import DOUBLES, lesson, options, walks
from vlnbench.interfaces import Action, Observation
from vlnbench.training.family.trains import rule_of
from vlnbench.training.objectives.grpo.kept import FOLDER

SHORT: dict[str, Any] = {"rewards": [f"{DOUBLES}ending"], "steps": 3, "save_every": 2}
WALKED: dict[str, Any] = {**SHORT, "rewards": [f"{DOUBLES}ending", "near"], "step_cap": 12}
NAMES = ("steps", "walks", "recurrent walks", "walks seen by VGGT")


def requests(workshop: Path, folder: Path) -> dict[str, dict[str, Any]]:
    """Three updates each, of two prompts with two answers or walks; a state is saved after the second.

    With the reference, with the expert first, and with parts frozen.
    """
    recurrent = {
        "family": "vlnce",
        "checkpoint": workshop / "recurrent",
        "tunable_parts": [STATE_ENCODER, ACTION_HEAD],
        "beta": 0.05,
    }
    geometry = {
        "family": "janusvln",
        "checkpoint": workshop / "seen" / "model",
        "tunable_parts": [JANUS_PARTS[2]],
        "answer_tokens": 3,
        "beta": 0.05,
    }
    taught = {"checkpoint": workshop / "taught" / "model"}
    made = {
        "steps": options(workshop, folder / "steps", **SHORT, **taught, beta=0.05),
        "walks": walks(workshop, folder / "walks", **WALKED, **taught, expert_prefix=0.5),
        "recurrent walks": walks(workshop, folder / "recurrent walks", **WALKED, **recurrent),
        "walks seen by VGGT": walks(
            workshop, folder / "walks seen by VGGT", **{**WALKED, "step_cap": 5}, **geometry
        ),
    }
    del made["recurrent walks"]["history"], made["recurrent walks"]["wording"]
    for name in NAMES[2:]:
        del made[name]["frames"], made[name]["future_steps"]
    return made


def hashes(folder: Path) -> dict[str, str]:
    """Of every parameter's bytes."""
    stored = load_file(folder / "model.safetensors")
    return {name: hashlib.sha256(each.numpy().tobytes()).hexdigest() for name, each in stored.items()}


@pytest.fixture(scope="module")
def ended(workshop: Path) -> tuple[Path, Path]:
    """Folders of the same trainings: those that were left alone, and those that were killed and went on."""
    Whole(VLNCE).create("cma-tiny", workshop / "recurrent", TEXTS, seed=0)
    Whole(JANUSVLN).create("janusvln-tiny", workshop / "geometry", TEXTS, seed=0)
    whole, killed = workshop / "whole", workshop / "killed"
    taught = lesson(workshop, workshop / "taught")
    seen = {**taught, "family": "janusvln", "checkpoint": workshop / "geometry", "out": workshop / "seen"}
    del seen["frames"], seen["future_steps"]
    answers = run_all([taught, seen, *requests(workshop, whole).values()])
    assert [each.get("error") for each in answers] == [None] * (2 + len(NAMES))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    started = {}
    for name, request in requests(workshop, killed).items():
        started[name] = subprocess.Popen(
            [sys.executable, "-m", "tests.training.driver", json.dumps([request], default=str)],
            cwd=ROOT,
            env={**environment, ENDS_AT: str(killed / name / "state" / "step-2")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    for name, process in started.items():
        assert process.wait(timeout=600) == -signal.SIGKILL, name
        assert not (killed / name / "model").exists()
    answers = run_all(list(requests(workshop, killed).values()))
    assert [each.get("error") for each in answers] == [None] * len(NAMES)
    return whole, killed


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(ended: tuple[Path, Path], name: str) -> None:
    whole, killed = (folder / name for folder in ended)
    assert hashes(killed / "model") == hashes(whole / "model")
    for wanted, found in zip(log_of(whole), log_of(killed), strict=True):
        assert found["step"] == wanted["step"]
        assert found["loss"] == wanted["loss"]
        told, known = (
            {key: each for key, each in entry["grpo"].items() if not key.endswith("_s")}
            for entry in (found, wanted)
        )
        assert told == known
    files = [{path.name: path.read_bytes() for path in (folder / FOLDER).iterdir()} for folder in (whole, killed)]
    assert files[0] == files[1]
    assert sorted(files[0]) == [f"update-{number:06}.jsonl.gz" for number in (1, 2, 3)]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_first_step_of_every_update_has_a_ratio_of_1(ended: tuple[Path, Path], name: str) -> None:
    entries = [entry["grpo"] for entry in log_of(ended[0] / name)]
    learned = [entry for entry in entries if "ratio" in entry]
    assert learned, "some group had spread"
    assert {entry["ratio"] for entry in learned} == {1.0}
    assert max(entry["drawn_apart"] for entry in learned) < 1e-4


@pytest.mark.slow
def test_frozen_parts_of_a_recurrent_network_keep_every_byte(ended: tuple[Path, Path], workshop: Path) -> None:
    before, after = hashes(workshop / "recurrent"), hashes(ended[0] / "recurrent walks" / "model")
    assert {rule_of(RECURRENT_TABLE, each).part for each in before if before[each] != after[each]} == {
        STATE_ENCODER,
        ACTION_HEAD,
    }


@pytest.mark.slow
def test_frozen_parts_beside_a_geometry_encoder_keep_every_byte(ended: tuple[Path, Path], workshop: Path) -> None:
    before, after = hashes(workshop / "seen" / "model"), hashes(ended[0] / "walks seen by VGGT" / "model")
    part_of = Whole(JANUSVLN).part_of
    assert {part_of(each) for each in before if before[each] != after[each]} == {JANUS_PARTS[2]}


@pytest.mark.slow
def test_evaluation_afterwards_is_greedy(ended: tuple[Path, Path], workshop: Path) -> None:
    """The same frames give the same actions, whatever torch would draw; nothing of sampling is in the folders."""
    folder, recurrent = (ended[0] / name / "model" for name in ("steps", "recurrent walks"))
    settings = "generation_config.json"
    assert (folder / settings).read_bytes() == (workshop / "base" / settings).read_bytes()
    walked: dict[str, list[list[Action]]] = {"streamvln": [], "vlnce": []}
    for number in range(2):
        torch.manual_seed(number)
        agents: dict[str, StreamVLNAgent | VLNCEAgent] = {
            "streamvln": StreamVLNAgent(StreamVLNOptions(checkpoint=folder, max_batch=1, max_new_tokens=8)),
            "vlnce": VLNCEAgent(VLNCEOptions(checkpoint=recurrent, device="cpu")),
        }
        assert agents["vlnce"].identity["actions"] == "greedy"
        assert "temperature" not in agents["streamvln"].identity
        for name, agent in agents.items():
            agent.reset(0, replace(make_episode(1), instruction=TEXTS[0]), seed=7)
            done: list[Action] = []
            for step in range(8):
                frame = np.full((480, 640, 3), 20 * step, dtype=np.uint8)
                seen = Observation("", step, rgb=frame, depth=np.full((480, 640), 0.5 * step, dtype=np.float32))
                if Action.STOP not in done:
                    done += agent.act({0: seen}).values()
            walked[name].append(done)
            agent.close()
    assert walked["streamvln"][0] == walked["streamvln"][1]
    assert walked["vlnce"][0] == walked["vlnce"][1]
