"""What others wrote moves no cursor, whatever prints it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agents.scripted import RandomAgent
from tests.runs import record, write_dataset
from vlnbench.cli import main
from vlnbench.evaluation.records import MANIFEST, ROWS
from vlnbench.util.progress import say
from vlnbench.util.visible import visible

ESCAPES = "\x1b]0;title\x07\x1b[31mred\r\x9b2J\x7f\u202eback\u2066"


def test_control_characters_are_written_out_and_text_stays() -> None:
    assert visible("\x1b[31m\u202e\x7f\r\ud800") == "\\x1b[31m\\u202e\\x7f\\r\\ud800"
    text = "añ 中文 हिन्दी עברית\tone\ntwo"
    assert visible(text) == text


def obeyed(text: str) -> set[str]:
    return {each for each in text if each in ESCAPES and not each.isprintable()}


def test_lines_for_the_user_are_visible(capsys: pytest.CaptureFixture[str]) -> None:
    say(ESCAPES)
    assert not obeyed(capsys.readouterr().err)


@pytest.mark.parametrize("command", ["status", "rank", "compare", "report", "view", "leaderboard"])
def test_a_foreign_run_moves_no_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    run = tmp_path / "run"
    record(write_dataset(tmp_path / "data"), RandomAgent(), run)
    rows = [json.loads(line) for line in (run / ROWS).read_text().splitlines()]
    rows[0] |= {"status": "error", "reason": ESCAPES, "scores": {}}
    rows[1] |= {"report": {ESCAPES: 1}}
    (run / ROWS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    manifest = json.loads((run / MANIFEST).read_text())
    manifest["identity"] |= {"agent": ESCAPES, "simulator": ESCAPES}
    (run / MANIFEST).write_text(json.dumps(manifest))
    options = {
        "compare": [str(run)],
        "report": [f"--data-root={tmp_path}"],
        "view": [f"--data-root={tmp_path}", f"--out={tmp_path / 'view.html'}"],
        "leaderboard": [f"--results={tmp_path}"],
    }
    main([command, str(run), *options.get(command, [])])
    told = capsys.readouterr()
    assert told.out or told.err
    assert not obeyed(told.out + told.err)


def test_an_error_about_a_foreign_file_moves_no_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / ESCAPES.replace("/", "")
    assert main(["status", str(folder)]) == 2
    told = capsys.readouterr().err
    assert "red" in told
    assert not obeyed(told)
