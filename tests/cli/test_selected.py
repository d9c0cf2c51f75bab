from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import pytest
from tyro.conf import subcommand

from vlnbench.cli.selected import Selection, parse
from vlnbench.errors import UsageError, unknown


@dataclass(frozen=True, kw_only=True)
class Common:
    size: int = 8
    """How many at once."""


@dataclass(frozen=True, kw_only=True)
class Apple(Common):
    red: bool = True
    """Whether it is red."""


@dataclass(frozen=True, kw_only=True)
class Pear(Common):
    stem_length: float = 2.0
    """Centimeters."""


FRUIT = {"apple": Apple, "pear": Pear, "russet": Pear, "berry": Common}


def fruit(name: str) -> type[Common]:
    if name not in FRUIT:
        raise UsageError(unknown("fruit", name, FRUIT))
    return FRUIT[name]


CHOSEN = (Selection("fruit", "fruit_options", Common, fruit, lambda: FRUIT),)


@dataclass(frozen=True)
class Eat:
    """Eat a fruit."""

    selections: ClassVar[tuple[Selection, ...]] = CHOSEN

    fruit: str = "apple"
    """Which one."""
    often: int = 1
    """Times."""
    fruit_options: Common = field(default_factory=Common)


@dataclass(frozen=True)
class Sell:
    """Sell a fruit."""

    selections: ClassVar[tuple[Selection, ...]] = CHOSEN

    fruit: str
    """Which one."""
    fruit_options: Common = field(default_factory=Common)


@dataclass(frozen=True)
class Rest:
    """Do nothing."""


COMMANDS = (
    Annotated[Eat, subcommand("eat", prefix_name=False)]
    | Annotated[Sell, subcommand("sell", prefix_name=False)]
    | Annotated[Rest, subcommand("rest", prefix_name=False)]
)


def test_the_command_gets_the_options_of_what_is_chosen() -> None:
    assert parse(COMMANDS, ["eat"]) == Eat(fruit_options=Apple())
    assert parse(COMMANDS, ["eat", "--no-red", "--size", "2"]) == Eat(fruit_options=Apple(size=2, red=False))
    found = parse(COMMANDS, ["eat", "--stem-length", "3", "--fruit=pear", "--often", "2"])
    assert found == Eat("pear", 2, Pear(stem_length=3.0))
    assert type(found) is Eat
    assert parse(COMMANDS, ["eat", "--fruit", "pear", "--fruit", "berry"]) == Eat("berry")
    assert parse(COMMANDS, ["sell", "--fruit", "russet"]) == Sell("russet", Pear())
    assert parse(COMMANDS, ["rest"]) == Rest()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["eat", "--fruit", "aple"], "unknown fruit 'aple': did you mean 'apple'? known: apple, berry"),
        (
            ["eat", "--stem_length=3"],
            "fruit 'apple' takes other options: leave out --stem-length (--stem-length is an option of pear and",
        ),
        (["eat", "--fruit", "berry", "--no-red", "--stem-length", "1"], "leave out --no-red, --stem-length ("),
        (["sell", "--red"], "--fruit NAME is missing: --red is an option of apple"),
    ],
)
def test_options_of_another_are_refused_in_one_line(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(COMMANDS, arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "shown", "hidden"),
    [
        (
            ["eat"],
            ("--red", "Options of fruit 'apple'; those of another:", "vlnbench eat --fruit"),
            "--stem-length",
        ),
        (["eat", "--fruit", "pear"], ("--stem-length", "Centimeters."), "--red"),
        (["sell"], ("--size", "Options of every fruit; those of one:"), "--red"),
    ],
)
def test_help_shows_the_options_of_what_is_chosen(
    arguments: list[str], shown: tuple[str, ...], hidden: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(COMMANDS, [*arguments, "--help"])
    assert caught.value.code == 0
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for text in shown:
        assert text in printed
    assert hidden not in printed


def test_options_that_nobody_has_are_left_to_the_parser(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(COMMANDS, ["eat", "--color", "blue"])
    assert caught.value.code == 2
    assert "--color" in capsys.readouterr().err
