"""Episodes an hour of the 8 B size with embedded simulators beside it, many at once and one after the other."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agents.common.checkpoints.files import GenerationSettings
from agents.common.decoders import generate as decode
from agents.common.decoders.generate import Row
from agents.common.decoders.loop import EpisodeLoop
from agents.common.decoders.turns import Decoder, Turn
from agents.common.decoders.windows import Windows
from agents.streamvln import network as checkpoint
from agents.streamvln.agent import Prompts, StreamVLNAgent
from agents.streamvln.network import StreamVLN
from benchmarks.gpu_evidence.pieces import Job
from benchmarks.gpu_evidence.turns import sizes
from benchmarks.rollout.streamvln import random_weights
from envs.houses.files.dataset import generate
from envs.houses.options import HousesConfig
from vlnbench.data.benchmarks import Benchmark, get_benchmark
from vlnbench.data.episodes import load_split
from vlnbench.defaults import ENV
from vlnbench.interfaces import Episode, Scalar, Sensor
from vlnbench.rollout.episode import Outcome, Task
from vlnbench.rollout.executor import EnvSetup, Limits
from vlnbench.rollout.inline import Inline
from vlnbench.rollout.processes import Processes
from vlnbench.training.family.sources import shipped
from vlnbench.util.loading import import_string
from vlnbench.util.machine import cores

BENCHMARK = "houses-r2r"
AT_ONCE, EPISODES, ALONE = 16, 48, 6
"""Episodes at once, and how many are timed so and one after the other. The toy has two of each."""
TURNS = 15
"""Turns of an episode, 57 to 60 steps: the mean of R2R train."""
SYMBOLS = ("↑", "↑", "↑", "←", "→")
"""What actions are drawn from: about as trained models walk."""
GUESSES = decode.DRAFT


class Scripted(Decoder):
    """Does all the work of choosing, and then says what a script of the episode says: weights are random."""

    def __init__(self, model: StreamVLN, prompts: Prompts, max_batch: int) -> None:
        ids = {text: prompts._encode(text)[0] for text in {*SYMBOLS, "STOP", "<|im_end|>"}}
        super().__init__(model, GenerationSettings(frozenset({ids["<|im_end|>"]}), 1.05), max_batch=max_batch)
        self._ids = ids
        self._header = [prompts._encode(text)[0] for text in ("a", "b", "c")]  # three tokens, as Qwen's takes
        self._scripts: dict[int, Iterator[list[int]]] = {}
        self._said: dict[int, list[int]] = {}

    def begin(self, slot: int, episode: str) -> None:
        """Another episode in a slot: its answers depend on its name alone."""
        self._scripts[slot] = self._script(random.Random(episode))

    def run(self, turns: Sequence[Turn]) -> list[list[int]]:
        self._said = {turn.slot: next(self._scripts[turn.slot]) for turn in turns}
        return super().run(turns)

    def _script(self, rng: random.Random) -> Iterator[list[int]]:
        end = [self._ids["<|im_end|>"]]
        for _ in range(TURNS - 1):
            yield [*self._header, *(self._ids[rng.choice(SYMBOLS)] for _ in range(4)), *end]
        yield [*self._header, self._ids["STOP"], *end]

    def _choose(self, rows: Sequence[Row], logits: Tensor) -> list[list[int]]:
        super()._choose(rows, logits)
        width = logits.shape[1]
        return [(self._said[row.turn.slot] + [0] * width)[len(row.output) :][:width] for row in rows]


class Walker(EpisodeLoop):
    """An agent with a model of any size and the words of the shipped one."""

    sensors: frozenset[Sensor] = frozenset({"rgb"})
    privileged = False
    expects = StreamVLNAgent.expects
    identity: Mapping[str, Scalar] = {}

    def __init__(self, model: StreamVLN, max_batch: int) -> None:
        prompts = Prompts(checkpoint.load_tokenizer(shipped()["streamvln-tiny"]))
        self._answers = Scripted(model, prompts, max_batch)
        config = model.config
        windows = Windows(config.num_frames, config.num_history, config.num_future_steps)
        super().__init__(prompts, self._answers, windows, config.vision.image_size)

    def reset(self, slot: int, episode: Episode, seed: int) -> None:
        super().reset(slot, episode, seed)
        self._answers.begin(slot, episode.episode_id)


def run(job: Job) -> Mapping[str, Any]:
    """Three ways with the same steps: one after the other, many at once, and these with guesses."""
    at_once, count, alone = (2, 2, 2) if job.toy else (AT_ONCE, EPISODES, ALONE)
    model = random_weights(sizes(job), torch.bfloat16, torch.device(job.device), "sdpa")
    found: dict[str, Any] = {"at_once": at_once, "cores": cores(), "ways": {}}
    with tempfile.TemporaryDirectory() as folder:
        benchmark, tasks, scenes = _tasks(Path(folder), count)
        arguments = (benchmark.body, scenes, Walker.sensors, "embedded")
        ways = {"one after the other": (0, 1), "at once": (0, at_once), "at once, guessing": (GUESSES, at_once)}
        for name, (guesses, batch) in ways.items():
            decode.DRAFT = guesses
            with _executor(Walker(model, batch), arguments, batch) as work:
                list(work(tasks[:batch]))  # scenes, kernels and memory are there afterwards
                began = time.perf_counter()
                outcomes = list(work(tasks if batch > 1 else tasks[:alone]))
                seconds = time.perf_counter() - began
            found["ways"][name] = _rates(outcomes, seconds)
            job.save(found)
    first = found["ways"]["one after the other"]["episodes_per_hour"]
    for way in found["ways"].values():
        way["times"] = round(way["episodes_per_hour"] / first, 2)
    return found


def _tasks(folder: Path, count: int) -> tuple[Benchmark, list[Task], Path]:
    """Episodes in a few generated houses."""
    houses = HousesConfig(
        train_houses=1,
        val_unseen_houses=2,
        train_episodes=3,
        val_seen_episodes=3,
        val_unseen_episodes=max(4, count),
    )
    generate(folder, houses)
    benchmark = get_benchmark(BENCHMARK)
    split = load_split(benchmark, "val_unseen", folder, allow_partial=True)
    episodes = [split.episodes[i % len(split.episodes)] for i in range(count)]
    return benchmark, [Task(each, i, 0, benchmark.max_steps) for i, each in enumerate(episodes)], split.scenes_dir


@contextmanager
def _executor(agent: Walker, arguments: tuple[Any, ...], batch: int) -> Iterator[Any]:
    """What runs tasks: in a loop here for a batch of one, as published scripts do, else with simulators beside."""
    if batch == 1:
        with Inline(agent, import_string(ENV)(*arguments)) as inline:
            yield inline.run
        return
    with Processes(batch) as processes:
        processes.use(agent)
        processes.set_up(EnvSetup(ENV, arguments, agent.sensors))
        yield lambda tasks: processes.run(tasks, Limits(batch))


def _rates(outcomes: Sequence[Outcome], seconds: float) -> dict[str, Any]:
    failed = [outcome.reason for outcome in outcomes if outcome.rollout is None]
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(outcomes)} episodes failed: {failed[0]}")
    steps = sum(len(outcome.rollout.trajectory.actions) for outcome in outcomes if outcome.rollout)
    return {
        "episodes": len(outcomes),
        "seconds": round(seconds, 2),
        "episodes_per_hour": round(3600 * len(outcomes) / seconds, 1),
        "steps": steps,
        "steps_per_s": round(steps / seconds, 2),
    }
