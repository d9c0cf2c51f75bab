from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agents.base import EpisodeAgent
from agents.streamvln.family import create
from agents.streamvln.options import StreamVLNOptions
from envs.habitat_env import HabitatEnv
from tests.fakes import PlaneEnv, make_episode
from tests.training.collect.test_collect import WIDTH, contents, request
from tests.training.workshop import SMALL, TEXTS
from vlnbench.cli import main
from vlnbench.data.benchmarks import get_benchmark
from vlnbench.data.episodes import load_split
from vlnbench.data.sets import TRAJECTORIES
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Agent, Episode, GroundTruth, Observation, Vec3
from vlnbench.rollout.agents import facts_of, load_agent
from vlnbench.rollout.episode import Task
from vlnbench.rollout.executor import EnvSetup, Limits
from vlnbench.rollout.inline import Inline
from vlnbench.rollout.processes import Processes
from vlnbench.training.collect.collect import JOURNAL, MANIFEST, Collected, collect
from vlnbench.training.collect.dagger import CorrectableAgent, CorrectedRoute, Correction, check_driver
from vlnbench.training.collect.walk import (
    GOAL_RADIUS_M,
    PLACEHOLDER_ACTION,
    GuidedEnv,
    Verdict,
    WalkTask,
    shared_paths,
    walk,
)

STOP, FORWARD, LEFT = Action.STOP, Action.MOVE_FORWARD, Action.TURN_LEFT


class GuidedPlane(PlaneEnv):
    """The plane with a follower that turns first and walks then."""

    def shortest_path_action(self, target: Vec3, radius_m: float) -> Action:
        x, _, z = np.array(target) - self.position
        if math.hypot(x, z) <= radius_m:
            return STOP
        off = math.degrees(math.remainder(math.atan2(-x, -z) - self.yaw, 2 * math.pi))
        return FORWARD if abs(off) <= 7.5 + 1e-9 else LEFT if off > 0 else Action.TURN_RIGHT

    def _observe(self) -> Observation:
        rgb = np.full((48, 64, 3), self.count % 256, np.uint8)
        return replace(super()._observe(), rgb=rgb)


class Scripted(EpisodeAgent):
    """Does at each step what it is told to, and writes down where it was asked and where it looked on."""

    shared = ("asked",)

    def __init__(self, action: Callable[[int], Action]) -> None:
        super().__init__()
        self.action = action
        self.asked: list[int] = []
        self.watched: list[int] = []

    def act_one(self, observation: Observation) -> Action:
        self.asked.append(observation.step)
        return self.action(observation.step)

    def watch(self, observations: Mapping[int, Observation]) -> None:
        self.watched += [observation.step for observation in observations.values()]


class Unguided:
    """An agent that cannot be corrected."""

    sensors, privileged, expects = EpisodeAgent.sensors, False, EpisodeAgent.expects
    identity: Mapping[str, str] = {}

    def reset(self, *_: object) -> None: ...

    def act(self, *_: object) -> None: ...

    def close(self) -> None: ...


def straight(*waypoints: float, actions: int = 21) -> Episode:
    """Waypoints at these distances straight ahead; the goal is the last one."""
    episode = make_episode(1, distance=waypoints[-1])
    path = tuple((0.0, 0.0, -distance) for distance in waypoints)
    return replace(episode, reference_path=path, ground_truth=GroundTruth((), (1,) * (actions - 1) + (0,)))


def driven(agent: Scripted, episode: Episode) -> tuple[CorrectedRoute, list[int], GuidedPlane]:
    env = GuidedPlane()
    route = CorrectedRoute(agent, success_m=3.0)
    actions = [done.action for done in route.steps(env, episode)]
    assert actions[0] == PLACEHOLDER_ACTION
    assert {*agent.asked, *agent.watched} == set(range(len(actions) - 1))  # it sees every frame
    assert env.geodesic_distance(tuple(env.position), episode.goals) <= GOAL_RADIUS_M
    return route, actions[1:], env


def test_a_model_that_agrees_drives_to_the_end_and_its_stop_is_the_episodes() -> None:
    agent = Scripted(lambda step: FORWARD)
    _, actions, _ = driven(agent, straight(0, 2.5, 5))
    assert actions == [FORWARD] * 19
    assert agent.watched == []


@pytest.mark.parametrize(
    ("waypoints", "actions", "tolerated"),
    [
        ((0, 2.5, 5), 21, 8),  # 0.8 x 10
        ((0, 1, 2, 3, 5), 21, 4),  # 0.8 x 5
        ((0, 2.5, 5), 23, 8),  # a whole number of actions: 0.8 x 11 = 8.8
        ((0, 5), 60, 12),
        ((0, 1, 2, 3, 4, 5), 3, 0),  # never less than one action
    ],
)
def test_the_expert_takes_over_when_disagreements_are_too_many(
    waypoints: tuple[float, ...], actions: int, tolerated: int
) -> None:
    agent = Scripted(lambda step: FORWARD if step == 12 else LEFT)  # 12 turns: it looks back
    _, done, _ = driven(agent, straight(*waypoints, actions=actions))
    assert done[:tolerated] == [LEFT] * tolerated
    assert agent.watched[0] == agent.asked[tolerated] == tolerated
    assert done[tolerated] != agent.action(tolerated)


def test_the_expert_drives_to_the_next_waypoint_and_then_the_model_again() -> None:
    agent = Scripted(lambda step: STOP if step in (0, 9) else FORWARD)
    _, done, _ = driven(agent, straight(0, 2.5, 5, 10))
    assert done == [FORWARD] * 39
    assert agent.watched == [0, 1, 2, 9, 10, 11, 12]  # 0.75 m to 1.8 m before one waypoint, 3.25 m before the next
    assert agent.asked == [0, *range(3, 10), *range(13, 39)]


def test_a_stop_near_the_goal_is_passed_over_without_the_expert_staying() -> None:
    agent = Scripted(lambda step: STOP if step == 10 else FORWARD)
    route, done, env = driven(agent, straight(0, 2.5, 5))
    assert done == [FORWARD] * 19
    assert agent.watched == [10]
    detour = [(0.0, 0.0, 0.0), (0.0, 0.0, -5.3), (0.0, 0.0, -5.0)]  # 5 of 5.6 m: kept if the expert took over
    assert route.verdict(env, straight(0, 5), detour) == (False, "no detour worth keeping")


@pytest.mark.parametrize(
    ("corrected", "extra_m", "end_m", "expected"),
    [
        (True, 0.36, 0.0, (False, "no detour worth keeping")),  # 5 / 5.36 = 0.933
        (True, 0.40, 0.0, (True, "the expert took over")),  # 0.926
        (False, 0.84, 0.0, (False, "no detour worth keeping")),  # 0.856
        (False, 0.92, 0.0, (True, "a detour without the expert")),  # 0.845
        (True, 0.92, 0.49, (True, "the expert took over")),
        (True, 9.0, 0.5, (False, "ended 0.5 m or more from the goal")),
    ],
)
def test_walks_with_a_detour_are_kept(
    corrected: bool, extra_m: float, end_m: float, expected: tuple[bool, str]
) -> None:
    agent = Scripted(lambda step: STOP if corrected and step == 0 else FORWARD)
    route, _, env = driven(agent, straight(0, 5))
    aside = (extra_m + end_m) / 2
    positions = [(0.0, 0.0, 0.0), (0.0, 0.0, aside), (0.0, 0.0, end_m - 5.0)]
    assert route.verdict(env, straight(0, 5), positions) == expected


def test_a_streamvln_sees_all_windows_whoever_drives(tmp_path: Path) -> None:
    """Random weights name no action, which is a STOP every time it is asked: over three windows."""
    create(SMALL, tmp_path / "base", TEXTS * 20, seed=0)
    options = StreamVLNOptions(checkpoint=tmp_path / "base", max_new_tokens=4)
    agent = load_agent("streamvln", options)
    check_driver(facts_of(agent, "streamvln"), get_benchmark("houses-r2r").body)
    route = Correction(3.0).route(agent)
    (shared,) = shared_paths([straight(0, 6, 12, 18, 24)], "r2r")
    env = GuidedPlane()
    walked = [walk(env, WalkTask(shared, tmp_path, Correction(3.0)), route).product for _ in range(2)]
    assert [each.reason for each in walked] == ["no detour worth keeping"] * 2
    assert len(list(route.steps(env, shared.episodes[0]))) == 96


@pytest.fixture(scope="module")
def corrected(houses: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Collected]:
    """Collected with an agent that walks into the next wall."""
    out = tmp_path_factory.mktemp("dagger") / "R2R"
    return out, collect(request(houses, out, dagger=True, agent="forward"))


@pytest.mark.slow
def test_what_was_done_is_stored_in_the_layout_of_reference_walks(
    houses: Path, corrected: tuple[Path, Collected]
) -> None:
    out, result = corrected
    records = json.loads((out / TRAJECTORIES).read_text())
    assert len({record["video"] for record in records}) == len(records) == result.paths == result.instructions
    assert 0 < len(records) == sum(result.kept.values())
    assert len(records) + sum(result.left_out.values()) == 12
    manifest = json.loads((out / MANIFEST).read_text())
    assert manifest["dagger"]["agent"] == "forward"
    benchmark = get_benchmark("houses-r2r")
    episode_set = load_split(benchmark, "train", houses)
    camera = replace(benchmark.body.camera, width=WIDTH, height=WIDTH * 3 // 4)
    env = HabitatEnv(replace(benchmark.body, camera=camera), episode_set.scenes_dir, frozenset(), "embedded")
    episodes = {int(episode.episode_id): episode for episode in episode_set.episodes}
    for record in records:
        episode = episodes[record["id"]]
        assert record["instructions"] == [episode.instruction]
        assert record["actions"][0] == -1
        assert set(record["actions"][1:]) <= {1, 2, 3}
        frames = sorted((out / record["video"] / "rgb").iterdir())
        assert [frame.name for frame in frames] == [f"{i:03d}.jpg" for i in range(len(record["actions"]))]
        poses = [env.reset(episode).pose, *(env.step(Action(action)).pose for action in record["actions"][1:])]
        positions = [pose.position for pose in poses if pose is not None]
        assert env.geodesic_distance(positions[-1], episode.goals) < 0.5
        shortest = env.geodesic_distance(positions[0], episode.goals)
        assert shortest < 0.93 * sum(map(math.dist, positions, positions[1:]))
    env.close()


@pytest.mark.slow
def test_an_interrupted_collection_ends_alike(
    houses: Path, corrected: tuple[Path, Collected], tmp_path: Path
) -> None:
    done, result = corrected
    out = tmp_path / "R2R"
    shutil.copytree(done, out)
    lines = (out / JOURNAL).read_text().splitlines(keepends=True)
    (out / JOURNAL).write_text("".join(lines[:9]) + lines[9][:25])
    (out / TRAJECTORIES).unlink()
    again = collect(request(houses, out, dagger=True, agent="forward"))
    assert again == result
    assert contents(out) == contents(done)
    with pytest.raises(
        UsageError, match=r"holds another collection: dagger .* \(now None\); choose another --out"
    ):
        collect(request(houses, out))


DRIVER = """
from pathlib import Path
from agents.base import EpisodeAgent
from vlnbench.interfaces import Action

class Driver(EpisodeAgent):
    sensors = frozenset({"rgb"})
    reads = (Path(__file__).with_name("weights.txt"),)

    def act_one(self, observation):
        return Action.STOP if observation.step else Action.TURN_LEFT
"""


@pytest.mark.slow
def test_a_driver_whose_files_change_does_not_go_on(
    houses: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "weighted_driver.py").write_text(DRIVER)
    (tmp_path / "weights.txt").write_text("1")
    out = tmp_path / "out"
    asked = request(houses, out, dagger=True, relabel=0.0, tours=1, agent="weighted_driver:Driver")
    collect(asked)
    (tmp_path / "weights.txt").write_text("2")
    with pytest.raises(UsageError, match=r"holds another collection: dagger .*; choose another --out"):
        collect(asked)
    manifest = json.loads((out / MANIFEST).read_text())
    assert len(manifest["dagger"].pop("agent_code")) == 12
    (out / MANIFEST).write_text(json.dumps(manifest))  # as earlier versions wrote it
    assert collect(asked).paths == 1


@pytest.mark.slow
def test_a_checkpoint_drives_from_the_command_line(
    houses: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create(SMALL, tmp_path / "base", TEXTS * 20, seed=0)
    arguments = ["collect", "--dagger", "--checkpoint", tmp_path / "base", "--max-new-tokens", "4"]
    arguments += ["--out", tmp_path / "out", "--data-root", houses, "--sim", "embedded", "--tours", "1"]
    assert main(list(map(str, arguments))) == 0
    printed = capsys.readouterr().out
    assert "left out: no detour worth keeping" in printed or "kept: the expert took over" in printed
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    assert set(manifest["dagger"]["identity"]) > {"checkpoint", "dtype", "attn"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"agent_options": StreamVLNOptions(checkpoint=Path("base"))},
            "nobody drives without --dagger; give it too",
        ),
        ({"agent": "forward"}, "nobody drives without --dagger; give it too"),
        ({"dagger": True, "agent": "streamvlm"}, "unknown agent 'streamvlm': did you mean 'streamvln'"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    houses: Path, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        collect(request(houses, tmp_path / "out", **changes))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_agents_that_cannot_be_corrected_or_see_otherwise_are_refused(tmp_path: Path) -> None:
    name = f"{__name__}:Unguided"
    with pytest.raises(UsageError, match=r"cannot be corrected, it lacks watch"):
        check_driver(facts_of(load_agent(name), name), GuidedPlane().embodiment)
    create(SMALL, tmp_path / "base", TEXTS * 20, seed=0)
    agent = load_agent("streamvln", StreamVLNOptions(checkpoint=tmp_path / "base"))
    with pytest.raises(UsageError, match=r"does not fit the body that walks: needs hfov 79"):
        check_driver(facts_of(agent, "streamvln"), GuidedPlane().embodiment)


class Batches(EpisodeAgent):
    """Turns on the spot, and knows how many episodes it was asked about at once."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        self.sizes.append(len(observations))
        time.sleep(0.01)
        return dict.fromkeys(observations, LEFT)


@pytest.mark.slow
def test_one_agent_drives_in_several_simulators_at_once(tmp_path: Path) -> None:
    """And what is collected is what it would collect in one."""
    episodes = [replace(straight(0, 2.5, 5), episode_id=str(i), scene_id=f"{i % 2}/s.glb") for i in range(6)]
    planned = shared_paths(episodes, "r2r")
    assert len(planned) == 2  # told in three ways each
    planned = [replace(planned[0], name=f"walk-{episode.episode_id}", episodes=(episode,)) for episode in episodes]

    def collected(executor: Inline | Processes, root: Path) -> dict[str, bytes]:
        tasks = [
            Task(shared.episodes[0], 0, 0, 500, WalkTask(shared, root, EverythingCounts(3.0)))
            for shared in planned
        ]
        outcomes = list(executor.run(tasks, Limits(max_batch=3)))
        assert [outcome.reason for outcome in outcomes] == [None] * 6
        assert all(outcome.rollout and outcome.rollout.product.record for outcome in outcomes)
        files = [path for path in root.rglob("*") if path.is_file()]
        return {str(path.relative_to(root)): path.read_bytes() for path in files}

    one = collected(Inline(Batches(), GuidedPlane()), tmp_path / "one")
    agent = Batches()
    with Processes(3) as processes:
        processes.use(agent)
        processes.set_up(EnvSetup(f"{__name__}:GuidedPlane", (), agent.sensors))
        assert collected(processes, tmp_path / "three") == one
    assert max(agent.sizes) == 3
    assert len(one) > 6 * 20


class EverythingCounts(Correction):
    """Keeps every walk."""

    def route(self, agent: Agent) -> CorrectedRoute:
        class Kept(CorrectedRoute):
            def verdict(self, env: GuidedEnv, episode: Episode, positions: Sequence[Vec3]) -> Verdict:
                return Verdict(True, None)

        assert isinstance(agent, CorrectableAgent)
        return Kept(agent, self.success_m)
