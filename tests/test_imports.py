from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.floors import FLOORS, floor

ROOT = Path(__file__).parents[1]

ONLY_IN = {
    "habitat": ("envs",),
    "habitat_sim": ("envs",),
    "gym": ("envs",),
    "gymnasium": ("vlnbench/gymnasium_env.py",),
    "numba": ("envs",),
    "llvmlite": ("envs",),
    "ray": ("vlnbench/rollout/ray.py",),
    "msgpack": ("vlnbench/serving/wire.py",),
    "websockets": ("vlnbench/serving/wire.py",),
    "torch": ("agents", "vlnbench/training", "vlnbench/util/measure.py"),
    "transformers": ("agents", "vlnbench/training", "vlnbench/util/measure.py"),
}


NEWER_NAMES = {
    "typing": "Self LiteralString Never assert_never assert_type reveal_type Required NotRequired Unpack"
    " TypeVarTuple override dataclass_transform TypeAliasType get_overloads get_protocol_members ReadOnly TypeIs",
    "enum": "StrEnum ReprEnum EnumCheck member nonmember verify",
    "asyncio": "TaskGroup Runner timeout",
    "builtins": "ExceptionGroup BaseExceptionGroup",
    "math": "sumprod cbrt exp2",
    "datetime": "UTC",
    "hashlib": "file_digest",
    "contextlib": "chdir",
    "itertools": "batched",
    "operator": "call",
    "warnings": "deprecated",
}
NEWER = {f"{module}.{name}" for module, names in NEWER_NAMES.items() for name in names.split()} | {"tomllib"}
"""What Python 3.10, the lowest of `requires-python`, lacks: only some interpreters would say so."""

LONGEST_MODULE = 400
"""Lines."""

NAMES = re.compile("streamvln|janusvln|qwen|navila|uninavid|vlnce|houses|embedded")
NAMED_IN = ("vlnbench/defaults.py", "vlnbench/data/shipped.py", "vlnbench/data/downloads.py")
"""Tables: what ships, what is published. Docstrings may name examples; the rest of the core names nothing."""


def sources() -> list[Path]:
    return [path for folder in ("vlnbench", "agents", "envs") for path in sorted((ROOT / folder).rglob("*.py"))]


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(path.read_text())))


def imports(path: Path) -> list[str]:
    found = []
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:  # relative ones stay inside their package
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def strings(path: Path) -> list[str]:
    """Own modules that the code names in import strings."""
    texts = (node.value for node in nodes(path) if isinstance(node, ast.Constant))
    found = (
        re.fullmatch(r"((?:vlnbench|agents|envs)(?:\.\w+)+)(?::\w+)?", text)
        for text in texts
        if isinstance(text, str)
    )
    return [match[1] for match in found if match]


def room(name: str) -> str:
    """The room of a module: its first folder, below vlnbench the next one."""
    top, _, rest = name.partition(".")
    return rest.partition(".")[0] if top == "vlnbench" else top


def may_use_newer(path: Path) -> bool:
    """By its words, which are read in a tenth of the time that the syntax takes."""
    words = set(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    return any({*each.removeprefix("builtins.").split(".")} <= words for each in NEWER)


def used(path: Path) -> set[str]:
    """What is imported, and names with a dot of imported modules and of built-in classes."""
    dotted = {
        f"{node.value.id}.{node.attr}"
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    names = {f"builtins.{node.id}" for node in nodes(path) if isinstance(node, ast.Name)}
    return {*imports(path), *dotted, *names}


def test_nothing_is_newer_than_the_lowest_python() -> None:
    assert 'requires-python = ">=3.10"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    every = [
        *sources(),
        *(path for folder in ("tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")),
    ]
    assert {path: found for path in filter(may_use_newer, every) if (found := used(path) & NEWER)} == {}


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_run_downwards(path: Path) -> None:
    own = room(".".join(path.relative_to(ROOT).with_suffix("").parts))
    where = path.relative_to(ROOT).as_posix()
    for name in imports(path):
        package, target = name.partition(".")[0], room(name)
        here, there = floor("vlnbench", own), floor("vlnbench", target)
        if package in ("vlnbench", "agents", "envs") and target != own and here is not None and there is not None:
            assert there < here, f"{path}: {own} imports {name}"
            assert package == "vlnbench", f"{path}: {name} must be reached by import string"
        allowed = ONLY_IN.get(package)
        assert allowed is None or where.startswith(allowed), f"{path}: imports {name}"


@pytest.mark.parametrize("folder", [each for each in FLOORS if each != "vlnbench"])
def test_imports_run_downwards_within_a_folder(folder: str) -> None:
    inside = folder.replace("/", ".") + "."
    rooms = {path.stem for path in (ROOT / folder).iterdir() if not path.name.startswith((".", "_"))}
    for path in (ROOT / folder).rglob("*.py"):
        own = path.relative_to(ROOT / folder).with_suffix("").parts[0]
        if own == "__init__":
            continue  # a package's face: it hands names on
        here = floor(folder, own)
        assert here is not None, f"{folder}/{own}: has no floor in tests/floors.py"
        for name in imports(path):
            target = name.removeprefix(inside).partition(".")[0]
            if name.startswith(inside) and target in rooms and target != own:
                there = floor(folder, target)
                assert there is not None
                assert there < here, f"{path}: {own} imports {name}"


@pytest.mark.parametrize(
    "path", sorted((ROOT / "agents").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_families_share_the_ground_floor_and_not_each_other(path: Path) -> None:
    """agents/X imports X and agents/common, never its sibling agents/Y; agents/common imports no family."""
    own = path.relative_to(ROOT / "agents").parts[0]
    for name in imports(path):
        package, _, rest = name.partition(".")
        other = rest.partition(".")[0]
        if package == "agents" and (ROOT / "agents" / other).is_dir():
            assert other in (own, "common"), f"{path}: {own} imports {name}"


def test_every_room_has_a_floor_and_a_sentence() -> None:
    rooms = {path.stem if path.is_file() else path.name for path in (ROOT / "vlnbench").glob("[!_]*")}
    assert rooms | {"agents", "envs"} == {name for names in FLOORS["vlnbench"] for name in names}
    for package in (path.parent for path in sources() if path.name == "__init__.py"):
        assert ast.get_docstring(ast.parse((package / "__init__.py").read_text())), (
            f"{package}: what may live here?"
        )


@pytest.mark.parametrize(
    "path", sorted((ROOT / "vlnbench").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_the_core_names_no_model_simulator_or_generator(path: Path) -> None:
    if path.relative_to(ROOT).as_posix() in NAMED_IN:
        return
    documents = {id(node.value) for node in nodes(path) if isinstance(node, ast.Expr)}
    for node in nodes(path):
        for field, value in ast.iter_fields(node):
            if isinstance(value, str) and id(node) not in documents and field != "type_comment":
                assert not NAMES.search(value), f"{path}:{node.lineno}: {value!r}"  # type: ignore[attr-defined]


def test_no_modules_import_each_other() -> None:
    """Imports inside functions and for types only count as well, and those by name that leave their folder."""
    named = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sources()
    }

    def target(name: str) -> str:
        while name and name not in named:
            name = name.rpartition(".")[0]
        return name

    def needed(module: str, path: Path) -> set[str]:
        folder = module.rpartition(".")[0] + "."
        by_name = {target(name) for name in strings(path)}  # a family's options name its agent, which reads them
        return {target(name) for name in imports(path)} | {name for name in by_name if not name.startswith(folder)}

    graph = {module: needed(module, path) for module, path in named.items()}
    graph = {module: found - {module, "", "vlnbench"} for module, found in graph.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


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


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_can_be_read_in_one_sitting(path: Path) -> None:
    assert path.read_text().count("\n") <= LONGEST_MODULE, "split it by what it does"
