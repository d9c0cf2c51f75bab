"""Several agents fed from one queue: the rows of one agent, whatever dies."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agents.scripted import RandomAgent
from tests.fakes import make_set
from tests.rollout.test_engine import FAULTY, failed, timeless
from vlnbench.data.benchmarks import get_benchmark
from vlnbench.errors import RunError, UsageError
from vlnbench.evaluation.evaluate import Execution, Plan, evaluate, make_plan
from vlnbench.evaluation.records import Row, read_manifest, read_rows
from vlnbench.evaluation.summary import Summary
from vlnbench.rollout.agent_options import AgentOptions
from vlnbench.rollout.executor import NO_BATCH, EnvSetup, Limits, Times
from vlnbench.rollout.inline import Inline
from vlnbench.rollout.replicas import LocalLauncher, LocalRemote, ReplicaLostError, Replicas

pytestmark = pytest.mark.slow  # agents in processes of their own


def plan(agent: str = "random", count: int = 12) -> Plan:
    episodes = make_set("episodes", count=count)
    return make_plan(get_benchmark("houses-r2r"), episodes, agent, count=None, seed=0, repeats=1)


def run(
    folder: Path,
    agent: str = "random",
    arguments: tuple[Any, ...] = (),
    envs: int = 2,
    on_row: Callable[[Replicas, int], None] = lambda *_: None,
    launcher: LocalLauncher | None = None,
    limits: Limits = NO_BATCH,
    **options: Any,
) -> Summary:
    with Replicas(launcher or LocalLauncher(envs), 2, envs) as replicas:
        loaded = replicas.load(agent, AgentOptions())
        replicas.set_up(EnvSetup(FAULTY, arguments, loaded.sensors))

        def recorded(row: Row, done: int, planned: int) -> None:
            on_row(replicas, done)

        return evaluate(plan(agent), replicas, folder, recorded, Execution(limits, **options))


def here() -> Inline:
    executor = Inline(RandomAgent())
    executor.set_up(EnvSetup(FAULTY, (), executor.agent.sensors))
    return executor


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in this process, without replicas."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    evaluate(plan(), here(), folder)
    return folder


def test_rows_and_identity_are_those_of_one_agent(tmp_path: Path, undisturbed: Path) -> None:
    times = Times()
    run(tmp_path, limits=Limits(2), times=times)
    assert timeless(tmp_path) == timeless(undisturbed)
    ours, theirs = ({**read_manifest(folder), "created": ""} for folder in (tmp_path, undisturbed))
    assert ours == theirs
    assert times.episodes == 12
    assert 0 < times.agents < 2 * times.total
    assert 0 < times.waiting < 2 * times.total
    assert times.describe(2, 4).endswith(f"12 episodes, {12 * 3600 / times.total:.0f} episodes/h")


def test_a_run_begun_by_one_agent_is_ended_by_two(tmp_path: Path, undisturbed: Path) -> None:
    class EnoughError(Exception):
        pass

    def stop(replicas: Replicas, done: int) -> None:
        if done == 4:
            raise EnoughError

    with pytest.raises(EnoughError):
        run(tmp_path, on_row=stop)
    assert len(read_rows(tmp_path)) == 4
    evaluate(plan(), here(), tmp_path)
    assert timeless(tmp_path) == timeless(undisturbed)


def test_every_replica_works(tmp_path: Path) -> None:
    seen: set[frozenset[int]] = set()

    def look(replicas: Replicas, done: int) -> None:
        seen.add(frozenset(each.index for each in replicas._replicas if each.running))
        assert all(len(each.running) <= 2 for each in replicas._replicas)

    run(tmp_path, on_row=look, arguments=({}, 0.002))
    assert frozenset({0, 1}) in seen


def kill_one(replicas: Replicas, number: signal.Signals = signal.SIGKILL) -> None:
    remote = next(each.remote for each in replicas._replicas if each.running)
    assert isinstance(remote, LocalRemote)
    os.kill(remote._child._process.pid, number)


def test_a_replica_that_dies_costs_its_episodes_and_is_started_anew(
    tmp_path: Path, undisturbed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def kill(replicas: Replicas, done: int) -> None:
        if done == 4:
            kill_one(replicas)

    summary = run(tmp_path, on_row=kill, arguments=({}, 0.002))
    rows = read_rows(tmp_path)
    lost = [row for row in rows if row.failed]
    assert summary.n_done == len(rows) == 12
    assert 1 <= len(lost) <= 2
    assert {row.reason for row in lost} == {
        "the agent process ended: killed by SIGKILL (out of memory, or from outside)"
    }
    assert "is started anew (" in capsys.readouterr().err
    assert run(tmp_path, retry_errors=True).n_errors == 0
    assert timeless(tmp_path, ok_only=True) == timeless(undisturbed)


def test_a_replica_that_is_stopped_is_named_and_replaced(
    tmp_path: Path, undisturbed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vlnbench.util.processes.child.STOPPED_S", 2.0)

    def stop(replicas: Replicas, done: int) -> None:
        if done == 4:
            kill_one(replicas, signal.SIGSTOP)

    assert run(tmp_path, on_row=stop, arguments=({}, 0.002)).n_errors == 0
    assert re.search(r"is started anew .*it was stopped \(SIGSTOP\)", capsys.readouterr().err)
    assert timeless(tmp_path) == timeless(undisturbed)


def test_replicas_that_die_again_and_again_use_up_the_error_budget(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"episodes failed, and --max-errors allows 2 of 12; .*exit code 3"):
        run(tmp_path, "tests.rollout.test_replicas:Exits", max_errors=2)


class Exits(RandomAgent):
    def act(self, observations: Any) -> Any:
        os._exit(3)


class ExitsInSeven(RandomAgent):
    def begin(self, episode: Any, seed: int) -> None:
        if episode.episode_id == "7":
            os._exit(3)
        super().begin(episode, seed)


class Hangs(RandomAgent):
    """Never answers in episode 7."""

    def begin(self, episode: Any, seed: int) -> None:
        super().begin(episode, seed)
        self._number = episode.episode_id

    def act_one(self, observation: Any) -> Any:
        if self._number == "7":
            signal.pause()
        return super().act_one(observation)


def test_an_agent_that_hangs_is_started_anew(tmp_path: Path) -> None:
    summary = run(tmp_path, "tests.rollout.test_replicas:Hangs", envs=1, limits=Limits(1, 2.0))
    assert (summary.n_done, summary.n_errors) == (12, 1)
    row = failed(tmp_path)
    assert (row.episode_id, row.status) == ("7", "timeout")
    assert str(row.reason).startswith(
        "the agent process ended: exit code 124; vlnbench: no progress for 2 s; it hangs here:; File "
    )
    assert "in act_one" in str(row.reason)


class FarRemote(LocalRemote):
    """A replica whose end is that of its machine."""

    def result(self) -> Any:
        try:
            return super().result()
        except ReplicaLostError as lost:
            raise ReplicaLostError(f"the machine was lost: {lost.reason}", guilty=False) from lost


class FarLauncher(LocalLauncher):
    def open(self, index: int) -> LocalRemote:
        return FarRemote(self._envs, "", os.getcwd(), {})


def test_a_machine_that_is_lost_costs_no_row(tmp_path: Path, undisturbed: Path) -> None:
    def kill(replicas: Replicas, done: int) -> None:
        if done in (3, 6):
            kill_one(replicas)

    summary = run(tmp_path, on_row=kill, arguments=({}, 0.002), launcher=FarLauncher(2))
    assert (summary.n_done, summary.n_errors) == (12, 0)
    assert timeless(tmp_path) == timeless(undisturbed)


def test_an_episode_that_loses_machine_after_machine_is_given_up(tmp_path: Path) -> None:
    summary = run(tmp_path, "tests.rollout.test_replicas:ExitsInSeven", launcher=FarLauncher(1), envs=1)
    assert (summary.n_done, summary.n_errors) == (12, 1)
    assert failed(tmp_path).episode_id == "7"
    assert str(failed(tmp_path).reason).startswith("the machine was lost: the agent process ended: exit code 3")


class Refuses(RandomAgent):
    def __init__(self) -> None:
        raise UsageError("--checkpoint x: not there")


class Crashes(RandomAgent):
    def __init__(self) -> None:
        raise MemoryError("8 GiB")


@pytest.mark.parametrize(
    ("agent", "kind", "message"),
    [
        ("Refuses", UsageError, "^--checkpoint x: not there$"),
        (
            "Crashes",
            RunError,
            "an agent cannot be used: .* exit code 1; .*MemoryError: 8 GiB",
        ),
    ],
)
def test_agents_that_cannot_be_made_end_the_run(tmp_path: Path, agent: str, kind: type, message: str) -> None:
    with pytest.raises(kind, match=message):
        run(tmp_path / "run", f"tests.rollout.test_replicas:{agent}")
    assert not (tmp_path / "run").exists()


class Odd(RandomAgent):
    """Has another identity in each process."""

    def __init__(self) -> None:
        super().__init__()
        self.identity = {"checkpoint": str(os.getpid())}


def test_agents_that_differ_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the agents on .* are not the same \(checkpoint '\d+' and '\d+'\)"):
        run(tmp_path / "run", "tests.rollout.test_replicas:Odd")


def test_data_that_a_machine_lacks_are_named(tmp_path: Path) -> None:
    with Replicas(LocalLauncher(1), 1, 1) as replicas:
        agent = replicas.load("random", AgentOptions())
        with pytest.raises(UsageError, match=r"scenes: not there on .*; data must lie on a file system that all "):
            replicas.set_up(EnvSetup(FAULTY, (), agent.sensors, (tmp_path / "scenes",)))


class Device(RandomAgent):
    """Tells on which device it was put."""

    remarks = os.environ.get("CUDA_VISIBLE_DEVICES", "none")


class Share(RandomAgent):
    """Tells how many cores it has."""

    remarks = os.environ.get("VLNBENCH_CORES", "none")


def test_replicas_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vlnbench.rollout.replicas.cores", lambda: 6)
    with Replicas(LocalLauncher(1, replicas=2), 2, 1) as replicas:
        agent = replicas.load("tests.rollout.test_replicas:Share", AgentOptions())
        replicas.set_up(EnvSetup(FAULTY, (), agent.sensors))
        assert replicas.remarks() == "3"


def test_each_replica_has_a_gpu_of_its_own() -> None:
    with Replicas(LocalLauncher(1, gpus=["5", "7"]), 3, 1) as replicas:
        agent = replicas.load("tests.rollout.test_replicas:Device", AgentOptions())
        replicas.set_up(EnvSetup(FAULTY, (), agent.sensors))
        assert replicas.remarks() == "5\n7"
