"""Matrix files: YAML, expanded into settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from random import Random

from tests.fuzz.judge import Builder
from tests.fuzz.values import change_bytes, changed_yaml
from vlnbench.matrix.spec import read_matrix

NAME = "matrix.yaml"
ROOT = Path(__file__).parents[3]


@cache
def honest() -> bytes:
    return (ROOT / "results" / "matrices" / "smoke.yaml").read_bytes()


def read(folder: Path) -> None:
    matrix = read_matrix(folder / NAME)
    assert matrix.settings
    (matrix.key + matrix.data_key + str(matrix.held_out)).encode()
    for setting in matrix.settings:
        assert setting.key
        assert setting.train_key
        setting.name.encode()


def write(folder: Path, random: Random) -> None:
    if random.random() < 0.3:
        content = bytearray(honest())
        for _ in range(random.choice([1, 1, 2, 5])):
            random.choice((change_bytes, change_text))(content, random)
        (folder / NAME).write_bytes(content)
        return
    (folder / NAME).write_bytes(changed_yaml(honest(), random))


def change_text(data: bytearray, random: Random) -> None:
    """Something of YAML between two words."""
    places = [at for at, byte in enumerate(data) if byte == 32] or [0]
    at = random.choice(places)
    data[at:at] = random.choice(PIECES)


PIECES = tuple(
    piece.encode()
    for piece in (
        *(" &a ", " *a", " <<: *a ", "!!set ", "!!binary ", "!!python/tuple ", " 2001-01-01 ", "? ", "- ", "\n"),
        *(f" 0x{300 * 'f'}", " 1:2:3:4 ", " .nan ", " .inf ", " [", "]", " {", "}", " |\n", "#", "%YAML 9"),
    )
)
"""What means something in YAML."""


def _text(text: Callable[[], str]) -> Builder:
    return lambda folder: (folder / NAME).write_text(text()) and None


def _bomb(item: str, levels: int) -> str:
    lines = [f"a0: &a0 {item}"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, levels)]
    return "\n".join(lines)


def _merges(levels: int) -> str:
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}" for i in range(1, levels)]
    return "\n".join(lines)


def _axes(count: int) -> str:
    axes = "\n".join(
        f"  axis{i}:\n" + "".join(f"    - {{label: l{j}, seed: {j}}}\n" for j in range(10)) for i in range(count)
    )
    return honest().decode().partition("axes:")[0] + "axes:\n" + axes


corpus: Mapping[str, tuple[Builder, str]] = {
    "honest": (_text(lambda: honest().decode()), ""),
    "alias bomb": (_text(lambda: _bomb("x", 12)), "more than 20000 values"),
    "merge bomb": (_text(lambda: _merges(12)), "more than 20000 values"),
    "an alias of itself": (_text(lambda: "a: &a [*a]"), "an alias of what it is in"),
    "many keys": (_text(lambda: "".join(f"k{i}: 1\n" for i in range(19_000))), "more than 20000 values"),
    "a large file": (_text(lambda: "# " + "x" * 300_000), "more than 262,144 bytes"),
    "nested too deep": (_text(lambda: "[" * 5_000), "not a matrix file in YAML"),
    "a name of 100,000 characters": (_text(lambda: f"name: {'x' * 100_000}"), "more than 1000 characters"),
    "a key that stands twice": (_text(lambda: "name: a\nname: b"), "name stands twice"),
    "a number of sixties": (_text(lambda: "name: 1" + ":59" * 50_000), "more than 1000 characters"),
    "10^9 settings": (_text(lambda: _axes(9)), "at most 1000 settings"),
    "a set": (_text(lambda: "name: !!set {a, b}"), "expected text, numbers, lists and mappings"),
}
