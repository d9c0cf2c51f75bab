from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agents.scripted import StopAgent
from tests.fakes import make_episode
from tests.runs import record, write_dataset
from vlnbench.errors import UsageError
from vlnbench.evaluation.choice.told import told_others
from vlnbench.evaluation.evaluate import Plan
from vlnbench.evaluation.identity import TOLD_MARK
from vlnbench.evaluation.recorded import load_run, load_table, named_apart, remake_plan
from vlnbench.evaluation.summary import format_summary, summarize_table
from vlnbench.interfaces import Episode
from vlnbench.leaderboard.committed import ENTRY, read_entry

EPISODES = [
    replace(make_episode(i, scene="abc"[i % 3]), instruction=f"Walk to {i}.", instruction_tokens=(i,))
    for i in range(9)
]


class Listens(StopAgent):
    """Notes what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: dict[str, str] = {}

    def reset(self, slot: int, episode: Episode, seed: int) -> None:
        self.told[episode.episode_id] = episode.instruction
        super().reset(slot, episode, seed)


def test_everything_but_the_instruction_stays() -> None:
    for own, told in zip(EPISODES, told_others(EPISODES, EPISODES), strict=True):
        other = next(each for each in EPISODES if each.instruction == told.instruction)
        assert other.scene_id != own.scene_id
        assert told == replace(own, instruction=other.instruction, instruction_tokens=other.instruction_tokens)


def test_what_is_told_depends_on_ids_alone() -> None:
    everything = told_others(EPISODES, EPISODES)
    assert told_others(EPISODES[4:6], EPISODES[::-1]) == everything[4:6]


def test_instructions_are_of_the_same_language() -> None:
    spoken = [replace(each, language="te" if i < 4 else "en") for i, each in enumerate(EPISODES)]
    languages = {each.instruction: each.language for each in spoken}
    assert all(languages[each.instruction] == each.language for each in told_others(spoken, spoken))


def test_one_scene_has_no_other_instruction() -> None:
    message = "--told other: episode 0: no instruction in en of another scene"
    with pytest.raises(UsageError, match=message):
        told_others(EPISODES[:1], EPISODES[::3])


def test_a_run_says_what_was_told_and_is_planned_again_so(tmp_path: Path) -> None:
    root, runs = write_dataset(tmp_path / "data", episodes=EPISODES), []
    plans: dict[str, Plan] = {}
    for told in ("own", "other"):
        agent = Listens()
        plans[told] = record(root, agent, tmp_path / told, told=told)
        assert agent.told == {each.episode_id: each.instruction for each in plans[told].episodes}
        runs.append(load_run(tmp_path / told))
        assert remake_plan(runs[-1], root).episodes == plans[told].episodes
    own, other = (run.identity for run in runs)
    assert dict(other.agent_identity) == {**own.agent_identity, "told": "other"}
    assert own.digest() != other.digest()
    assert own.episodes_sha256 == other.episodes_sha256, "they can stand in one table"
    assert named_apart(runs, ["agent", "agent"]) == ["agent", "agent (told other)"]
    assert [run.identity.called for run in runs] == ["agent", "agent (told other instructions)"]
    for name in (None, "mine", "mine (told other instructions)"):
        if name:
            (tmp_path / "other" / ENTRY).write_text(json.dumps({"name": name}))
        assert read_entry(runs[1]).name == f"{name or 'agent'}".removesuffix(TOLD_MARK) + TOLD_MARK
    assert "agent (told other instructions) in " in format_summary(
        summarize_table(load_table(tmp_path / "other").table, other)
    )
    with pytest.raises(UsageError, match="holds another run"):
        record(root, Listens(), tmp_path / "own", told="other")


def test_names_of_runs_that_say_the_same_of_themselves(tmp_path: Path) -> None:
    root = write_dataset(tmp_path / "data")
    for name in ("a", "b"):
        record(root, StopAgent(), tmp_path / name)
    runs = [load_run(tmp_path / name) for name in ("a", "b")]
    assert named_apart(runs, ["agent", "agent"]) == ["agent (a)", "agent (b)"]
    assert named_apart(runs, ["one", "another"]) == ["one", "another"]
