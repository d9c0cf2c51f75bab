"""Lanes on a Ray cluster of several nodes on this machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.scripted import RandomAgent
from tests.fakes import PlaneEnv
from tests.rollout.test_engine import FAULTY, failed, timeless
from tests.rollout.test_replicas import plan
from vlnbench.errors import UsageError
from vlnbench.evaluation.evaluate import Execution, evaluate
from vlnbench.evaluation.records import Row
from vlnbench.rollout.agent_options import AgentOptions

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray warns of much, in threads of its own


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head without CPUs and two nodes with two each: one lane fits on a node."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **small()})
    try:
        yield cluster
    finally:
        cluster.shutdown()


def small() -> dict[str, int]:
    """A small object store, and ports that are known before the node starts."""
    names = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
    ports = {}
    for name in names:
        with socket.socket() as probe:
            probe.bind(("", 0))
            ports[name] = probe.getsockname()[1]
    return {"object_store_memory": 80_000_000, **ports}


def test_a_node_that_dies_costs_no_row(cluster: Any, tmp_path: Path) -> None:
    from vlnbench.rollout.ray import open_lanes

    nodes = [cluster.add_node(num_cpus=2, **small()) for _ in range(2)]
    with open_lanes(cluster.address, 2, None, "", True) as lanes:
        assert (len(lanes), lanes.envs) == (2, 1)
        agent = lanes.load("random", AgentOptions())
        lanes.set_up(FAULTY, ({}, 0.002), agent.sensors)

        def kill(row: Row, done: int, planned: int) -> None:
            if done == 4:
                cluster.remove_node(nodes[0], allow_graceful=False)

        summary = evaluate(plan(), agent, lanes, tmp_path / "run", kill, Execution())
    assert (summary.n_done, summary.n_errors) == (12, 0)
    evaluate(plan(), RandomAgent(), PlaneEnv(), tmp_path / "here")
    assert timeless(tmp_path / "run") == timeless(tmp_path / "here")


def test_a_simulator_that_dies_is_told_as_on_one_machine(cluster: Any, tmp_path: Path) -> None:
    from vlnbench.rollout.ray import open_lanes

    cluster.add_node(num_cpus=2, **small())
    with pytest.raises(UsageError, match="no machine of the cluster has 9 CPUs, as an agent "):
        open_lanes(cluster.address, 1, 8, "", True)
    with open_lanes(cluster.address, 1, 1, "", True) as lanes:
        agent = lanes.load("random", AgentOptions())
        lanes.set_up(FAULTY, ({"7": "segfault"},), agent.sensors)
        summary = evaluate(plan(), agent, lanes, tmp_path / "run")
    assert (summary.n_done, summary.n_errors) == (12, 1)
    assert "killed by SIGSEGV" in str(failed(tmp_path / "run").reason)


def test_an_address_without_a_cluster_is_a_mistake() -> None:
    from vlnbench.rollout.ray import open_lanes

    os.environ.pop("RAY_ADDRESS", None)
    with pytest.raises(UsageError, match="--ray auto: no Ray cluster answers there"):
        open_lanes("auto", None, None, "", True)
