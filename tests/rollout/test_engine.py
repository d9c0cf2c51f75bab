"""Runs with simulators in processes of their own: rows that depend on nothing but the plan, whatever breaks."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents.base import EpisodeAgent
from agents.scripted import RandomAgent
from tests.fakes import PlaneEnv, make_episode, make_set
from tests.faulty import BreaksOnFive, KeepsFrames
from vlnbench.data.benchmarks import get_benchmark
from vlnbench.errors import RunError, UsageError
from vlnbench.evaluation.evaluate import Execution, Plan, evaluate, make_plan
from vlnbench.evaluation.records import ERRORS, ROWS, TRAJECTORIES, Row, read_rows, read_trajectories
from vlnbench.evaluation.summary import Summary, format_summary
from vlnbench.interfaces import Action, Agent, Episode, Observation
from vlnbench.rollout.engine import SceneQueue
from vlnbench.rollout.episode import STEP_PARTS, Task
from vlnbench.rollout.executor import EnvSetup, Limits
from vlnbench.rollout.inline import Inline
from vlnbench.rollout.processes import Processes

FAULTY, PICTURES = "tests.faulty:FaultyEnv", "tests.faulty:PictureEnv"


def plan(agent: str = "random", repeats: int = 1, shuffled: bool = False) -> Plan:
    episodes = make_set("episodes", count=12)
    if shuffled:
        episodes = replace(episodes, episodes=tuple(random.Random(3).sample(episodes.episodes, 12)))
    return make_plan(get_benchmark("houses-r2r"), episodes, agent, count=None, seed=0, repeats=repeats)


def run(
    folder: Path,
    agent: Agent | None = None,
    factory: str = FAULTY,
    arguments: tuple[Any, ...] = (),
    envs: int = 2,
    planned: Plan | None = None,
    max_batch: int = 1,
    timeout_s: float = 300.0,
    **options: Any,
) -> Summary:
    processes = ready(envs, agent or RandomAgent(), factory, arguments)
    execution = Execution(Limits(max_batch, timeout_s), **options)
    return evaluate(planned or plan(), processes, folder, execution=execution)


POOLS: dict[int, Processes] = {}


def ready(envs: int, agent: Agent, factory: str = FAULTY, arguments: tuple[Any, ...] = ()) -> Processes:
    """Simulator processes that stay between tests: most of a short run is their start."""
    if envs not in POOLS:
        POOLS[envs] = Processes(envs)
    facts = POOLS[envs].use(agent)
    POOLS[envs].set_up(EnvSetup(factory, arguments, facts.sensors))
    return POOLS[envs]


@pytest.fixture(scope="module", autouse=True)
def _end_pools() -> Iterator[None]:
    yield
    for processes in POOLS.values():
        processes.close()
    POOLS.clear()


def timeless(folder: Path, *, ok_only: bool = False) -> list[str]:
    """Lines of rows without times, and of trajectories, sorted."""
    rows = [json.loads(line) for line in (folder / ROWS).read_text().splitlines()]
    lines = [json.dumps({**row, "seconds": {}}) for row in rows if row["status"] == "ok" or not ok_only]
    return sorted(lines) + sorted((folder / TRAJECTORIES).read_text().splitlines())


def failed(folder: Path) -> Row:
    (row,) = [row for row in read_rows(folder) if row.failed]
    return row


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in this process, without workers."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    evaluate(plan(), Inline(RandomAgent(), PlaneEnv()), folder)
    return folder


@pytest.mark.parametrize("max_batch", [1, 3])
def test_the_agents_time_is_told_by_step(tmp_path: Path, max_batch: int) -> None:
    evaluate(plan(), ready(3, RandomAgent()), tmp_path, execution=Execution(Limits(max_batch)))
    for row in read_rows(tmp_path):
        parts = [value for name, value in row.seconds.items() if name.startswith("agent ")]
        steps = row.scores["steps"]
        assert isinstance(steps, int)
        assert len(parts) == sum(steps > first for first in (0, *STEP_PARTS))
        assert 0 < sum(parts) <= row.seconds["agent"] + 1e-3


@pytest.mark.parametrize(("envs", "max_batch"), [(1, 1), (2, 1), (8, 3)])
def test_rows_do_not_depend_on_simulators_and_batches(
    tmp_path: Path, undisturbed: Path, envs: int, max_batch: int
) -> None:
    run(tmp_path, envs=envs, max_batch=max_batch)
    assert timeless(tmp_path) == timeless(undisturbed)


def test_rows_do_not_depend_on_the_order_of_episodes(tmp_path: Path, undisturbed: Path) -> None:
    run(tmp_path, planned=plan(shuffled=True), max_batch=2)
    assert timeless(tmp_path) == timeless(undisturbed)


def test_repeats_run_side_by_side(tmp_path: Path) -> None:
    evaluate(plan(repeats=2), Inline(RandomAgent(), PlaneEnv()), tmp_path / "here")
    run(tmp_path / "there", planned=plan(repeats=2))
    assert timeless(tmp_path / "there") == timeless(tmp_path / "here")


def test_frames_arrive_and_may_be_kept(tmp_path: Path) -> None:
    summary = run(tmp_path, KeepsFrames(), PICTURES)
    assert (summary.n_done, summary.n_errors) == (12, 0), failed(tmp_path).reason


def test_frames_of_another_size_than_announced_are_errors(tmp_path: Path) -> None:
    run(tmp_path, KeepsFrames(), PICTURES, (8, 6, 11))
    reason = failed(tmp_path).reason
    assert reason is not None
    assert reason.startswith(
        "ValueError: rgb is uint8 (5, 8, 3); the embodiment of the environment says uint8 (6, 8"
    )


def test_an_agent_is_shown_what_it_declared_and_no_goal(tmp_path: Path) -> None:
    seen: list[tuple[Observation, Episode]] = []

    class Curious(EpisodeAgent):
        def begin(self, episode: Episode, seed: int) -> None:
            self._episode = episode

        def act_one(self, observation: Observation) -> Action:
            seen.append((observation, self._episode))
            return Action.STOP

    run(tmp_path, Curious(), PICTURES)
    assert len(seen) == 12
    for observation, episode in seen:
        assert (observation.rgb, observation.depth, observation.pose) == (None, None, None)
        assert (episode.goals, episode.ground_truth) == ((), None)


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        ("segfault", "error", "killed by SIGSEGV; Fatal Python error: Segmentation fault; File"),
        ("kill", "error", "killed by SIGKILL (out of memory, or from outside)"),
        ("abort", "error", "killed by SIGABRT; Fatal Python error: Aborted; File"),
        ("exit", "error", "exit code 3; cannot create EGL context"),
        ("hang", "timeout", 'no progress for 2 s; it was in File "'),
        ("raise", "error", "RuntimeError: the mesh has no faces (faulty.py:"),
        ("memory", "error", "MemoryError: 4 GiB"),
    ],
)
def test_a_broken_simulator_costs_its_episode_and_no_other(
    tmp_path: Path, undisturbed: Path, fault: str, status: str, reason: str
) -> None:
    summary = run(tmp_path, arguments=({"7": fault},), timeout_s=2.0)
    assert (summary.n_done, summary.n_errors, summary.failures["error"]) == (12, 1, 1)
    row = failed(tmp_path)
    assert (row.episode_id, row.status) == ("7", status)
    assert row.reason is not None
    assert reason in row.reason
    assert "\n" not in row.reason
    whole = [line for line in timeless(undisturbed) if '"episode_id": "7"' not in line and '"7",0]' not in line]
    assert timeless(tmp_path, ok_only=True) == whole
    assert "n_errors 1" in format_summary(summary)


def test_stacks_of_exceptions_are_logged(tmp_path: Path) -> None:
    run(tmp_path, arguments=({"7": "raise"},))
    text = (tmp_path / ERRORS).read_text()
    assert text.startswith("episode 7, repeat 0\nTraceback")
    assert "in step" in text


@pytest.mark.parametrize("max_batch", [1, 2])
def test_an_agent_that_breaks_costs_the_guilty_episode_only(tmp_path: Path, max_batch: int) -> None:
    evaluate(plan("five"), Inline(BreaksOnFive(), PlaneEnv()), tmp_path / "here")
    run(tmp_path / "there", BreaksOnFive(), envs=2, max_batch=max_batch, planned=plan("five"))
    assert failed(tmp_path / "there").episode_id == "5"
    assert failed(tmp_path / "there").reason == failed(tmp_path / "here").reason
    assert timeless(tmp_path / "there") == timeless(tmp_path / "here")


class Forgets(RandomAgent):
    """Has no answer in episode 4."""

    def reset(self, slot: int, episode: Episode, seed: int) -> None:
        super().reset(slot, episode, seed)
        self.forgotten = {
            *getattr(self, "forgotten", set()) - {slot},
            *([slot] if episode.episode_id == "4" else []),
        }

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        actions = super().act(observations)
        return {slot: action for slot, action in actions.items() if slot not in self.forgotten}


class Invents(RandomAgent):
    def act(self, observations: Mapping[int, Observation]) -> dict[int, Any]:  # type: ignore[override]
        return dict.fromkeys(observations, 9)


def test_missing_and_unknown_actions_are_errors(tmp_path: Path) -> None:
    run(tmp_path / "forgets", Forgets(), max_batch=2)
    assert "ValueError: the agent gave no action for slots [" in str(failed(tmp_path / "forgets").reason)
    run(tmp_path / "invents", Invents())
    reasons = {str(row.reason).partition(" (")[0] for row in read_rows(tmp_path / "invents")}
    (reason,) = reasons
    assert reason.startswith("ValueError: the agent returned 9 for an action; expected one of")


@pytest.mark.parametrize(
    ("arguments", "message"), [(({}, 0.0, "usage"), "scene.glb: gone"), (({"7": "usage"},), "scene.glb: gone")]
)
def test_user_errors_cross_the_process_boundary(tmp_path: Path, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run(tmp_path / "run", arguments=arguments, envs=1, planned=replace(plan(), episodes=(make_episode(7),)))
    assert not (tmp_path / "run").exists()


class Choosy(PlaneEnv):
    def check(self, episodes: Any) -> None:
        raise UsageError(f"{len(episodes)} scenes are missing")


def test_checks_before_a_run_are_made_by_a_simulator_process(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="12 scenes are missing"):
        run(tmp_path / "run", factory="tests.rollout.test_engine:Choosy")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ("exit", "exit code 3; cannot create EGL"),
        ("raise", "the mesh has no faces"),
        ("kill", "killed by SIGKILL"),
    ],
)
def test_simulators_that_cannot_start_end_the_run(tmp_path: Path, start: str, message: str) -> None:
    with pytest.raises(RunError, match=message):
        run(tmp_path / "run", arguments=({}, 0.0, start))


def test_a_simulator_that_never_starts_again_ends_the_run(tmp_path: Path) -> None:
    with Processes(1) as processes:
        processes.use(RandomAgent())
        processes.set_up(EnvSetup(FAULTY, ({"7": "exit"},), frozenset()))
        simulators = processes.simulators
        simulators._setup = replace(simulators._setup, arguments=({}, 0.0, "exit"))
        with pytest.raises(RunError, match="a simulator cannot be used: the simulator process ended: exit code 3"):
            evaluate(plan(), processes, tmp_path)
    assert any(row.episode_id == "7" for row in read_rows(tmp_path))


FIVE = {str(i): "raise" for i in range(5)}


@pytest.mark.parametrize(("max_errors", "allowed"), [(3, 3), (0.25, 3), (0.2, 3), (0, 0), (5, None), (0.4, None)])
def test_an_error_budget_stops_a_hopeless_run(tmp_path: Path, max_errors: float, allowed: int | None) -> None:
    if allowed is None:
        assert run(tmp_path, arguments=(FIVE,), max_errors=max_errors).n_errors == 5
        return
    with pytest.raises(
        RunError, match=rf"^{allowed + 1} episodes failed, and --max-errors allows {allowed} of 12; .*"
    ):
        run(tmp_path, arguments=(FIVE,), max_errors=max_errors)
    assert sum(row.failed for row in read_rows(tmp_path)) == allowed + 1


def test_errors_are_kept_on_resume_and_run_again_when_asked(tmp_path: Path, undisturbed: Path) -> None:
    with pytest.raises(RunError):
        run(tmp_path, arguments=(FIVE,), max_errors=2)
    with pytest.raises(RunError, match="3 episodes failed"):
        run(tmp_path, max_errors=2)
    assert run(tmp_path, max_errors=3).n_errors == 3
    kept = (tmp_path / ROWS).read_bytes()
    assert run(tmp_path, max_errors=3).n_errors == 3
    assert (tmp_path / ROWS).read_bytes() == kept
    summary = run(tmp_path, max_errors=2, retry_errors=True)
    assert (summary.n_done, summary.n_errors) == (12, 0)
    assert timeless(tmp_path, ok_only=True) == timeless(undisturbed)


def test_simulators_step_while_the_agent_thinks() -> None:
    """One slot waits for the agent while another is being simulated: the agent is never asked for all at once."""
    batches: list[int] = []

    class Watching(RandomAgent):
        def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
            batches.append(len(observations))
            return super().act(observations)

    agent = Watching()
    tasks = [Task(make_episode(i), 0, i, 500) for i in range(6)]
    outcomes = list(ready(3, agent, arguments=({}, 0.002)).run(tasks, Limits(2)))
    assert {outcome.status for outcome in outcomes} == {"ran"}
    assert max(batches) <= 2
    assert 1 in batches


def test_a_dead_idle_simulator_is_replaced(tmp_path: Path, undisturbed: Path) -> None:
    processes = ready(2, RandomAgent())
    idle = processes.simulators.workers[1]
    idle._process.send_signal(signal.SIGKILL)
    idle._process.wait()
    evaluate(plan(), processes, tmp_path)
    assert timeless(tmp_path) == timeless(undisturbed)


def test_a_simulator_keeps_its_scene_and_helps_at_the_end() -> None:
    tasks = [Task(make_episode(i, scene=scene), 0, 0, 1) for i, scene in enumerate("aabbbbc")]
    queue = SceneQueue(tasks)

    def take(loaded: str | None, others: list[str | None]) -> str:
        task = queue.take(
            loaded and f"{loaded}/{loaded}.glb", [scene and f"{scene}/{scene}.glb" for scene in others]
        )
        assert task is not None
        return task.episode.scene_id[0]

    assert take(None, []) == "b"
    assert take(None, ["b"]) == "a"
    assert [take("b", ["a"]), take("b", ["a"])] == ["b", "b"]
    assert take("a", ["b"]) == "a"
    assert take("a", ["b"]) == "c"
    assert take("c", ["b"]) == "b"
    assert (bool(queue), queue.take("b", [])) == (False, None)


def test_trajectories_come_back_whole(tmp_path: Path, undisturbed: Path) -> None:
    run(tmp_path)
    assert read_trajectories(tmp_path) == read_trajectories(undisturbed)


def test_starting_a_simulator_process_loads_nothing_heavy() -> None:
    heavy = ["torch", "habitat", "numba", "scipy", "pandas", "tabulate", "tyro", "envs", "agents"]
    code = (
        f"import sys, vlnbench.rollout.simulators.main; print([name for name in {heavy} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
