"""The command line shows what docs/reference/commands.md says, which `tests.regenerate` writes."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.cli.command_line import commands, flags, of_families, selections
from vlnbench.cli import main
from vlnbench.cli.commands import Command
from vlnbench.cli.selected import parse

CHOICES = [
    (command, kind, each.kind, name)
    for command, kind in commands()
    for each in getattr(kind, "selections", ())
    for name in each.names()
]


def shown(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> set[str]:
    """The flags that the help of a command begins a line with."""
    with pytest.raises(SystemExit):
        parse(Command, [*arguments, "--help"])
    lines = (line.strip("│ ") for line in capsys.readouterr().out.splitlines())
    found = {flag for line in lines for flag in re.findall(r"(?:^|^--[a-z][a-z-]*, )(--[a-z][a-z0-9-]*)", line)}
    return {flag for flag in found if not flag.startswith("--no-")} - {"--help"}


@pytest.mark.parametrize(("command", "kind"), [*commands()])
def test_the_help_of_a_command_shows_what_is_written_down(
    command: str, kind: type, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = shown(command.split()[1:], capsys)
    chosen = getattr(kind, "selections", ())
    assert {flag for flag in flags(kind, {each.field for each in chosen}) if flag[0] == "-"} <= printed
    assert chosen or hasattr(kind, "of_family") or {flag for flag in flags(kind) if flag[0] == "-"} == printed


@pytest.mark.parametrize(("command", "kind", "what", "name"), CHOICES)
def test_the_help_shows_the_options_of_every_choice(
    command: str, kind: type, what: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (selection,) = (each for each in kind.selections if each.kind == what)  # type: ignore[attr-defined]
    own, common = flags(selection.options_of(name)), flags(kind)
    assert not own.keys() & common.keys(), "one flag for two options"
    assert own.keys() <= shown([*command.split()[1:], f"--{what}", name], capsys)


@pytest.mark.parametrize(("command", "family", "kind", "common"), [*of_families()])
def test_the_help_shows_the_options_of_every_family(
    command: str, family: str, kind: type, common: type, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = shown([*command.split()[1:], "--family", family], capsys)
    assert printed == flags(kind).keys() | flags(common).keys()


def test_options_of_another_agent_end_a_command_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--agent", "random", "--checkpoint", "x"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("vlnbench: error: agent 'random' takes other options: leave out --checkpoint (")
    assert "streamvln" in line


def test_what_was_typed_with_commas_still_is() -> None:
    found = parse(Command, ["eval", "--gpus", "0, 1", "--tracker=tensorboard,trackio"])
    assert (found.gpus, found.tracker) == (("0", "1"), ("tensorboard", "trackio"))
    assert parse(Command, ["eval", "--gpus", "0", "1"]).gpus == ("0", "1")
    assert parse(Command, ["eval", "--gpus", ""]).gpus == ()


@pytest.mark.parametrize("command", sorted({command for command, *_ in [*CHOICES, *of_families()]}))
def test_the_help_of_a_command_loads_nothing_heavy(command: str) -> None:
    loads_nothing_heavy([*command.split()[1:], "--help"])


def test_the_list_of_names_loads_nothing_heavy() -> None:
    loads_nothing_heavy(["list"])


def loads_nothing_heavy(arguments: list[str]) -> None:
    code = f"""
import sys
from vlnbench.cli import main
try:
    main({arguments!r})
except SystemExit:
    pass
heavy = ("torch", "transformers", "habitat", "numba", "numpy", "pandas", "pydantic", "PIL")
print([name for name in heavy if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def test_every_selection_has_choices() -> None:
    assert {"agent"} <= selections().keys()
    assert len(CHOICES) > 30
