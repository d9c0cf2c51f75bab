"""Replicas on a Ray cluster of several nodes on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.scripted import RandomAgent
from tests.fakes import PlaneEnv
from tests.rollout.clusters import ray_cluster, small
from tests.rollout.test_engine import FAULTY, failed, timeless
from tests.rollout.test_replicas import plan
from vlnbench.errors import UsageError
from vlnbench.evaluation.evaluate import Execution, evaluate
from vlnbench.evaluation.records import Row
from vlnbench.rollout.agent_options import AgentOptions
from vlnbench.rollout.executor import EnvSetup
from vlnbench.rollout.inline import Inline

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray warns of much, in threads of its own


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Nodes with two CPUs each will hold one replica."""
    with ray_cluster() as cluster:
        yield cluster


def test_a_node_that_dies_costs_no_row(cluster: Any, tmp_path: Path) -> None:
    from vlnbench.rollout.ray import open_replicas

    nodes = [cluster.add_node(num_cpus=2, **small()) for _ in range(2)]
    with open_replicas(cluster.address, 2, None, "", True) as replicas:
        assert (len(replicas), replicas.envs) == (2, 1)
        agent = replicas.load("random", AgentOptions())
        replicas.set_up(EnvSetup(FAULTY, ({}, 0.002), agent.sensors))

        def kill(row: Row, done: int, planned: int) -> None:
            if done == 4:
                cluster.remove_node(nodes[0], allow_graceful=False)

        summary = evaluate(plan(), replicas, tmp_path / "run", kill, Execution())
    assert (summary.n_done, summary.n_errors) == (12, 0)
    evaluate(plan(), Inline(RandomAgent(), PlaneEnv()), tmp_path / "here")
    assert timeless(tmp_path / "run") == timeless(tmp_path / "here")


def test_a_simulator_that_dies_is_told_as_on_one_machine(cluster: Any, tmp_path: Path) -> None:
    from vlnbench.rollout.ray import open_replicas

    cluster.add_node(num_cpus=2, **small())
    with pytest.raises(UsageError, match="no machine of the cluster has 9 CPUs, as an agent "):
        open_replicas(cluster.address, 1, 8, "", True)
    with open_replicas(cluster.address, 1, 1, "", True) as replicas:
        agent = replicas.load("random", AgentOptions())
        replicas.set_up(EnvSetup(FAULTY, ({"7": "segfault"},), agent.sensors))
        summary = evaluate(plan(), replicas, tmp_path / "run")
    assert (summary.n_done, summary.n_errors) == (12, 1)
    assert "killed by SIGSEGV" in str(failed(tmp_path / "run").reason)


def test_an_address_without_a_cluster_is_a_mistake() -> None:
    from vlnbench.rollout.ray import open_replicas

    os.environ.pop("RAY_ADDRESS", None)
    with pytest.raises(UsageError, match="--ray auto: no Ray cluster answers there"):
        open_replicas("auto", None, None, "", True)
