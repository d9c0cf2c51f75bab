"""`answers.jsonl` beside the rows: these are the same with it and without, and it fits them whatever happens."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agents.base import EpisodeAgent
from tests.evaluation.test_evaluate import plan, timeless
from tests.fakes import PlaneEnv
from vlnbench.errors import UsageError
from vlnbench.evaluation.answers.file import ANSWERS, read_answers
from vlnbench.evaluation.evaluate import Execution, evaluate
from vlnbench.evaluation.records import ROWS, TRAJECTORIES, read_rows
from vlnbench.interfaces import Action, Observation
from vlnbench.rollout.executor import Limits
from vlnbench.rollout.inline import Inline

KEEP = Execution(Limits(answers=True))


class Speaker(EpisodeAgent):
    """Says at which step it is, and breaks in the third episode as long as `broken`."""

    broken = False

    def act_one(self, observation: Observation) -> Action:
        self.say(f"at {observation.step}: <b>↑</b>")
        if self.broken and observation.step == 3 and "5.0 meters" in observation.instruction:
            raise RuntimeError("no more")
        return Action.MOVE_FORWARD if observation.step < 6 else Action.STOP


def run(folder: Path, execution: Execution, agent: EpisodeAgent | None = None) -> None:
    evaluate(plan("speaker"), Inline(agent or Speaker(), PlaneEnv()), folder, execution=execution)


def test_rows_and_trajectories_are_the_same_with_and_without(tmp_path: Path) -> None:
    run(tmp_path / "with", KEEP)
    run(tmp_path / "without", Execution())
    assert timeless(tmp_path / "with") == timeless(tmp_path / "without")
    assert (tmp_path / "with" / TRAJECTORIES).read_bytes() == (tmp_path / "without" / TRAJECTORIES).read_bytes()
    assert not (tmp_path / "without" / ANSWERS).exists()
    kept = read_answers(tmp_path / "with")
    assert kept.keys() == {row.key for row in read_rows(tmp_path / "with")}
    assert all([each.step for each in answers] == list(range(7)) for answers in kept.values())


def test_an_episode_that_is_run_again_has_what_was_said_last(tmp_path: Path) -> None:
    broken = Speaker()
    broken.broken = True
    run(tmp_path, KEEP, broken)
    (failed,) = [row.key for row in read_rows(tmp_path) if row.failed]
    assert len(read_answers(tmp_path)[failed]) == 3  # what it said as it broke is not told
    run(tmp_path, Execution(Limits(answers=True), retry_errors=True))
    assert len(read_answers(tmp_path)[failed]) == 7


def test_what_a_run_without_answers_replaces_is_forgotten(tmp_path: Path) -> None:
    broken = Speaker()
    broken.broken = True
    run(tmp_path, KEEP, broken)
    (failed,) = [row.key for row in read_rows(tmp_path) if row.failed]
    run(tmp_path, Execution(retry_errors=True))
    kept = read_answers(tmp_path)
    assert kept.pop(failed) == []
    assert {len(answers) for answers in kept.values()} == {7}


PROGRAM = """
import os, signal, sys
from pathlib import Path
from tests.evaluation.answers.test_file import KEEP, run
import vlnbench.evaluation.records as records
from vlnbench.util.durable import files

write, at, lines = files.write_all, sys.argv[2], [0]
def torn(file, content):
    lines[0] += os.readlink(f"/proc/self/fd/{file}").endswith(at)
    if lines[0] == 4:
        os.write(file, content[: len(content) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    write(file, content)
for module in (files, records, sys.modules["vlnbench.evaluation.answers.file"]):
    module.write_all = torn
run(Path(sys.argv[1]), KEEP)
"""


@pytest.mark.slow  # in processes of their own
@pytest.mark.parametrize("at", [ANSWERS, TRAJECTORIES, ROWS])
def test_killed_in_the_middle_of_a_line_it_goes_on_as_if_nothing_had_been(tmp_path: Path, at: str) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run(whole, KEEP)
    ended = subprocess.run([sys.executable, "-c", PROGRAM, str(killed), at], cwd=Path(__file__).parents[3])
    assert ended.returncode == -signal.SIGKILL
    assert len(read_rows(killed)) == 3
    run(killed, KEEP)
    assert timeless(killed) == timeless(whole)
    said = {key: [(each.step, each.answer) for each in answers] for key, answers in read_answers(killed).items()}
    assert said == {key: [(each.step, each.answer) for each in told] for key, told in read_answers(whole).items()}


def test_a_line_of_others_is_named(tmp_path: Path) -> None:
    run(tmp_path, KEEP)
    first, *rest = (tmp_path / ANSWERS).read_text().splitlines(keepends=True)
    for field, value in (("actions", "x"), ("texts", [{}])):
        broken = json.dumps({**json.loads(first), field: value}) + "\n"
        (tmp_path / ANSWERS).write_text(broken + "".join(rest))
        with pytest.raises(UsageError, match=rf"answers.jsonl: line 1: field '{field}'"):
            read_answers(tmp_path)
