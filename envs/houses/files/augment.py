"""Sets to train on: many more walks in the train houses, told by a machine speaker.

Three kinds. `noise` (the first edition calls it envdrop) are walks in the houses as they are, told by a speaker
that errs, and `speaker` by one that does not. `envdrop` (the first edition: `recolored`) is environment dropout as
Tan et al. meant it (arXiv 1904.04195): every house is recolored and refurnished, so that a walk goes through one
that is not there otherwise, and each text was checked.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from envs.embedded.navmesh.pathfinder import PathFinder
from envs.houses.edition import SCENES_DIR, SPEAKER
from envs.houses.files.dataset import Progress, at_once, take
from envs.houses.files.episode_files import Told, cut, write_r2r_split
from envs.houses.files.looks import write_look
from envs.houses.files.manifest import house_names, is_complete
from envs.houses.files.scenes import fingerprint, write_scene
from envs.houses.files.statistics import Totals
from envs.houses.files.telling import speak, speak_truly
from envs.houses.language.checker import check_text
from envs.houses.language.instructions import Noise
from envs.houses.options import HousesConfig
from envs.houses.plan.house import House, dropped_name, make_house
from vlnbench.errors import UsageError
from vlnbench.util.durable.files import write_bytes
from vlnbench.util.durable.limits import regular
from vlnbench.util.durable.locks import locked
from vlnbench.util.processes.pool import in_processes

TIMES_TRAIN = 5
"""Episodes of a set for every episode of train, unless told otherwise."""
ENVIRONMENTS = 2
"""Recolored, refurnished houses for every train house."""
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
    split: str = "envdrop",
    episodes: int | None = None,
    noise: Noise | None = None,
    progress: Progress | None = None,
) -> EnvDropManifest:
    """Write `datasets/houses_r2r/{split}/` for a finished benchmark; a set that is there already is kept.

    `split`: one of the edition's added sets; one in a look has the episodes of that in the houses' own.
    `episodes`: how many, default five times those of train. `noise`: of the speaker that errs. Ids continue those
    of train, so that both sets can be joined. The same arguments give the same bytes. Raises UsageError if the
    benchmark of this configuration is not below `root`, or its houses do not have that many trajectories.
    """
    edition = config.edition
    wanted = TIMES_TRAIN * config.train_episodes if episodes is None else episodes
    if wanted < 1:
        raise UsageError(f"{edition.name}: {split}_episodes = {wanted}: give 1 or more")
    if not is_complete(root, config, ("train",)):
        raise UsageError(
            f"{root}: the houses of these options are not there; run `vlnbench data {edition.name}` first"
        )
    base, look = edition.drawn_as(split)
    asked = _Asked(root, config, split, wanted, (noise or Noise()) if base == edition.noisy else Noise(0, 0, 0))
    if kept := _finished(asked):
        return kept
    own = augment(root, config, base, episodes, noise, progress) if look else None
    report = progress or (lambda stage, done, total: None)
    try:
        with locked(root, wait=True):  # one writer; the others find its work done
            kept = _finished(asked)
            return kept or (_seen_otherwise(asked, own, report) if own else _augment(asked, report))
    except OSError as error:
        raise UsageError(f"{root}: cannot be written ({error.strerror}); choose a writable folder") from error


@dataclass(frozen=True)
class _Asked:
    """What `augment` is asked for."""

    root: Path
    config: HousesConfig
    split: str
    wanted: int
    noise: Noise

    @property
    def manifest(self) -> Path:
        return self.root / self.config.edition.addition_manifest(self.split)


def _augment(asked: _Asked, report: Progress) -> EnvDropManifest:
    root, config, edition = asked.root, asked.config, asked.config.edition
    asked.manifest.unlink(missing_ok=True)
    tally = _Tally(asked)
    told = (_dropped if asked.split == edition.dropped else _spoken)(asked, tally, report)
    rows = cut(told, asked.wanted)
    folder = edition.r2r_dir / asked.split
    first = config.train_episodes + 1, edition.first_id(asked.split)
    trajectories = write_r2r_split(root / folder, asked.split, tally.counted(rows), first, edition.voices)
    names = [*tally.scenes, *(folder / f"{asked.split}{end}.json.gz" for end in ("", "_gt"))]
    return _written(
        asked,
        EnvDropManifest(
            edition.version,
            config,
            asked.wanted,
            trajectories,
            asked.noise,
            tally.checked,
            tally.untrue,
            dict(sorted(tally.problems.items())),
            tally.totals.means(),
            {},
        ),
        names,
    )


def _seen_otherwise(asked: _Asked, own: EnvDropManifest, report: Progress) -> EnvDropManifest:
    """A set in another look: the same episodes, and their scenes."""
    asked.manifest.unlink(missing_ok=True)
    return _written(
        asked, own, write_look(asked.root, asked.config, *asked.config.edition.drawn_as(asked.split), report)
    )


def _written(asked: _Asked, manifest: EnvDropManifest, names: Sequence[Path]) -> EnvDropManifest:
    """The manifest, with these files below the root, and written."""
    manifest = replace(manifest, files={name.as_posix(): fingerprint(asked.root / name) for name in names})
    write_bytes(asked.manifest, (json.dumps(asdict(manifest), indent=1) + "\n").encode())
    return manifest


class _Tally:
    """Counts while rows stream by."""

    def __init__(self, asked: _Asked) -> None:
        self._asked = asked
        self.scenes: list[Path] = []
        self.totals = Totals()
        self.checked = self.untrue = 0
        self.problems: Counter[str] = Counter()

    def counted(self, rows: Iterator[Told]) -> Iterator[Told]:
        edition, wanted = self._asked.config.edition, self._asked.wanted
        for row in rows:
            self.totals.add(row)
            yield row
        if self.totals.episodes < wanted:
            raise UsageError(
                f"{edition.name}: {self._asked.split}_episodes = {wanted}: the houses only have "
                f"{self.totals.episodes}; "
                "ask for fewer or for more train houses"
            )

    def check(self, house: House, rows: Sequence[Told]) -> None:
        for row in rows:
            self._check(house, row)

    def _check(self, house: House, row: Told) -> None:
        walk = row.trajectory.walk
        for text in row.texts:
            problems = check_text(house, text, SPEAKER, row.trajectory.yaw, (walk.actions, walk.locations))
            self.checked += 1
            self.untrue += bool(problems)
            self.problems.update({problem.partition(":")[0] for problem in problems})


def _spoken(asked: _Asked, tally: _Tally, report: Progress) -> Iterator[Told]:
    """Rows house by house; what one house cannot give, the next ones do."""
    config, names = asked.config, house_names(asked.config)["train"]
    left = asked.wanted
    for done, name in enumerate(names):
        report(asked.split, done, len(names))
        house = make_house(name, config)
        pathfinder = PathFinder.load((asked.root / SCENES_DIR / house.scene_id).with_suffix(".navmesh"))
        rng = random.Random(f"vlnbench {config.edition.version} {asked.split} {config.seed} {name}")
        share = -(-left // (len(names) - done))
        errs = asked.split == config.edition.noisy
        said = speak(house, pathfinder, asked.noise, rng) if errs else speak_truly(house, pathfinder, rng)
        for number, row in enumerate(take(said, share)):
            left -= len(row.texts)
            if number < _CHECKED_PER_HOUSE:
                tally.check(house, [row])
            yield row
    report(asked.split, len(names), len(names))


def _dropped(asked: _Asked, tally: _Tally, report: Progress) -> Iterator[Told]:
    """Rows of every environment in turn, equally many of each."""
    names = [
        dropped_name(name, number) for name in house_names(asked.config)["train"] for number in range(ENVIRONMENTS)
    ]
    share = -(-asked.wanted // len(names))
    work = [(asked.root, asked.config, name, share) for name in names]
    report(asked.split, 0, len(names))
    made = in_processes(_environment, work, at_once(len(work)))
    for done, (name, (scene, rows)) in enumerate(zip(names, made, strict=True), start=1):
        tally.scenes += [scene, scene.with_suffix(".navmesh")]
        tally.check(make_house(name, asked.config), rows[:_CHECKED_PER_HOUSE])
        yield from rows
        report(asked.split, done, len(names))


def _environment(root: Path, config: HousesConfig, name: str, episodes: int) -> tuple[Path, list[Told]]:
    """Write an environment; its scene below the root, and as many rows as have these episodes."""
    house = make_house(name, config)
    scene = write_scene(root, house, config)
    pathfinder = PathFinder.load((root / scene).with_suffix(".navmesh"))
    rng = random.Random(f"vlnbench {config.edition.version} walks {config.seed} {name}")
    return scene, list(cut(take(speak_truly(house, pathfinder, rng), episodes), episodes))


def _finished(asked: _Asked) -> EnvDropManifest | None:
    """The manifest of exactly this set, if it is there with all its files."""
    config, noise = asked.config, asked.noise
    try:
        found = json.loads(regular(asked.manifest).read_text())
        wanted = {
            "version": config.edition.version,
            "config": asdict(config),
            "episodes": asked.wanted,
            "noise": asdict(noise),
        }
        same = all(found[name] == value for name, value in wanted.items())
        if not same or any((asked.root / n).stat().st_size != f["bytes"] for n, f in found["files"].items()):
            return None
        return EnvDropManifest(**{**found, "config": config, "noise": noise})
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None
