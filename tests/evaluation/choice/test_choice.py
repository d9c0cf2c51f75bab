from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agents.scripted import StopAgent
from tests.fakes import make_episode, make_set
from tests.runs import make_identity, nine_episodes, record, write_dataset
from vlnbench.cli import main
from vlnbench.data.benchmarks import get_benchmark
from vlnbench.data.episodes import load_split
from vlnbench.errors import UsageError
from vlnbench.evaluation.choice.choice import Choice, differences, is_first, read_choice
from vlnbench.evaluation.choice.conditions import parse_conditions
from vlnbench.evaluation.choice.shape import average
from vlnbench.evaluation.evaluate import make_plan
from vlnbench.evaluation.identity import read_identity
from vlnbench.evaluation.options import EvalOptions
from vlnbench.evaluation.recorded import load_run, remake_plan
from vlnbench.evaluation.records import MANIFEST
from vlnbench.evaluation.session import FIRST_OF_R2R
from vlnbench.evaluation.summary import format_summary, summarize
from vlnbench.leaderboard.board import OwnRun, make_tables
from vlnbench.leaderboard.committed import Entry, add_run
from vlnbench.leaderboard.published import Literature
from vlnbench.leaderboard.ranking import rank, rank_sheet
from vlnbench.leaderboard.sheets import render
from vlnbench.report.data import read_run
from vlnbench.report.maps import scene_storeys
from vlnbench.report.page import render as render_report

EPISODES = nine_episodes()  # 0 to 8, in scenes a, b, c by turns; 4.0, 4.5, ... m long
BENCHMARK = get_benchmark("houses-r2r")


def ids(choice: Choice) -> str:
    return "".join(episode.episode_id for episode in choice.select(EPISODES))


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (Choice(), "012345678"),
        (Choice(episode_ids=("7", "2", "3")), "237"),
        (Choice(scenes=("a",)), "036"),
        (Choice(scenes=("a/a.glb", "c")), "023568"),
        (Choice(where="length < 5"), "01"),
        (Choice(where="length>=5,length<=6"), "234"),
        (Choice(where="length>5, length=6.5"), "5"),
        (Choice(where="turns=0"), "012345678"),
        (Choice(languages=("en",)), "012345678"),
        (Choice(episode_ids=("0", "1", "3"), scenes=("a",), where="length>4"), "3"),
    ],
)
def test_what_is_chosen(choice: Choice, expected: str) -> None:
    assert ids(choice) == expected


def test_turns_are_corners_of_the_reference_path() -> None:
    straight = [(0.0, 0.0, -float(i)) for i in range(4)]
    bent = [*straight, (1.0, 0.0, -3.0), (1.0, 0.0, -5.0)]
    episodes = [
        replace(EPISODES[0], reference_path=tuple(straight)),
        replace(EPISODES[1], reference_path=tuple(bent)),
    ]
    assert [e.episode_id for e in Choice(where="turns>=2").select(episodes)] == ["1"]
    assert average("turns", episodes) == 1.0


def test_languages_are_codes_or_their_first_letters() -> None:
    spoken = [replace(e, language=code) for e, code in zip(EPISODES, ["en-US", "en-IN", "te-IN"], strict=False)]
    assert [e.episode_id for e in Choice(languages=("en",)).select(spoken)] == ["0", "1"]
    assert [e.episode_id for e in Choice(languages=("en-US", "te")).select(spoken)] == ["0", "2"]
    with pytest.raises(UsageError, match="unknown language of the split 'hi'"):
        Choice(languages=("hi",)).select(spoken)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (Choice(episode_ids=("99",)), "unknown episode '99': none of the 9"),
        (Choice(scenes=("d",)), "unknown scene of the split 'd': known: a, b, c"),
        (Choice(scenes=("a", "a")), "--scenes: 'a' stands there twice"),
        (Choice(episode_ids=("",)), "--episode-ids: an empty name"),
        (Choice(where="length<1"), "no episode of the 9 of the split is left by length<1"),
        (Choice(where="success>0"), "cannot read 'success>0'; expected conditions"),
        (Choice(where="length<8; turns>1"), "cannot read"),
        (Choice(where="length<"), "cannot read"),
    ],
)
def test_what_cannot_be_chosen(choice: Choice, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        choice.select(EPISODES)


def test_a_dataset_that_does_not_tell_is_named() -> None:
    secret = [replace(EPISODES[0], geodesic_distance=None)]
    with pytest.raises(UsageError, match="episode 0 has no length in its dataset"):
        Choice(where="length<8").select(secret)
    assert average("length", secret) is None


def test_names_of_choices() -> None:
    assert Choice().label == ""
    assert Choice(episode_ids=("3", "4")).label == "2 chosen by id"
    long = Choice(scenes=("a", "b", "c", "d"), languages=("en",), where="turns >=2,length< 8")
    assert long.label == "4 scenes; language en; turns>=2, length<8"
    assert parse_conditions("") == ()


def test_the_first_of_a_file_are_known_and_how_they_differ() -> None:
    assert is_first(EPISODES[:3], EPISODES)
    assert not is_first(EPISODES[1:3], EPISODES)
    assert not is_first(EPISODES, EPISODES)
    expected = (
        "1 of 3 scenes, mean length 4.0 m (split 6.0 m), mean turns 0.0 (split 0.0), mean words 4.0 (split 4.0)"
    )
    assert differences(EPISODES[:1], EPISODES) == expected


def test_a_choice_is_part_of_the_identity_and_found_again(tmp_path: Path) -> None:
    root = write_dataset(tmp_path / "data")
    choice = Choice(scenes=("a", "b"), where="length<8")
    plan = record(root, StopAgent(), tmp_path / "run", choice=choice, count=4)
    identity = load_run(tmp_path / "run").identity
    assert (identity.choice, identity.episodes, identity.split_size) == ("scenes a, b; length<8", 4, 9)
    assert identity.episodes_of == "4 of 9 (scenes a, b; length<8)"
    again = remake_plan(load_run(tmp_path / "run"), root)
    assert [e.episode_id for e in again.episodes] == [e.episode_id for e in plan.episodes]
    assert identity.digest() != replace(identity, choice="").digest()
    with pytest.raises(UsageError, match="holds another run: choice 'scenes a, b; length<8'"):
        record(root, StopAgent(), tmp_path / "run", choice=Choice(scenes=("a", "b")), count=4)


def test_a_number_draws_from_what_is_chosen() -> None:
    chosen = make_plan(BENCHMARK, make_set("x"), "a", count=2, seed=0, repeats=1, choice=Choice(scenes=("a",)))
    assert len(chosen.episodes) == 2
    assert {episode.scene_id for episode in chosen.episodes} == {"a/a.glb"}
    with pytest.raises(UsageError, match="has 1 to 9 episodes; chosen are 3"):
        make_plan(BENCHMARK, make_set("x"), "a", count=4, seed=0, repeats=1, choice=Choice(scenes=("a",)))


def test_runs_without_a_choice_keep_their_names_and_are_read() -> None:
    """The digest of an identity before there were choices."""
    identity = make_identity()
    assert identity.digest() == "a9b05478"
    plain = {name: value for name, value in identity.flat().items() if name != "choice"}
    assert read_identity({**plain, "agent_identity": {}}, "x").choice == ""
    with pytest.raises(UsageError, match=r"'identity.choice': expected str"):
        read_identity({**plain, "agent_identity": {}, "choice": 7}, "x")


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([], "field 'choice': expected an object"),
        ({"scenes": "a"}, "field 'choice.scenes': expected a list of names"),
        ({"episode_ids": [1]}, "field 'choice.episode_ids': expected a list of names"),
        ({"where": 3}, "field 'choice.where': expected text"),
        ({"which": ""}, "field 'choice.which': unknown field"),
    ],
)
def test_broken_choices_in_manifests(found: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_choice(found, "manifest.json")


def test_every_table_says_what_was_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_dataset(tmp_path / "data")
    run = tmp_path / "run"
    record(root, StopAgent(), run, choice=Choice(episode_ids=("0", "1", "2")))
    label = "3 chosen by id; the first of the file"
    loaded = load_run(run)
    summary = summarize(loaded.rows.values(), list(loaded.rows), loaded.identity)
    assert f"episodes 3 of 9 ({label})" in format_summary(summary)
    assert f"episodes 3 of 9 ({label})" in rank_sheet(rank([run])[0]).title
    assert main(["compare", str(run), str(run)]) == 0
    assert f"episodes 3 of 9 ({label})" in capsys.readouterr().out
    data = read_run(run, root)
    assert f"chosen episodes: {label}" in render_report(data, scene_storeys(data.entries), {}, {})
    own = OwnRun(loaded, Entry(name="stop"), summary)
    files = render(make_tables(Literature(protocols={}, rows=()), [own]))
    assert all(f"3 of 9 ({label})" in text for text in files.values())
    made = json.loads((add_run(run, tmp_path / "results", Entry(name="stop")) / MANIFEST).read_text())
    assert "--episode-ids=0,1,2" in made["trajectories"]["made_by"]
    assert "--episodes=" not in made["trajectories"]["made_by"]


def test_options_make_the_choice() -> None:
    options = EvalOptions(episode_ids=("1", "2"), where="length<9", agents=1)
    assert (
        options.choice
        == Choice(("1", "2"), (), (), "length<9")
        == Choice.of({"episode_ids": ("1", "2"), "where": "length<9"})
    )
    assert options.most_envs == 2
    with pytest.raises(UsageError, match="cannot read 'x'"):
        EvalOptions(where="x").check()


@pytest.mark.slow
def test_the_command_warns_of_the_first_of_a_file(
    houses: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["eval", "--agent", "blind", "--data-root", str(houses), "--envs", "1"]
    assert main([*command, "--out", str(tmp_path / "run"), "--episode-ids", "1,2", "--allow-partial"]) == 0
    captured = capsys.readouterr()
    assert "(2 chosen by id; the first of the file)" in captured.out
    assert "chosen: 2 chosen by id; the first of the file: 1 of" in captured.err
    assert "warning: these are the first 2 episodes of their file" in captured.err


def test_unfinished_lengths_are_left_out_of_means() -> None:
    endless = replace(EPISODES[1], geodesic_distance=float("inf"))
    assert average("length", [make_episode(0, distance=4.0), endless]) == 4.0


def test_the_bias_of_the_first_episodes_is_what_the_warning_says(shared: Path) -> None:
    log = json.loads((shared / "data" / "cwp_logs" / "cwp_cma_val_unseen_episodes.json").read_text())
    episodes = load_split(get_benchmark("r2r-ce"), "val_unseen", shared / "data", allow_partial=True).episodes
    won = [log[episode.episode_id]["success"] for episode in episodes]
    shares = (f"{100 * sum(won[:n]) / n:.1f} %" for n in (len(won), 48, 100))
    assert all(share in FIRST_OF_R2R for share in shares)
    assert [f"{average('length', episodes[:n]):.2f}" for n in (48, len(won))] == ["9.97", "8.90"]
    assert differences(episodes[:48], episodes).startswith("7 of 11 scenes")
