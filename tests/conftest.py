from __future__ import annotations

import fcntl
import gc
import os
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the workers have the cores; before anything imports torch
    os.environ.pop("COLUMNS", None)  # that of the terminal, which workers have not

_ANY_SPEED = settings(
    deadline=None,  # tests say what is right, not how fast this machine is at the moment
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("same", _ANY_SPEED, derandomize=True)  # the same examples every time, everywhere
settings.register_profile("long", _ANY_SPEED, max_examples=10_000, print_blob=True)
settings.load_profile("same")

_CHECKOUT = Path(__file__).resolve().parents[1]
SHARED = next((base / "shared" for base in (_CHECKOUT, _CHECKOUT.parent) if (base / "shared").is_dir()), None)
"""Reference recordings: beside the checkout, or in it where a copy of the checkout travels with them."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="the tests marked slow, too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out slow tests, but where they are asked for: by --all, by -m or by name."""
    for item in items:
        for mark in item.iter_markers("needs"):
            missing = [name for name in mark.args if find_spec(name) is None]
            if missing:
                item.add_marker(pytest.mark.skip(reason=f"needs {', '.join(missing)}: pip install -e '.[test]'"))
    if config.option.all or config.option.markexpr or any("::" in name for name in config.args):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Tests and all that they import stay: the garbage collector need not look through them again and again."""
    gc.disable()
    collected = yield
    gc.collect()
    gc.freeze()
    gc.enable()
    return collected


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of reference recordings and real episodes."""
    if SHARED is None:
        pytest.skip("reference data folder shared is neither beside this checkout nor in it")
    return SHARED


@pytest.fixture(scope="session")
def houses(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data root with a small houses benchmark, made once for all workers: tests must not change it."""
    from envs.houses.files.dataset import generate
    from envs.houses.options import HousesConfig

    base = tmp_path_factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "houses"
    root.mkdir(exist_ok=True)
    config = HousesConfig(
        train_houses=2, val_unseen_houses=1, train_episodes=12, val_seen_episodes=6, val_unseen_episodes=6
    )
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        generate(root, config)  # nothing is done where it is complete
    return root
