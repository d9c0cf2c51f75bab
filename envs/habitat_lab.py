"""The only door to habitat-lab: imports it with or without habitat-sim, and quietly.

habitat-lab cannot be imported as published where habitat-sim is absent, because four of its modules import
`habitat_sim` or `magnum` without a guard. Where (and only where) habitat-sim is absent, those four
*habitat-lab* modules are replaced by placeholders while `import habitat` runs, and taken out again. No module
named `habitat_sim` or `magnum` is ever created: habitat-lab goes on to register its own "habitat-sim is
missing" stub for `Sim-v0`, which is the truth. There torch is not imported either: habitat-lab can send tensors
between processes with it, and takes half of its own time to import it. In the same way it is imported without
OpenCV, with which it draws its own maps, where that cannot be loaded: the usual build needs libGL of the system.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
import warnings
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlnbench.errors import UsageError

_REARRANGE = "habitat.tasks.rearrange"


def has_habitat_sim() -> bool:
    """Whether the real habitat-sim can be imported in this environment."""
    return importlib.util.find_spec("habitat_sim") is not None


def import_habitat() -> ModuleType:
    """Import `habitat` and return it.

    Raises UsageError where habitat-lab is missing.
    """
    if "habitat" in sys.modules:
        return sys.modules["habitat"]
    placeholders = _opencv() | ({} if has_habitat_sim() else _placeholders())
    without_torch = not has_habitat_sim() and "torch" not in sys.modules
    sys.modules.update(placeholders)
    if without_torch:
        sys.modules["torch"] = None  # type: ignore[assignment]  # importing it fails, for which habitat-lab is made
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _silence_gym_notice()
            habitat = importlib.import_module("habitat")
    except ModuleNotFoundError as error:
        raise UsageError(
            f"habitat-lab cannot be imported ({error}): install it with `pip install habitat-lab`"
        ) from error
    finally:
        if without_torch:
            del sys.modules["torch"]
        for name in list(sys.modules):
            if name in placeholders or (name.startswith(_REARRANGE) and not has_habitat_sim()):
                del sys.modules[name]
    habitat.logger.setLevel(logging.WARNING)
    return habitat


def _placeholders() -> dict[str, ModuleType]:
    """Stand-ins for the four habitat-lab modules that import habitat-sim or magnum unguarded."""

    def unavailable(name: str) -> type:
        def __init__(self: object, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            raise ImportError(f"{name} needs habitat-sim, which is not installed")

        return type(name, (), {"__init__": __init__})

    def pass_through(*args: Any, **kwargs: Any) -> Any:
        return lambda function: function

    contents: dict[str, dict[str, Any]] = {
        "habitat.sims.habitat_simulator.object_state_machine": {
            "ObjectStateMachine": unavailable("ObjectStateMachine")
        },
        "habitat.core.batch_rendering.env_batch_renderer": {"EnvBatchRenderer": unavailable("EnvBatchRenderer")},
        _REARRANGE: {"_try_register_rearrange_task": lambda: None, "__path__": []},
        f"{_REARRANGE}.rearrange_sim": {"add_perf_timing_func": pass_through},
    }
    modules = {}
    for name, attributes in contents.items():
        module = ModuleType(name)
        module.__dict__.update(attributes)
        modules[name] = module
    return modules


def _opencv() -> dict[str, ModuleType]:
    """A stand-in for OpenCV where it cannot be loaded, which says why when something is drawn with it."""
    before, loaded = sys.path.copy(), {*sys.modules}
    try:
        importlib.import_module("cv2")
    except ImportError as error:
        # OpenCV leaves its folder at the head of the path, where its `typing` hides Python's from child processes.
        sys.path[:] = before
        for name in {name for name in sys.modules if name.partition(".")[0] == "cv2"} - loaded:
            del sys.modules[name]
        return {"cv2": _Undrawn(str(error))}
    return {}


class _Undrawn(ModuleType):
    """OpenCV as far as importing habitat-lab uses it: for the colors of a map."""

    COLORMAP_JET = 2

    def __init__(self, reason: str) -> None:
        super().__init__("cv2")
        self.reason = reason

    @staticmethod
    def applyColorMap(values: NDArray[np.uint8], colors: int) -> NDArray[np.uint8]:  # noqa: N802 - OpenCV's
        return np.zeros((len(values), 1, 3), np.uint8)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ImportError(
            f"habitat-lab draws with OpenCV, which cannot be loaded ({self.reason}): run `pip install "
            "--force-reinstall --no-deps opencv-python-headless==4.11.0.86`, which needs no system library"
        )


def _silence_gym_notice() -> None:
    """gym prints an advertisement for its successor on import; habitat-lab pins the old one."""
    try:
        notices = importlib.import_module("gym_notices.notices")
    except ModuleNotFoundError:
        return
    notices.notices.clear()
