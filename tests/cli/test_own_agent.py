"""What people get wrong in an agent of their own, and what the command says of it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vlnbench.api import evaluate
from vlnbench.cli import main
from vlnbench.errors import UsageError
from vlnbench.rollout.agents import facts_of, load_agent

HEAD = "from agents.base import EpisodeAgent\n\n\nclass Mine(EpisodeAgent):\n"
STOPS = "    def act_one(self, seen):\n        return 0\n"
COUNTS = """    sensors = frozenset({"depth"})

    def __init__(self):
        self.history = []

    def begin(self, episode, seed):
        self.history.clear()

    def act_one(self, seen):
        self.history.append(seen.step)
        ahead = float(seen.depth[120:360].mean())
        return 0 if len(self.history) > 25 else 1 if ahead > 1.2 + 0.02 * len(self.history) else 2
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("mine", None)


def ask(
    capsys: pytest.CaptureFixture[str], houses: Path, *options: str, agent: str = "mine:Mine"
) -> tuple[int, str, str]:
    """Exit code, output and errors of an evaluation in which episodes run side by side."""
    data = ["--data-root", str(houses), "--allow-partial", "--benchmark", "houses-r2r", "--split", "val_unseen"]
    code = main(["eval", "--agent", agent, *data, *options])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            HEAD + "    def act_on(self, seen):\n        return 0\n",
            "define act_one(self, observation), the next action (act_on",
        ),
        (
            HEAD + STOPS + "    sensors = {'rbg'}\n",
            "agent 'mine:Mine': sensors: unknown sensor 'rbg': did you mean 'rgb'",
        ),
        (
            HEAD + STOPS + "    sensors = 'rgb'\n",
            "sensors: expected a set such as frozenset({'rgb'}), found 'rgb'",
        ),
        (HEAD + STOPS + "  x = 1\n", "cannot be imported: IndentationError: unindent does not match"),
        (HEAD + "    def act_one(self, seen)\n", "cannot be imported: SyntaxError: expected ':' (mine.py:5)"),
        ("import nothing_there\n", "ModuleNotFoundError: No module named 'nothing_there' (mine.py:1)"),
        (
            "import agents.policy\n",
            "No module named 'agents.policy' (mine.py:1); a package of that name comes with vlnbench",
        ),
        (
            "x = 1 / 0\n",
            "import string 'mine': cannot be imported: ZeroDivisionError: division by zero (mine.py:1)",
        ),
        (HEAD.replace("Mine", "Mind") + STOPS, "module mine has no 'Mine'; did you mean mine:Mind?"),
        (
            HEAD + STOPS + "    def __init__(self):\n        open('weights.pth')\n",
            "agent 'mine:Mine' cannot be made: FileNotFoundError: [Errno 2] No such file or directory",
        ),
        (
            HEAD + STOPS + "    def __init__(self):\n        {}['weights']\n",
            "agent 'mine:Mine' cannot be made: KeyError: 'weights' (mine.py:8)",
        ),
    ],
)
def test_a_mistake_is_one_line(folder: Path, text: str, message: str) -> None:
    (folder / "mine.py").write_text(text)
    with pytest.raises(UsageError) as refused:
        facts_of(load_agent("mine:Mine"), "mine:Mine")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_command_says_it_and_writes_nothing(
    folder: Path, houses: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "mine.py").write_text(HEAD + STOPS + "    sensors = {'rbg'}\n")
    code, _, said = ask(capsys, houses, "--episodes", "1", "--envs", "1")
    assert code == 2
    assert "vlnbench: error: agent 'mine:Mine': sensors: unknown sensor 'rbg': did you mean 'rgb'" in said
    assert "Traceback" not in said
    assert not (folder / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (
            "return 'forward'",
            "the agent returned 'forward' for an action; expected one of vlnbench.interfaces.Action: STOP (0)",
        ),
        ("return None", "the agent returned None for an action"),
        ("import json; json.loads('{')", "JSONDecodeError: Expecting property name"),
    ],
)
def test_what_breaks_in_an_episode_is_a_row_that_names_their_line(
    folder: Path, houses: Path, capsys: pytest.CaptureFixture[str], act: str, reason: str
) -> None:
    first = "        if seen.step == 0: return 1\n"
    (folder / "mine.py").write_text(HEAD + f"    def act_one(self, seen):\n{first}        {act}\n")
    ask(capsys, houses, "--episodes", "1", "--envs", "1", "--out", "run")
    (row,) = map(json.loads, Path("run/episodes.jsonl").read_text().splitlines())
    assert reason in row["reason"]
    assert "json" not in act or row["reason"].endswith("(mine.py:7)")


def test_a_first_step_that_fails_is_a_line_before_the_run(
    folder: Path, houses: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "mine.py").write_text(HEAD + "    def act_one(self, seen):\n        return seen.rgb.mean()\n")
    code, _, said = ask(capsys, houses, "--envs", "1", "--out", "run")
    assert code == 2
    assert "agent 'mine:Mine': its first step failed: AttributeError" in said
    assert "(mine.py:6); the same command with --debug shows all" in said
    assert not (folder / "run").exists()


@pytest.mark.slow
def test_retry_errors_takes_a_mended_agent_where_nothing_had_succeeded(
    folder: Path, houses: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--episodes", "2", "--envs", "1", "--out", "run")
    fails = "        if seen.step == 0: return 1\n        raise KeyError\n"
    (folder / "mine.py").write_text(HEAD + "    def act_one(self, seen):\n" + fails)
    code, _, said = ask(capsys, houses, "--max-errors", "0", *options)
    assert (code, "run the same command with --retry-errors" in said) == (1, True)
    (folder / "mine.py").write_text(HEAD + STOPS)
    sys.modules.pop("mine")
    assert ask(capsys, houses, *options)[0] == 2
    code, _, said = ask(capsys, houses, "--retry-errors", *options)
    assert (code, said.count("failed")) == (0, 0), said
    (folder / "mine.py").write_text(HEAD + STOPS + "#\n")
    sys.modules.pop("mine")
    assert ask(capsys, houses, "--retry-errors", *options)[0] == 2


def test_with_debug_their_exception_is_raised_and_nothing_is_kept(
    folder: Path, houses: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "mine.py").write_text(HEAD + "    def act_one(self, seen):\n        raise KeyError('x')\n")
    with pytest.raises(KeyError) as raised:
        ask(capsys, houses, "--debug")
    assert raised.traceback[-1].path.name == "mine.py"
    assert sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") == ["mine.py"]


def test_a_path_of_a_file_is_an_agent_too(folder: Path, houses: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "below").mkdir()
    (folder / "below/mine.py").write_text(HEAD + STOPS)
    code, printed, _ = ask(capsys, houses, "--debug", agent="./below/mine.py:Mine")
    assert code == 0
    assert "SR" in printed


def test_a_class_is_no_agent() -> None:
    class Mine:
        pass

    with pytest.raises(UsageError, match=r"evaluate: expected an agent or a name, found a class: write Mine\(\)"):
        evaluate(Mine)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_list_in_self_does_not_mix_episodes_and_an_edited_helper_is_another_run(
    folder: Path, houses: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "helper.py").write_text("FAR = 1\n")
    (folder / "mine.py").write_text("import helper\n" + HEAD + COUNTS)
    steps = []
    for count in ("1", "4"):
        code, _, said = ask(capsys, houses, "--envs", count, "--out", f"runs/{count}")
        assert code == 0, said
        rows = map(json.loads, Path(f"runs/{count}/episodes.jsonl").read_text().splitlines())
        steps.append({row["episode_id"]: (row["status"], row["scores"]) for row in rows})
    assert steps[0] == steps[1]
    assert "complete before: no episode was run" in ask(capsys, houses, "--envs", "1", "--out", "runs/1")[2]
    (folder / "helper.py").write_text("FAR = 2\n")
    code, _, said = ask(capsys, houses, "--envs", "1", "--out", "runs/1")
    assert code == 2
    assert "the agent's code or a file that it reads was changed since: another --out keeps both runs" in said


def test_gpus_that_are_not_there_are_refused(
    folder: Path, houses: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vlnbench.evaluation.session.gpus", list)
    code, _, said = ask(capsys, houses, "--gpus", "0,1", agent="stop")
    assert (code, "--gpus 0,1: the driver of this machine shows no GPU" in said) == (2, True)


def test_torchrun_is_refused(
    folder: Path, houses: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    code, _, said = ask(capsys, houses, agent="stop")
    assert (code, "leave torchrun out and name the GPUs, such as --gpus 0,1" in said) == (2, True)


MOVES = """    def __init__(self):
        os.chdir("own")

    def act_one(self, seen):
        assert os.path.exists("here"), os.getcwd()
        os.chdir("/")
        os.chdir(OWN)
        return 1 if seen.step < 2 else 0
"""


@pytest.fixture
def moving(folder: Path) -> Path:
    """An agent that works in a folder of its own, and leaves the process there."""
    (folder / "own").mkdir()
    (folder / "own/here").touch()
    (folder / "mine.py").write_text(f"import os\n\nOWN = {str(folder / 'own')!r}\n{HEAD}{MOVES}")
    return folder


def check_left(folder: Path, *written: str) -> None:
    """The process is where it was, and what was written lies where relative paths led from there."""
    assert Path.cwd() == folder
    assert [path.name for path in (folder / "own").iterdir()] == ["here"]
    assert [name for name in written if not (folder / name).exists()] == []


@pytest.mark.parametrize("out", ["run", None])
def test_relative_paths_are_the_users_wherever_an_agent_goes(
    moving: Path, houses: Path, capsys: pytest.CaptureFixture[str], out: str | None
) -> None:
    given = ["--out", out] if out else []
    code, _, said = ask(capsys, Path(os.path.relpath(houses)), "--episodes", "3", "--envs", "2", *given)
    assert code == 0, said
    (run,) = [moving / out] if out else moving.glob("runs/houses-r2r/val_unseen/*")
    rows = [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()]
    assert [row["status"] for row in rows] == ["ok"] * 3, rows
    check_left(moving, f"{run.relative_to(moving)}/summary.json")


def test_an_agent_that_moves_is_debugged(moving: Path, houses: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, said = ask(capsys, Path(os.path.relpath(houses)), "--debug")
    assert code == 0, said
    check_left(moving)


@pytest.mark.slow
def test_a_collection_lies_where_it_was_to_wherever_its_driver_goes(
    moving: Path, houses: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--data-root", os.path.relpath(houses), "--benchmark", "houses-r2r", "--allow-partial"]
    drives = ["--dagger", "--agent", "mine:Mine", "--relabel", "0", "--longest", "5", "--tours", "2"]
    assert main(["collect", *data, *drives, "--out", "set", "--frame-width", "64"]) == 0, capsys.readouterr().err
    check_left(moving, "set/annotations.json", "set/collect.json", "set/images")
