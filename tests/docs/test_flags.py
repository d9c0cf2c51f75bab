"""docs/reference/flags.md: every option that it names is one of a command, and no flag stands there twice."""

from __future__ import annotations

import re
from dataclasses import fields

from tests.docs.pages import document
from vlnbench.training.family.find import every_family
from vlnbench.training.objectives import OBJECTIVES

PAGE = document("flags.md")
ELSEWHERE = {"--gpus", "--from-script", "--nproc-per-node", "--ntasks", "--exp-config", "--split", "--episodes"}
ELSEWHERE |= {"--envs", "--depth", "--dagger", "--relabel", "--tours"}
"""Of `plan`, `collect`, `eval`, torchrun, srun and VLN-CE's run.py."""


def test_every_option_is_one_of_a_family_or_an_objective() -> None:
    kinds = [
        objective.train_options(family.check_training())
        for family in every_family()
        for objective in OBJECTIVES.values()
    ]
    known = {f"--{each.name.replace('_', '-')}" for kind in kinds for each in fields(kind)}
    named = set(re.findall(r"--[a-z][a-z0-9-]+", PAGE.read_text(encoding="utf-8")))
    assert named - known - ELSEWHERE == set()
    assert len(named & known) > 50


def test_the_words_that_people_search_stand_there() -> None:
    text = PAGE.read_text(encoding="utf-8")
    words = (
        "per_device_train_batch_size gradient_accumulation_steps num_generations max_pixels min_pixels num_frames "
        "num_future_steps video_max_frames dataloader_num_workers group_by_modality_length nproc_per_node "
        "stage3_max_live_parameters data_augmentation torch_compile tf32 NCCL H20 H800 A800"
    )
    assert [word for word in words.split() if word not in text] == []


def test_no_flag_has_two_lines() -> None:
    rows = [line.split("|")[1] for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    flags = [flag for row in rows for flag in re.findall(r"`([^`]+)`", row)]
    assert sorted({flag for flag in flags if flags.count(flag) > 1}) == []
