"""DAgger as VLN-CE does it: who acts is drawn, the expert's action labels every state, what was done is felt."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from agents.base import EpisodeAgent
from tests.fakes import make_episode
from tests.training.collect.test_collect import request
from tests.training.collect.test_dagger import GuidedPlane
from vlnbench.conformance import AgentConformance
from vlnbench.data.sets import TRAJECTORIES
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Agent, Episode, Observation
from vlnbench.rollout.agents import facts_of
from vlnbench.training.collect.collect import MANIFEST, collect
from vlnbench.training.collect.relabel import Mixed, MixedOptions, Relabeling
from vlnbench.training.collect.walk import GOAL_RADIUS_M, SharedPath, WalkTask, walk

STOP, FORWARD, LEFT = Action.STOP, Action.MOVE_FORWARD, Action.TURN_LEFT
NAME = f"{__name__}:Turning"


class Turning(EpisodeAgent):
    """Turns left, but for a STOP after 12 turns, and remembers what was done."""

    done: list[Action]

    def begin(self, episode: Episode, seed: int) -> None:
        self.done = []

    def act_one(self, observation: Observation) -> Action:
        self.done.append(STOP if len(self.done) == 12 else LEFT)
        return self.done[-1]

    def feel(self, slot: int, action: Action) -> None:
        running = self._running[slot]
        assert isinstance(running, Turning)
        running.done[-1] = action


class ExpertPlane(GuidedPlane):
    """The plane with an expert, and depth."""

    def _observe(self) -> Observation:
        seen = super()._observe()
        goal = make_episode(1, distance=5).goals[0]
        expert = self.shortest_path_action(goal, GOAL_RADIUS_M)
        return replace(seen, oracle_action=expert, depth=np.full((48, 64), 1.2345, np.float32))


def mixed(share: float, overrule_stops: bool = False) -> Mixed:
    return Mixed(MixedOptions(driver=NAME, expert_share=share, overrule_stops=overrule_stops))


def walked(
    share: float,
    root: Path,
    longest: int = 498,
    seed: int = 0,
    depth: bool = False,
    overrule_stops: bool = False,
    stop_within: float | None = None,
) -> Any:
    episode = replace(make_episode(1, distance=5), instruction_tokens=(4, 0, 7, 0, 0))
    agent = mixed(share, overrule_stops)
    kind = WalkTask(SharedPath("walk", (episode,)), root, Relabeling(seed, longest, stop_within), depth)
    record = walk(ExpertPlane(), kind, kind.guide.route(agent)).product.record
    running = agent._driver._running[0]  # type: ignore[attr-defined]
    return record, running.done


class TestMixed(AgentConformance):
    def make_agent(self) -> Agent:
        return mixed(0.5)


def test_the_model_alone_is_labeled_by_the_expert(tmp_path: Path) -> None:
    record, done = walked(0.0, tmp_path)
    assert record["actions"] == [-1, *[int(LEFT)] * 12]
    assert done == [LEFT] * 12 + [STOP]
    turned = [math.remainder(15.0 * i, 360.0) for i in range(12)]
    back = [FORWARD if abs(angle) <= 7.5 else Action.TURN_RIGHT for angle in turned]
    assert record["labels"][:12] == list(map(int, back))
    assert len(record["labels"]) == 13


def test_where_a_stop_is_wrong_the_expert_takes_over(tmp_path: Path) -> None:
    """The model, which would turn on and on after its STOP, walks to the goal in the end."""
    record, done = walked(0.0, tmp_path, overrule_stops=True)
    actions = record["actions"][1:]
    assert actions[:12] == [int(LEFT)] * 12
    assert actions[12:] == record["labels"][12:-1]
    assert int(STOP) not in actions
    assert done[:-1] == actions
    assert (done[-1], record["labels"][-1]) == (STOP, int(STOP))


def test_the_next_walk_of_a_slot_is_the_models_again() -> None:
    agent = mixed(0.0, overrule_stops=True)
    walks = []
    for seed in range(2):
        agent.reset(0, make_episode(1), seed)
        seen = [Observation("", step, oracle_action=FORWARD) for step in range(15)]
        walks.append([agent.act({0: each})[0] for each in seen])
    assert walks == [[LEFT] * 12 + [FORWARD] * 3] * 2


def test_a_stop_that_is_labeled_as_right_is_not_overruled(tmp_path: Path) -> None:
    record, done = walked(0.0, tmp_path, overrule_stops=True, stop_within=1.5)
    assert record["labels"].index(int(STOP)) == len(record["labels"]) - 1
    assert len(done) == len(walked(0.0, tmp_path / "all", overrule_stops=True)[1]) - 5


def test_the_expert_alone_walks_to_the_goal_and_the_last_label_is_stop(tmp_path: Path) -> None:
    record, done = walked(1.0, tmp_path)
    assert record["actions"] == [-1, *[int(FORWARD)] * 19]
    assert record["labels"] == [int(FORWARD)] * 19 + [int(STOP)]
    assert done == [FORWARD] * 19 + [STOP]


def test_the_expert_stops_and_stop_is_the_label_where_the_goal_is_close_enough(tmp_path: Path) -> None:
    """After 14 steps of 0.25 m on a way of 5 m; the model, which has not stopped there, may go on."""
    record, _ = walked(1.0, tmp_path, stop_within=1.5)
    assert record["actions"] == [-1, *[int(FORWARD)] * 14]
    assert record["labels"] == [int(FORWARD)] * 14 + [int(STOP)]
    there, _ = walked(0.0, tmp_path / "there", stop_within=5.5)
    assert there["labels"] == [int(STOP)] * 13
    nearer, _ = walked(1.0, tmp_path / "nearer", stop_within=0.0)
    assert nearer["labels"] == [int(FORWARD)] * 19 + [int(STOP)]  # the expert's own STOP stays


def test_who_acts_is_drawn_from_the_seed_and_the_model_feels_it(tmp_path: Path) -> None:
    record, done = walked(0.5, tmp_path)
    again, _ = walked(0.5, tmp_path / "again")
    other, _ = walked(0.5, tmp_path / "other", seed=1)
    assert record["actions"] == again["actions"] != other["actions"]
    assert done[: len(record["actions"]) - 1] == record["actions"][1:]
    assert {int(LEFT), int(FORWARD)} <= set(record["actions"])


def test_long_walks_are_cut(tmp_path: Path) -> None:
    record, _ = walked(1.0, tmp_path, longest=7)
    assert len(record["actions"]) == len(record["labels"]) == 8


def test_depth_distances_and_tokens_are_written(tmp_path: Path) -> None:
    record, _ = walked(1.0, tmp_path, depth=True)
    assert record["distances"][:3] == [5, 4.75, 4.5]
    assert record["tokens"] == [[4, 0, 7]]
    files = sorted((tmp_path / record["video"] / "depth").iterdir())
    assert [file.name for file in files] == [f"{i:03d}.png" for i in range(20)]
    with Image.open(files[0]) as image:
        assert image.size == (64, 48)
        assert set(np.asarray(image).flatten().tolist()) <= {1234, 1235}


def test_a_driver_that_cannot_feel_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'forward' cannot drive beside the expert, it lacks feel"):
        Mixed(MixedOptions(driver="forward", expert_share=0.5))
    with pytest.raises(UsageError, match="it can drive alone"):
        Mixed(MixedOptions(driver="forward", expert_share=0.0, overrule_stops=True))


def test_a_driver_that_cannot_feel_drives_alone() -> None:
    alone = Mixed(MixedOptions(driver="forward", expert_share=0.0))
    assert alone.sensors >= {"oracle_action"}


def test_the_driver_is_who_is_recorded() -> None:
    assert facts_of(mixed(0.5), "anything").name == NAME


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"relabel": 0.5}, "--relabel: nobody drives without --dagger"),
        ({"relabel": 1.5, "dagger": True}, "--relabel 1.5: expected 0 to 1"),
        ({"longest": 3}, "--longest, --overrule-stops, --stop-within and --seed: for walks"),
        ({"overrule_stops": True, "dagger": True}, "--stop-within and --seed: for walks"),
        ({"stop_within": 1.5}, "--stop-within and --seed: for walks"),
        ({"relabel": 0.5, "dagger": True, "stop_within": -1.0}, "--stop-within -1.0: expected 0 or more"),
        ({"relabel": 0.5, "dagger": True, "longest": 0}, "--longest 0: expected 1 to 498"),
    ],
)
def test_options_that_cannot_be(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        request(tmp_path, tmp_path / "out", **changes).check()
    assert message in str(caught.value)


@pytest.mark.slow
def test_a_collection_in_a_simulator(houses: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others with another seed, each instruction on its own, and the expert is the one of the environment; two
    agents walk as one does."""
    asked = request(
        houses,
        tmp_path / "a",
        dagger=True,
        relabel=0.3,
        agent=NAME,
        tours=3,
        depth=True,
        seed=5,
        overrule_stops=True,
        stop_within=1.5,
    )
    collect(asked)
    records = json.loads((tmp_path / "a" / TRAJECTORIES).read_text())
    assert all(len(record["instructions"]) == 1 for record in records)
    assert all(len(record["labels"]) == len(record["actions"]) for record in records)
    assert all(len(record["distances"]) == len(record["actions"]) for record in records)
    rules = json.loads((tmp_path / "a" / MANIFEST).read_text())["dagger"]
    assert (rules["agent"], rules["expert_share"], rules["seed"]) == (NAME, 0.3, 5)
    assert rules["overrule_stops"] == "for good"
    assert rules["stop_within_m"] == 1.5
    for record in records:
        frames = zip(record["distances"], record["labels"], strict=True)
        assert all((label == int(STOP)) == (distance <= 1.5) for distance, label in frames if distance > 0.5)
    assert all(record["labels"][-1] == int(STOP) for record in records)
    monkeypatch.setattr("vlnbench.training.collect.collect.small_agents", lambda *_: 2)
    collect(replace(asked, out=tmp_path / "c"))
    assert json.loads((tmp_path / "c" / TRAJECTORIES).read_text()) == records
    collect(replace(asked, out=tmp_path / "b", seed=6))
    others = json.loads((tmp_path / "b" / TRAJECTORIES).read_text())
    assert [record["id"] for record in others] != [record["id"] for record in records]
