"""Writes every file of the repository that is made from others: `python -m tests.regenerate [NAME ...]`.

`tests/test_regenerate.py` fails where one is stale, and names it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

from tests import floors
from tests.cli import command_line
from tests.docs import cards, findings, rounds, support, tree
from tests.faults import table

ROOT = Path(__file__).parents[1]

GENERATED: Mapping[str, Callable[[], Mapping[Path, str]]] = {
    "tree": lambda: {tree.PAGE: floors.page(tree.page())},  # of docs/reference/architecture.md
    "command line": lambda: {command_line.FILE: command_line.written()},  # from the options' dataclasses
    "cards": cards.all_cards,  # of checkpoints, from their files and the committed runs
    "support": lambda: {support.PAGE: support.page()},  # of README.md, from the families and from evidence
    "findings": lambda: {findings.PAGE: findings.page(), rounds.PAGE: rounds.page()},  # from matrices and runs
    "reliability": lambda: {table.PAGE: table.page()},  # from tests/faults/tried.json
}
"""What is made, and how: name -> the files with their contents."""


def stale(name: str) -> dict[Path, str]:
    """Files of a kind that are not as they should be, with the right contents."""
    made = GENERATED[name]()
    return {
        path: text for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(GENERATED)}; all without")
    for name in parser.parse_args().names or GENERATED:
        for path, text in stale(name).items():
            path.write_text(text, encoding="utf-8")
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
