"""The EnvDrop-like augmentation set: many more paths in the train houses, told by a noisy machine speaker."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from envs.embedded.navmesh.pathfinder import PathFinder
from envs.houses.files.dataset import Progress, fingerprint
from envs.houses.files.episode_files import Told, cut, write_r2r_split
from envs.houses.files.manifest import (
    ENVDROP_MANIFEST,
    R2R_DIR,
    SCENES_DIR,
    SPLITS,
    VERSION,
    first_id,
    house_names,
    is_complete,
)
from envs.houses.files.statistics import Totals
from envs.houses.files.telling import SPEAKER_PHRASINGS, speak
from envs.houses.language.checker import check_text
from envs.houses.language.instructions import Noise
from envs.houses.options import HousesConfig
from envs.houses.plan.house import House, make_house
from vlnbench.errors import UsageError
from vlnbench.util.durable.files import write_bytes
from vlnbench.util.durable.limits import regular
from vlnbench.util.durable.locks import locked

SPLIT = "envdrop"
TIMES_TRAIN = 5
"""Episodes of the set for every episode of train, unless told otherwise."""
_CHECKED_PER_HOUSE = 10
"""Trajectories of a house whose texts are checked, to know how noisy the speaker turned out."""


@dataclass(frozen=True)
class EnvDropManifest:
    """What an augmentation wrote.

    noise: what the speaker was asked for. checked, untrue: texts that were checked, and how many of them have a
    problem; problems: how often each kind of clause had one. statistics and files as in `HousesManifest`.
    """

    version: str
    config: HousesConfig
    episodes: int
    trajectories: int
    noise: Noise
    checked: int
    untrue: int
    problems: dict[str, int]
    statistics: dict[str, float]
    files: dict[str, dict[str, str | int]]


def augment(
    root: Path,
    config: HousesConfig,
    episodes: int | None = None,
    noise: Noise | None = None,
    progress: Progress | None = None,
) -> EnvDropManifest:
    """Write `datasets/houses_r2r/envdrop/` for a finished benchmark; a set that is there already is kept.

    `episodes`: how many, default five times those of train. Ids continue those of train, so that both sets can be
    joined. The same configuration, number and noise give the same bytes. Raises UsageError if the benchmark of
    this configuration is not below `root`, or its houses do not have that many trajectories.
    """
    wanted = TIMES_TRAIN * config.train_episodes if episodes is None else episodes
    if wanted < 1:
        raise UsageError(f"houses: envdrop_episodes = {wanted}: give 1 or more")
    if not is_complete(root, config, ("train",)):
        raise UsageError(f"{root}: the houses of these options are not there; run `vlnbench data houses` first")
    noise = noise or Noise()
    if kept := _finished(root, config, wanted, noise):
        return kept
    try:
        with locked(root, wait=True):  # one writer; the others find its work done
            kept = _finished(root, config, wanted, noise)
            return kept or _augment(root, config, wanted, noise, progress or (lambda stage, done, total: None))
    except OSError as error:
        raise UsageError(f"{root}: cannot be written ({error.strerror}); choose a writable folder") from error


def _augment(root: Path, config: HousesConfig, wanted: int, noise: Noise, report: Progress) -> EnvDropManifest:
    (root / ENVDROP_MANIFEST).unlink(missing_ok=True)
    first = config.train_episodes + 1, first_id(len(SPLITS))
    tally = _Tally()
    rows = cut(_rows(root, config, wanted, noise, tally, report), wanted)
    folder = R2R_DIR / SPLIT
    trajectories = write_r2r_split(root / folder, SPLIT, tally.counted(rows, wanted), first)
    names = [folder / f"{SPLIT}.json.gz", folder / f"{SPLIT}_gt.json.gz"]
    manifest = EnvDropManifest(
        VERSION,
        config,
        wanted,
        trajectories,
        noise,
        tally.checked,
        tally.untrue,
        dict(sorted(tally.problems.items())),
        tally.totals.means(),
        {name.as_posix(): fingerprint(root / name) for name in names},
    )
    write_bytes(root / ENVDROP_MANIFEST, (json.dumps(asdict(manifest), indent=1) + "\n").encode())
    return manifest


class _Tally:
    """Counts while rows stream by."""

    def __init__(self) -> None:
        self.totals = Totals()
        self.checked = self.untrue = 0
        self.problems: Counter[str] = Counter()

    def counted(self, rows: Iterator[Told], wanted: int) -> Iterator[Told]:
        for row in rows:
            self.totals.add(row)
            yield row
        if self.totals.episodes < wanted:
            raise UsageError(
                f"houses: envdrop_episodes = {wanted}: the houses only have {self.totals.episodes}; "
                "ask for fewer or for more train houses"
            )

    def check(self, house: House, row: Told) -> None:
        walk = row.trajectory.walk
        for text in row.texts:
            problems = check_text(house, text, "speaker", row.trajectory.yaw, (walk.actions, walk.locations))
            self.checked += 1
            self.untrue += bool(problems)
            self.problems.update({problem.partition(":")[0] for problem in problems})


def _rows(
    root: Path, config: HousesConfig, wanted: int, noise: Noise, tally: _Tally, report: Progress
) -> Iterator[Told]:
    """Rows house by house; what one house cannot give, the next ones do."""
    names = house_names(config)["train"]
    left = -(-wanted // SPEAKER_PHRASINGS)
    for done, name in enumerate(names):
        report(SPLIT, done, len(names))
        house = make_house(name, config)
        pathfinder = PathFinder.load((root / SCENES_DIR / house.scene_id).with_suffix(".navmesh"))
        rng = random.Random(f"vlnbench {VERSION} {SPLIT} {config.seed} {name}")
        share = -(-left // (len(names) - done))
        for number, row in enumerate(islice(speak(house, pathfinder, noise, rng), share)):
            left -= 1
            if number < _CHECKED_PER_HOUSE:
                tally.check(house, row)
            yield row
    report(SPLIT, len(names), len(names))


def _finished(root: Path, config: HousesConfig, wanted: int, noise: Noise) -> EnvDropManifest | None:
    """The manifest of exactly this set, if it is there with all its files."""
    try:
        found = json.loads(regular(root / ENVDROP_MANIFEST).read_text())
        asked = {"version": VERSION, "config": asdict(config), "episodes": wanted, "noise": asdict(noise)}
        same = all(found[name] == value for name, value in asked.items())
        if not same or any((root / n).stat().st_size != f["bytes"] for n, f in found["files"].items()):
            return None
        return EnvDropManifest(**{**found, "config": config, "noise": noise})
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None
