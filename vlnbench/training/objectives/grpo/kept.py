"""The rollouts of a training on disk: what rewards looked at, what they said, and what was learned from it.

`<out>/rollouts/update-000012.jsonl.gz` has a line for every answer or walk of an update, those of groups that were
replaced first. `recompute` says what rewards, the same or others, make of them:
docs/how-to/post_training.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlnbench.data.benchmarks import get_benchmark
from vlnbench.data.episodes import load_split
from vlnbench.errors import UsageError
from vlnbench.evaluation.metrics import score
from vlnbench.evaluation.records import decode_trajectory, encode_trajectory
from vlnbench.interfaces import Action, Episode
from vlnbench.training.objectives.grpo.rewards import Completion, Rewards, Walked
from vlnbench.training.run.folder import MANIFEST
from vlnbench.util.durable.files import (
    encode_line,
    pack,
    read_jsonl,
    read_object,
    remove_leftovers,
    stopped,
    write_bytes,
)
from vlnbench.util.progress import say

FOLDER = "rollouts"


class Keeper:
    """Writes the rollouts of a training, a file per update, until the folder is full. For the first process."""

    def __init__(self, out: Path, most_gb: float, done: int) -> None:
        """done: updates that are not made again; files of later ones, of a run that was ended, are removed."""
        self._folder, self._left, self._full = out / FOLDER, most_gb * 1e9, not most_gb
        self._folder.mkdir(exist_ok=True)
        remove_leftovers(self._folder)
        for path in _files(self._folder):
            if _number(path) > done:
                path.unlink()
            else:
                self._left -= path.stat().st_size

    def keep(self, update: int, lines: Sequence[Mapping[str, Any]]) -> None:
        """Write an update's file in one step. A line says so, once, where there is no room for it.

        Raises RunError where it cannot be written.
        """
        if self._full:
            return
        content = pack(b"".join(map(encode_line, lines)))
        if len(content) > self._left:
            self._full = True
            say(f"{self._folder}: as large as --rollouts-gb allows; from update {update} on rollouts are not kept")
            return
        self._left -= len(content)
        path = self._folder / f"update-{update:06}.jsonl.gz"
        try:
            write_bytes(path, content)
        except OSError as error:
            raise stopped(path, error) from error


def encode(completion: Completion) -> dict[str, Any]:
    """What rewards look at, as JSON has it; of a walk's episode its id alone."""
    if completion.walk is None:
        done, expected = ([int(each) for each in actions] for actions in (completion.actions, completion.expected))
        return {"formed": completion.formed, "actions": done, "expected": expected}
    walk = completion.walk
    return {"formed": completion.formed, "episode": walk.episode.episode_id, **encode_trajectory(walk.trajectory)}


@dataclass(frozen=True)
class Kept:
    """An answer or a walk as it was kept.

    prompt: number of the window or of the episode in its split. rewards: by name, without weights. advantage: None
    where nothing was learned from it. missing: why it does not count, as `rollouts.Rollout` says it; then there is
    no completion.
    """

    update: int
    prompt: int
    member: int
    rewards: Mapping[str, float]
    advantage: float | None
    missing: str
    completion: Completion | None


def read_rollouts(out: Path) -> Iterator[Kept]:
    """What a training's folder keeps, in order. Raises UsageError where its benchmark's data are gone."""
    manifest = read_object(out / MANIFEST)
    known = _Episodes(manifest) if manifest["options"]["rollouts"] == "episodes" else None
    for path in _files(out / FOLDER):
        for number, line in read_jsonl(path.with_suffix("")):
            try:
                yield _decode(line, known)
            except (KeyError, TypeError, ValueError) as error:
                raise UsageError(f"{path}: line {number}: not a rollout ({error!r})") from error


def recompute(out: Path, rewards: Sequence[str] = ()) -> Iterator[tuple[Kept, dict[str, float]]]:
    """Every rollout that counts, and what rewards make of it now; without names, those of the training.

    What is computed again is the reward, and for walks also their scores, from the trajectory and the split's
    episode; distances to the goal are those that the simulator gave then.
    """
    options = read_object(out / MANIFEST)["options"]
    asked = Rewards(rewards or options["rewards"], options["rollouts"])
    for kept in read_rollouts(out):
        if kept.completion is not None:
            found = asked.of(kept.completion, f"update {kept.update}, prompt {kept.prompt}")
            yield kept, {part.name: value for part, value in zip(asked.parts, found, strict=True)}


class _Episodes:
    """The episodes that a training walked in, by id, and how near is a success there."""

    def __init__(self, manifest: Mapping[str, Any]) -> None:
        options, benchmark = manifest["options"], get_benchmark(manifest["benchmark"])
        root, partial = Path(options["data_root"]), options["allow_partial"]
        split = load_split(benchmark, manifest["split"], root, allow_partial=partial)
        if (benchmark.fingerprint, split.sha256) != (manifest["fingerprint"], manifest["dataset_sha256"]):
            raise UsageError(f"{split.path}: not the episodes of {benchmark.name} that the training walked in")
        self.success_m = benchmark.success_distance_m
        self.by_id: dict[str, Episode] = {each.episode_id: each for each in split.episodes}


def _decode(line: Mapping[str, Any], known: _Episodes | None) -> Kept:
    seen, completion = line["completion"], None
    if seen is not None and known is None:
        done, expected = (tuple(map(Action, seen[name])) for name in ("actions", "expected"))
        completion = Completion(seen["formed"], done, expected)
    elif seen is not None and known is not None:
        episode, trajectory = known.by_id[seen["episode"]], decode_trajectory(seen)
        scores = score(trajectory, episode, known.success_m)
        completion = Completion(seen["formed"], walk=Walked(trajectory, episode, scores, known.success_m))
    names = ("update", "prompt", "member", "rewards", "advantage", "missing")
    return Kept(**{name: line[name] for name in names}, completion=completion)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("update-*.jsonl.gz"))


def _number(path: Path) -> int:
    return int(path.name.partition(".")[0].partition("-")[2])
