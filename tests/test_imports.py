from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

FLOORS = {
    "interfaces": 1,
    "houses_config": 1,
    "errors": 1,
    "model_options": 1,
    "wire": 1,
    "benchmarks": 3,
    "json_stream": 3,
    "datasets": 3,
    "episodes": 3,
    "data_check": 3,
    "rollout": 3,
    "channel": 3,
    "child": 3,
    "worker_main": 3,
    "workers": 3,
    "schedule": 3,
    "lane_site": 3,
    "lane_main": 3,
    "lanes": 3,
    "ray_lanes": 3,
    "times": 3,
    "status": 4,
    "cli_status": 5,
    "engine": 3,
    "watchdog": 3,
    "evaluate": 3,
    "metrics": 3,
    "rescore": 3,
    "ranking": 3,
    "recorded": 3,
    "export": 3,
    "doctor": 3,
    "records": 3,
    "stats": 3,
    "tables": 3,
    "published": 3,
    "compare": 4,
    "committed": 4,
    "leaderboard": 4,
    "reproduction": 4,
    "cli_results": 5,
    "summary": 3,
    "conformance": 3,
    "video": 3,
    "progress": 3,
    "trackers": 3,
    "loading": 3,
    "commands": 4,
    "vram": 4,
    "training": 4,
    "report": 4,
    "matrix": 4,
    "serve": 4,
    "cli": 5,
    "cli_data": 5,
    "cli_matrix": 5,
    "cli_report": 5,
    "cli_serve": 5,
    "__main__": 5,
}
"""Floor of every module of vlnbench; imports run downwards only. agents/ and envs/ are floor 2."""

ONLY_IN = {
    "habitat": ("envs",),
    "habitat_sim": ("envs",),
    "gym": ("envs",),
    "numba": ("envs",),
    "llvmlite": ("envs",),
    "ray": ("vlnbench/rollout/ray.py",),
    "msgpack": ("vlnbench/serving/wire.py",),
    "websockets": ("vlnbench/serving/wire.py",),
    "torch": ("agents", "vlnbench/training", "vlnbench/util/measure.py"),
    "transformers": ("agents", "vlnbench/training", "vlnbench/util/measure.py"),
}


def sources() -> list[Path]:
    return [path for folder in ("vlnbench", "agents", "envs") for path in sorted((ROOT / folder).rglob("*.py"))]


def imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:  # relative ones stay inside their package
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def floor(path: Path) -> int:
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] in ("agents", "envs"):
        return 2
    return 0 if parts[1] == "__init__" else FLOORS[parts[1]]


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_run_downwards(path: Path) -> None:
    own = floor(path)
    top = path.relative_to(ROOT).parts[0]
    for name in imports(path):
        package, _, rest = name.partition(".")
        if package == "vlnbench" and rest.partition(".")[0] in FLOORS:
            target = FLOORS[rest.partition(".")[0]]
            assert target <= own, f"{path}: floor {own} imports {name} of floor {target}"
            assert own != 2 or target == 1, f"{path}: agents and envs may use floor 1 only, not {name}"
        if package in ("agents", "envs"):
            assert top == package, f"{path}: {name} must be reached by import string"
        allowed = ONLY_IN.get(package)
        where = path.relative_to(ROOT).as_posix()
        assert allowed is None or where.startswith(allowed), f"{path}: imports {name}"


def test_every_module_has_a_floor() -> None:
    found = [*(ROOT / "vlnbench").glob("*.py"), *(ROOT / "vlnbench").glob("*/__init__.py")]
    modules = {path.parent.name if path.name == "__init__.py" else path.stem for path in found} - {"vlnbench"}
    assert modules == set(FLOORS)


def test_help_and_import_load_nothing_heavy() -> None:
    """Start-up time is import time: the command line may load its parser and nothing else of weight."""
    heavy = ["torch", "habitat", "habitat_sim", "numba", "numpy", "scipy", "pandas", "matplotlib", "PIL", "cv2"]
    code = f"""
import sys
import vlnbench
assert not [name for name in sys.modules if name.startswith(("agents", "envs", "tyro"))]
from vlnbench.cli import main
try:
    main(["--help"])
except SystemExit:
    pass
print([name for name in {heavy} if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"
