"""Writes down the whole command line, so that a change of it shows.

It is read from the dataclasses of the commands, not from the parser, whose layout changes with its version.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import types
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from vlnbench.cli.commands import Command
from vlnbench.cli.selected import Selection
from vlnbench.errors import UsageError
from vlnbench.training.family.find import get_family, listed
from vlnbench.training.objectives import OBJECTIVES, get_objective
from vlnbench.training.objectives.spec import NoOptions

FILE = Path(__file__).parents[2] / "docs" / "reference" / "commands.md"
VARIANTS = ("--inference", "--from-script=FILE")
"""Options that make another command of one."""
HEAD = """# Commands and options

*Which options has a command, of which type, and what is their default?* `vlnbench COMMAND --help` says the same.

<!-- made by `python -m tests.regenerate`: edit the options' dataclasses, not the page -->

What an agent, a family or an objective adds to a command has a section of its own, below the commands. One
of a family leaves out what it shares with all families."""


def commands(union: Any = Command, before: str = "vlnbench") -> Iterator[tuple[str, type]]:
    """Every command with its dataclass, those below others included."""
    for member in get_args(union):
        kind, named = get_args(member)[:2]
        name = f"{before} {named.name}"
        if get_origin(kind) in (Union, types.UnionType):
            yield from commands(kind, name)
        else:
            yield name, kind
            for option in VARIANTS if hasattr(kind, "variant") else ():
                if (other := kind.variant([option])) is not kind:
                    yield f"{name} {option}", other


def selections() -> dict[str, Selection]:
    """What options are chosen by, each once."""
    found = (each for _, kind in commands() for each in getattr(kind, "selections", ()))
    return {each.kind: each for each in found}


def written() -> str:
    """The content of the file."""
    parts = [HEAD]
    for name, kind in commands():
        chosen: tuple[Selection, ...] = getattr(kind, "selections", ())
        about = _literal(inspect.cleandoc(kind.__doc__ or ""))
        lines = _options(kind, without={each.field for each in chosen})
        more = [each.kind for each in chosen]
        more += ["family"] if hasattr(kind, "of_family") else []
        more += ["objective"] if "objective" in {each.name for each in fields(kind)} else []
        lines += [f"and the options of the {what} that --{what} names" for what in more]
        parts.append(_section(name, lines, f"{about}\n\n"))
    for name, family, kind, common in of_families():
        old = flags(common)
        same = {
            each.name
            for flag, each in flags(kind).items()
            if flag in old and _default(each) == _default(old[flag])
        }
        parts.append(_section(f"{name} --family {family}", _options(kind, without=same)))
    for name, objective, kind in of_objectives():
        parts.append(_section(f"{name} --objective {objective}", _options(kind)))
    for what, selection in selections().items():
        by_type: dict[type, list[str]] = {}
        for name in selection.names():
            by_type.setdefault(selection.options_of(name), []).append(name)
        for kind, names in by_type.items():
            parts.append(_section(f"--{what} {', '.join(names)}", _options(kind)))
    return "\n\n".join(parts) + "\n"


def _section(title: str, lines: list[str], about: str = "") -> str:
    """A heading with its options in a block, which keeps their line breaks."""
    shown = "\n".join(lines)
    return f"## {title}\n\n{about}" + (f"```text\n{shown}\n```" if lines else "No options.")


def _literal(text: str) -> str:
    """Text in which Markdown has nothing to read."""
    return re.sub(r"(?<!`)([*_<>|])", r"\\\1", text) if "`" not in text else text


def of_families() -> Iterator[tuple[str, str, type, type]]:
    """Command, family, the family's options for it and what all families have of them."""
    for name, kind in commands():
        for family in listed() if hasattr(kind, "of_family") else ():
            with suppress(UsageError):  # of a family that cannot be planned there are no options
                made = kind.of_family(get_family(family), get_objective("supervised"))  # type: ignore[attr-defined]
                yield name, family, made, kind


def of_objectives() -> Iterator[tuple[str, str, type]]:
    """Command, objective, and the options that the objective adds."""
    for objective in OBJECTIVES.values():
        if objective.training is not NoOptions:
            yield "vlnbench train", objective.name, objective.training
            yield "vlnbench plan", objective.name, objective.planning


def flags(kind: type, without: frozenset[str] | set[str] = frozenset()) -> dict[str, Field[Any]]:
    """The options of a dataclass by flag, positional ones by name."""
    hints = get_type_hints(kind, include_extras=True)
    shown = [each for each in fields(kind) if each.name not in without]
    return {
        each.name if "Positional" in str(hints[each.name]) else "--" + each.name.replace("_", "-"): each
        for each in shown
    }


def _options(kind: type, without: set[str] | frozenset[str] = frozenset()) -> list[str]:
    hints, helps = get_type_hints(kind), _helps(kind)
    lines = []
    for flag, each in flags(kind, without).items():
        default = _default(each)
        shown = "" if default is MISSING else f" = {str(default) if isinstance(default, Path) else repr(default)}"
        lines += [f"{flag}: {_type(hints[each.name])}{shown}", *_wrapped(helps[each.name], "    ")]
    return lines


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _type(hint: Any) -> str:
    if isinstance(hint, type) and not get_args(hint):
        return hint.__name__
    shown = re.sub(r"\b(typing|pathlib|_local)\.", "", str(hint))
    return re.sub(r"Optional\[(\w+)\]", r"\1 | None", shown)  # as it is written, whatever made the union


def _helps(kind: type) -> dict[str, str]:
    """The text below each field, that of the class which says it last."""
    found: dict[str, str] = {}
    for each in reversed([each for each in kind.__mro__[:-1] if "__annotations__" in vars(each)]):
        body = ast.parse(textwrap.dedent(inspect.getsource(each))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(text, ast.Expr)
                and isinstance(field.target, ast.Name)
            ):
                found[field.target.id] = " ".join(ast.literal_eval(text.value).split())
    return found


def _wrapped(text: str, by: str = "") -> list[str]:
    paragraphs = (" ".join(each.split()) for each in text.split("\n\n"))
    return [
        line for each in paragraphs for line in textwrap.wrap(each, 100, initial_indent=by, subsequent_indent=by)
    ]
