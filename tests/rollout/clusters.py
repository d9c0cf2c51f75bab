"""Ray clusters of several nodes on this machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(Path(__file__).parents[2])}


@contextmanager
def ray_cluster() -> Iterator[Any]:
    """A head without CPUs; nodes are to be added."""
    from ray.cluster_utils import Cluster

    with mock.patch.dict(os.environ, ENVIRONMENT):
        cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **small()}
        )
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
