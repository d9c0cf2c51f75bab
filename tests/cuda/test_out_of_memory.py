"""A GPU without room where it is not an evaluation that runs: in collection, scoring, and walks to learn from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agents.common.decoders.generate import Row
from agents.common.decoders.turns import Decoder
from tests.training.collect.test_dagger import Batches, EverythingCounts, straight
from tests.training.test_families import TestStreamVLN as OfStreamVLN
from vlnbench.conformance.family import _Made
from vlnbench.errors import GpuMemoryError
from vlnbench.interfaces import Action, Observation
from vlnbench.rollout.episode import Task
from vlnbench.rollout.executor import EnvSetup, Limits
from vlnbench.rollout.processes import Processes
from vlnbench.training.collect.walk import WalkTask, shared_paths
from vlnbench.training.family.policy import Recorded, Sampling
from vlnbench.training.family.trains import Answer
from vlnbench.training.score.score import answered
from vlnbench.util.gpu_memory import shortages

FULL = "CUDA out of memory. Tried to allocate 2.00 GiB"


@pytest.fixture(autouse=True)
def _none_before() -> None:
    shortages()


class Crowded(Batches):
    """Drives, on a GPU with room for so many episodes at once."""

    def __init__(self, fits: int) -> None:
        super().__init__()
        self.fits = fits

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        actions = super().act(observations)
        if len(observations) > self.fits:
            raise torch.OutOfMemoryError(FULL)
        return actions


def test_walks_that_are_collected_are_the_same(tmp_path: Path) -> None:
    episodes = [replace(straight(0, 1.0), episode_id=str(i), scene_id=f"{i}/s.glb") for i in range(3)]
    (path,) = shared_paths(episodes[:1], "r2r")
    walks = [replace(path, name=f"walk-{each.episode_id}", episodes=(each,)) for each in episodes]
    with Processes(2) as processes:

        def collected(root: Path, agent: Crowded) -> dict[str, bytes]:
            processes.use(agent)
            processes.set_up(EnvSetup("tests.training.collect.test_dagger:GuidedPlane", (), agent.sensors))
            judged = EverythingCounts(3.0)
            tasks = [Task(walk.episodes[0], 0, 0, 30, WalkTask(walk, root, judged)) for walk in walks]
            outcomes = list(processes.run(tasks, Limits(max_batch=2)))
            assert [outcome.reason for outcome in outcomes] == [None] * 3
            files = [file for file in root.rglob("*") if file.is_file()]
            return {str(file.relative_to(root)): file.read_bytes() for file in files}

        undisturbed = collected(tmp_path / "undisturbed", Crowded(8))
        assert len(undisturbed) > 3
        agent = Crowded(1)
        assert collected(tmp_path / "crowded", agent) == undisturbed
        assert (max(agent.sizes), agent.sizes[-1]) == (2, 1)
        with pytest.raises(GpuMemoryError, match="with one episode at a time"):
            collected(tmp_path / "none", Crowded(0))


def test_scores_are_taken_in_smaller_batches(tmp_path: Path) -> None:
    answers = [Answer("a", step, Action.STOP, None, Action.STOP, 0.5) for step in range(3)]

    def scorer(folder: Path, batch: int) -> Iterator[Answer]:
        for answer in answers:
            yield answer
            if batch > fits:
                raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")

    fits = 3
    assert answered(scorer, tmp_path, 8) == (answers, 2)
    assert shortages() == [
        "out of GPU memory with 8 samples at once: going on with 4",
        "out of GPU memory with 4 samples at once: going on with 2",
    ]
    fits = 0
    with pytest.raises(GpuMemoryError, match="with one sample: CUDA error: CUBLAS_STATUS_ALLOC_FAILED"):
        answered(scorer, tmp_path, 8)


def test_answers_to_learn_from_are_drawn_again_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where some of their tokens were drawn when the GPU was full."""
    family = OfStreamVLN()
    made = _Made(family.make_spec(), family.make_options(tmp_path), tmp_path)
    model = made.load()

    def drawn() -> list[Recorded]:
        policy = made.trains.policy(model, made.base, made.options, Sampling(0.9, answer_tokens=6))
        policy.renew()
        questions = policy.questions(made.sets)
        return policy.answer([questions.question(0, "0").prompt] * 4, [1, 2, 3, 4])

    undisturbed = drawn()
    keep, passes = Decoder._keep, 0

    def full(self: Decoder, rows: Sequence[Row], *others: object) -> None:
        nonlocal passes
        passes += 1
        keep(self, rows, *others)  # type: ignore[arg-type]
        if len(rows) > 1 and passes % 2 == 0:
            raise torch.OutOfMemoryError(FULL)

    monkeypatch.setattr(Decoder, "_keep", full)
    found = drawn()
    assert shortages() == [
        "out of GPU memory with 4 episodes in a pass at once: going on with 2",
        "out of GPU memory with 2 episodes in a pass at once: going on with 1",
    ]
    for one, other in zip(found, undisturbed, strict=True):
        assert (one.actions, one.tokens) == (other.actions, other.tokens)
        assert one.log_probabilities == pytest.approx(other.log_probabilities, abs=1e-4)
