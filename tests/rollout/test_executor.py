"""All that run tasks pass the same tests, whoever they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pytest

from tests.fakes import make_episode
from tests.rollout.clusters import ray_cluster, small
from vlnbench.conformance import ExecutorConformance
from vlnbench.interfaces import Episode
from vlnbench.rollout.executor import EnvSetup, Executor
from vlnbench.rollout.inline import Inline
from vlnbench.rollout.processes import Processes
from vlnbench.rollout.replicas import LocalLauncher, Replicas

PLANE = "tests.fakes:PlaneEnv"


class OnAPlane(ExecutorConformance):
    def make_setup(self) -> EnvSetup:
        return EnvSetup(PLANE, (), frozenset())

    def make_episodes(self) -> Sequence[Episode]:
        return [make_episode(i, scene="ab"[i % 2]) for i in range(6)]


class TestInline(OnAPlane):
    def make_executor(self) -> Executor:
        return Inline()


class TestProcesses(OnAPlane):
    def make_executor(self) -> Executor:
        return Processes(2, PLANE)


@pytest.mark.slow
class TestReplicas(OnAPlane):
    def make_executor(self) -> Executor:
        return Replicas(LocalLauncher(2, PLANE), 2, 2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray warns of much, in threads of its own
class TestRay(OnAPlane):
    cluster: ClassVar[Any]

    @pytest.fixture(scope="class", autouse=True)
    def _cluster(self) -> Iterator[None]:
        pytest.importorskip("ray")
        with ray_cluster() as cluster:
            for _ in range(2):
                cluster.add_node(num_cpus=2, **small())
            type(self).cluster = cluster
            yield

    def make_executor(self) -> Executor:
        from vlnbench.rollout.ray import open_replicas

        return open_replicas(self.cluster.address, 2, 1, PLANE, gpu=False)
