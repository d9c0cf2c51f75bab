"""What an answer or a walk is worth: named rewards and one's own, added up with weights, each logged.

A reward of one's own is a function from a `Completion` to a number, named by import string or added by an entry
point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from vlnbench.errors import RunError, UsageError, unknown
from vlnbench.interfaces import Action, Episode, GroundTruth, Pose, Trajectory
from vlnbench.util.loading import import_string
from vlnbench.util.plugins import plugins

if TYPE_CHECKING:
    from vlnbench.evaluation.metrics import Scores  # numpy, without which rewards are listed

Kind = Literal["steps", "episodes"]
DEFAULTS: dict[str, tuple[str, ...]] = {"steps": ("match-decayed",), "episodes": ("success-near",)}

DECAY = 0.5
"""What each further action of an answer counts, beside the one before it, in the decayed match."""
FAR_M = 6.0
"""Meters at which 1 - d / 6 is 0."""


@dataclass(frozen=True)
class Walked:
    """A walk: where it went, the episode, and its scores; `distance` is that to the goal at its end, in meters.

    success_m: the benchmark's success distance, within which a walk that stops succeeds, in meters.
    """

    trajectory: Trajectory
    episode: Episode
    scores: Scores
    success_m: float

    @property
    def distance(self) -> float:
        """The farthest that is known, where there is no path from the end."""
        if self.scores.distance_to_goal is not None:
            return self.scores.distance_to_goal
        return max(each for each in self.trajectory.goal_distances if math.isfinite(each))


@dataclass(frozen=True)
class Completion:
    """What a reward looks at.

    formed: share of the answers in the expected format. actions, expected: of an answer, and what the expert did;
    empty for walks. walk: None for answers.
    """

    formed: float
    actions: tuple[Action, ...] = ()
    expected: tuple[Action, ...] = ()
    walk: Walked | None = None


Reward = Callable[[Completion], float]


def _of_walk(reward: Callable[[Walked], float]) -> Reward:
    def of_completion(completion: Completion) -> float:
        assert completion.walk is not None
        return reward(completion.walk)

    return of_completion


def _similarity(value: float | None) -> float:
    assert value is not None  # ground truth was looked for before anything ran
    return value


def match_exact(completion: Completion) -> float:
    """1 for the expert's actions, all of them and no other."""
    return float(completion.actions == completion.expected)


def match_decayed(completion: Completion) -> float:
    """How far the actions are the expert's, the first counting most (VLN-R1, arXiv 2506.17221), in [0, 1]."""
    weights = [DECAY**place for place in range(max(len(completion.expected), len(completion.actions)))]
    pairs = zip(weights, completion.actions, completion.expected, strict=False)
    return sum(weight for weight, done, wanted in pairs if done is wanted) / sum(weights)


REWARDS: dict[str, tuple[tuple[Kind, ...], Reward, str]] = {
    "success": (
        ("episodes",),
        _of_walk(lambda walk: walk.scores.success),
        "1 for a STOP within the success distance",
    ),
    "success-near": (
        ("episodes",),
        _of_walk(lambda walk: walk.scores.success * (1 - walk.distance / walk.success_m)),
        "success · (1 - d / success distance), d meters from the goal",
    ),
    "spl": (("episodes",), _of_walk(lambda walk: walk.scores.spl), "success weighted by path length"),
    "ndtw": (
        ("episodes",),
        _of_walk(lambda walk: _similarity(walk.scores.ndtw)),
        "likeness to the given path",
    ),
    "sdtw": (("episodes",), _of_walk(lambda walk: _similarity(walk.scores.sdtw)), "the same where it succeeds"),
    "near": (("episodes",), _of_walk(lambda walk: 1 - walk.distance / FAR_M), "1 - d / 6"),
    "match-exact": (("steps",), match_exact, "1 for the expert's actions, all of them and no other"),
    "match-decayed": (("steps",), match_decayed, "how far the actions are the expert's, the first counting most"),
    "format": (
        ("steps", "episodes"),
        lambda completion: completion.formed,
        "share of answers in the expected format",
    ),
}
"""Rewards by name: for which rollouts there is something to reward, the function, and what it says."""


def listed() -> tuple[str, tuple[str, ...], list[list[str]]]:
    """Group of entry points, headers and rows of a table of the rewards, for `vlnbench list`."""
    rows = [[name, ", ".join(kinds), says] for name, (kinds, _, says) in REWARDS.items()]
    return "rewards", ("reward", "for --rollouts", "what it does"), rows


NEED_GROUND_TRUTH = ("ndtw", "sdtw")


@dataclass(frozen=True)
class Part:
    """A term of the sum."""

    name: str
    weight: float
    reward: Reward


class Rewards:
    """The sum of some rewards, for one kind of rollouts."""

    def __init__(self, texts: Sequence[str], kind: Kind) -> None:
        """Find each and try it on made-up rollouts. Raises UsageError for one that cannot be found or used."""
        self.parts = [_part(text, kind) for text in texts or DEFAULTS[kind]]
        names = [part.name for part in self.parts]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"--rewards: {name} stands twice; give it one weight")
        for part in self.parts:
            for completion in _rehearsal(kind):
                _value(part, completion, UsageError, "made-up rollouts, before anything ran,")

    @property
    def needs_ground_truth(self) -> list[str]:
        """Rewards that compare with the reference walk."""
        return [part.name for part in self.parts if part.name in NEED_GROUND_TRUTH]

    def of(self, completion: Completion, what: str) -> list[float]:
        """Each part of the sum, without its weight. Raises RunError, saying `what` was to be judged."""
        return [_value(part, completion, RunError, what) for part in self.parts]

    def total(self, values: Sequence[float]) -> float:
        """The sum of the parts with their weights."""
        return math.fsum(part.weight * value for part, value in zip(self.parts, values, strict=True))


def _part(text: str, kind: Kind) -> Part:
    name, weight = text, 1.0
    before, _, last = text.rpartition(":")
    if before and _is_number(last):
        name, weight = before, float(last)
    if not math.isfinite(weight) or weight == 0:
        raise UsageError(f"--rewards {text}: expected a weight that is a number other than 0")
    if ":" in name:
        return Part(name, weight, _function(import_string(name), name))
    if name not in REWARDS:
        added = plugins("rewards", REWARDS)
        if name in added:
            return Part(name, weight, _function(added[name].load(), name))
        known = unknown("reward", name, [*REWARDS, *added])
        raise UsageError(f"--rewards {known}; or give an import string package.module:function")
    kinds, reward, _ = REWARDS[name]
    if kind not in kinds:
        raise UsageError(f"--rewards {name}: nothing to be rewarded there with --rollouts {kind}; leave it out")
    return Part(name, weight, reward)


def _function(found: Any, name: str) -> Reward:
    if not callable(found):
        raise UsageError(f"--rewards {name}: expected a function from a Completion to a number")
    made: Reward = found
    return made


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _value(part: Part, completion: Completion, error: type[UsageError] | type[RunError], what: str) -> float:
    try:
        value = float(part.reward(completion))
    except Exception as raised:
        raise error(f"reward {part.name}: for {what} it raised {type(raised).__name__}: {raised}") from raised
    if not math.isfinite(value):
        raise error(f"reward {part.name}: for {what} it returned {value}; expected a finite number")
    return value


SUCCESS_M = 3.0
"""Of made-up walks."""


def _rehearsal(kind: Kind) -> list[Completion]:
    """An answer or a walk that is right and one that is wrong."""
    if kind == "steps":
        right = Completion(1.0, (Action.MOVE_FORWARD,) * 2, (Action.MOVE_FORWARD,) * 2)
        return [right, replace(right, formed=0.0, actions=(Action.STOP,))]
    from vlnbench.evaluation.metrics import score

    places = [(0.0, 0.0, -0.25 * step) for step in range(13)]
    episode = Episode(
        "rehearsal",
        "rehearsal",
        "none",
        places[0],
        (0.0, 0.0, 0.0, 1.0),
        "Walk ahead.",
        goals=(places[-1],),
        ground_truth=GroundTruth(tuple(places), (1,) * 12 + (0,)),
    )
    completions = []
    for walked in (12, 1):
        poses = tuple(Pose(place, episode.start_rotation) for place in (*places[: walked + 1], places[walked]))
        actions = (*(Action.MOVE_FORWARD,) * walked, Action.STOP)
        distances = tuple(3.0 + pose.position[2] for pose in poses)
        trajectory = Trajectory(poses, actions, (False,) * len(actions), distances)
        scores = score(trajectory, episode, SUCCESS_M)
        completions.append(Completion(1.0, walk=Walked(trajectory, episode, scores, SUCCESS_M)))
    return completions
