from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import yaml

import vlnbench.cli.commands  # noqa: F401 - so that `_nothing_runs` finds all of them
from agents.table import AGENTS, FAMILIES
from tests.docs.pages import PAGES, ROOT, blocks, code, commands, document, inline
from vlnbench import cli
from vlnbench.data.generator import get_generator
from vlnbench.defaults import GENERATORS
from vlnbench.training.objectives import OBJECTIVES

_OPTION = re.compile(r"--[a-z][a-z0-9-]*")
_DEFINED = re.compile(r"^(?:│ |  )(--[a-z][a-z0-9-]*)(?:, (--no-[a-z0-9-]+))?", re.MULTILINE)
_COMMANDS = re.compile(r"• ([a-z]+)")
_NUMBERS = {"N", "K", "S", "X"}
_SELECTING = ("agent", "family", "objective")
VARIANTS = {"--inference": "--inference", "--from-script": "--from-script=FILE"}
"""Options that make another command of one."""
OF_OTHERS = {"--full-size", "--requeue", "--ipc", "--nnodes", "--node-rank", "--rdzv-endpoint"}
"""Options in running text that belong to other programs."""


@cache
def help_of(*arguments: str) -> str:
    """What `vlnbench ARGUMENTS --help` prints, in one column."""
    printed = io.StringIO()
    columns = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "80"
    try:
        with contextlib.redirect_stdout(printed), pytest.raises(SystemExit) as ended:
            cli.main([*arguments, "--help"])
    finally:
        os.environ.pop("COLUMNS")
        if columns is not None:
            os.environ["COLUMNS"] = columns
    assert ended.value.code == 0, f"there is no vlnbench {' '.join(arguments)}"
    return printed.getvalue()


def options_of(*arguments: str) -> set[str]:
    return {name for pair in _DEFINED.findall(help_of(*arguments)) for name in pair if name} | {"--help"}


def all_commands() -> list[tuple[str, ...]]:
    names = [(name,) for name in _COMMANDS.findall(help_of())]
    return [
        (*name, *inner)
        for name in names
        for inner in [(each,) for each in _COMMANDS.findall(help_of(*name))] or [()]
    ]


def whole(page: Path) -> list[list[str]]:
    """Calls in shell and Kubernetes blocks."""
    found: list[list[str]] = []
    for language, text in blocks(page):
        if language == "bash":
            found += commands(text)
        elif language == "yaml" and "containers" in text:
            (container,) = yaml.safe_load(text)["spec"]["template"]["spec"]["containers"]
            assert container["command"][0] == "vlnbench"
            found.append(container["command"][1:])
    return found


@pytest.fixture
def _nothing_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Commands are parsed and not carried out; what documents add is there."""
    for name, module in list(sys.modules.items()):
        if name.startswith("vlnbench.cli"):
            for kind in vars(module).values():
                if isinstance(kind, type) and dataclasses.is_dataclass(kind) and "run" in vars(kind):
                    monkeypatch.setattr(kind, "run", lambda self: None)
    for name in GENERATORS:  # their commands are made from them, and are no class of a module
        monkeypatch.setattr(type(get_generator(name)), "generate", lambda self, options: [])
    for module, page, name in (
        ("my_module", "your_agent.md", "Mine"),
        ("my_family", "add_model.md", "FrozenNorms"),
        ("my_policy", "plugins.md", "MyPolicy"),
    ):
        (tmp_path / f"{module}.py").write_text(code(document(page), name), encoding="utf-8")
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(ROOT / "examples"))


@pytest.mark.usefixtures("_nothing_runs")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_blocks_parse(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in whole(page):
        given = ["1" if argument in _NUMBERS else argument for argument in arguments]
        if given[0] == "train":  # its options depend on what the checkpoint is
            given = ["streamvln-tiny" if argument == "DIR" else argument for argument in given]
        try:
            code: object = cli.main(given)
        except SystemExit as refused:
            code = refused.code
        assert code == 0, f"vlnbench {' '.join(arguments)}: {capsys.readouterr()}"


@pytest.mark.usefixtures("_nothing_runs")
@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("train_streamvln_tiny.sh", "streamvln-tiny"),
        ("train_base_tiny.sh", "base-0-round5"),
    ],
)
def test_the_training_of_the_small_model_is_whole(tmp_path: Path, name: str, last: str) -> None:
    """Its commands parse, and use checkpoints and sets that the commands before them have made."""
    for called in ("vlnbench", "torchrun"):
        program = tmp_path / called
        program.write_text(f'#!/bin/sh\necho {called} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
    script = ROOT / "examples" / name
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    printed = subprocess.run(
        ["bash", script], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=True
    ).stdout
    made: set[str] = set()
    for line in printed.splitlines():
        (arguments,) = commands(line)
        checkpoint = _after(arguments, "--checkpoint")
        assert checkpoint in {None, "preset:streamvln-tiny", "streamvln-tiny", *made}, line
        assert cli.main(["streamvln-tiny" if each in made else each for each in arguments]) == 0, line
        for option in ("--sets", "--vocabulary-of"):
            names = itertools.takewhile(lambda each: not each.startswith("--"), _from(arguments, option))
            assert made.issuperset(f"trajectory_data/{name.split(':')[0]}" for name in names), line
        out = _after(arguments, "--out")
        if out is not None:
            assert out not in made, line
            made.add(f"{out}/model" if arguments[0] == "train" else out)
    assert f"runs/{last}/model" in made


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_the_text_exist_with_their_options(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    calls = [text for text in inline(page) if text.startswith(("vlnbench ", "torchrun "))]
    for arguments in (each for text in calls for each in commands(text)):
        words = next(each for each in sorted(all_commands(), key=len, reverse=True) if _begins(arguments, each))
        chosen = [f"--{kind}={name}" for kind in _SELECTING if (name := _after(arguments, f"--{kind}"))]
        chosen += [VARIANTS[word] for word in arguments if word in VARIANTS]
        unknown = {name for argument in arguments for name in _OPTION.findall(argument)} - options_of(
            *words, *chosen
        )
        assert not unknown, f"vlnbench {' '.join(arguments)}: there is no {', '.join(sorted(unknown))}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_options_named_alone_belong_to_some_command(page: Path) -> None:
    known = {name for words in all_commands() for name in options_of(*words)} | OF_OTHERS
    for agent in AGENTS:
        known |= options_of("eval", "--agent", agent)
    for family in FAMILIES:
        known |= options_of("train", "--family", family)
    for objective in OBJECTIVES:
        known |= options_of("train", "--objective", objective)
    known |= options_of("train", "--from-script=FILE") | options_of("plan", "--inference")
    for text in inline(page):
        if text.startswith("--"):
            unknown = set(_OPTION.findall(text)) - known
            assert not unknown, f"{text}: no command has {', '.join(sorted(unknown))}"


def test_the_table_of_commands_names_all() -> None:
    overview = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    assert {words[0] for words in all_commands()} - set(re.findall(r"`vlnbench ([a-z]+)", overview)) == set()


def _begins(arguments: list[str], words: tuple[str, ...]) -> bool:
    """Whether a call is one of a command; `vlnbench data` alone stands for all of its commands."""
    return tuple(arguments[: len(words)]) == words or (len(arguments) == 1 and arguments[0] == words[0])


def _from(arguments: list[str], option: str) -> list[str]:
    """What follows an option; nothing where it is not given."""
    return arguments[arguments.index(option) + 1 :] if option in arguments else []


def _after(arguments: list[str], option: str) -> str | None:
    """Value of an option, unless it is a placeholder."""
    value = arguments[arguments.index(option) + 1] if option in arguments else None
    return None if value is None or value.isupper() or "my_" in value or "custom_" in value else value
