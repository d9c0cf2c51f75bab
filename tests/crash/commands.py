"""The commands of which every change of a file is enumerated, and what each of them must leave."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agents.scripted import RandomAgent
from tests.fakes import make_episode
from tests.faulty import FaultyEnv
from tests.runs import record, write_dataset
from vlnbench.evaluation.records import ATTEMPTS, MANIFEST, ROWS, SUMMARY, TRAJECTORIES
from vlnbench.interfaces import Action, Observation, Vec3
from vlnbench.training.collect.collect import JOURNAL
from vlnbench.util.durable.locks import LOCK

ROOT = Path(__file__).parents[2]

Found = Mapping[str, Any]
"""What a command left: by name of the file, whatever must not differ."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command of which every change of a file is enumerated.

    prepare: makes what it reads below a folder, once. arguments: of `vlnbench`, given the folder of what it reads
    and an empty one. watched: the folder that it writes, below the latter. left: what must be alike in the end.
    change: done in the command's process before it. preloaded: modules that it needs, imported once for all.
    """

    prepare: Callable[[Path], None]
    arguments: Callable[[Path, Path], list[str]]
    watched: str
    left: Callable[[Path], Found]
    change: Callable[[], None] = lambda: None
    preloaded: tuple[str, ...] = ()


def files(folder: Path) -> dict[str, bytes]:
    """Contents of all files below a folder, hidden ones too.

    But for locks of whoever was killed when all was done: they stay where nobody has to go again.
    """
    locks = {LOCK, ".base.lock", ".model.lock"}
    found = [path for path in folder.rglob("*") if path.is_file() and path.name not in locks]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def _plain_data(given: Path) -> None:
    episodes = [make_episode(i, scene="ab"[i % 2], distance=0.5 + i / 4) for i in range(3)]
    write_dataset(given, "rxr-ce", [replace(episode, instruction_id=episode.episode_id) for episode in episodes])
    (given / "scene_datasets" / "mp3d").mkdir(parents=True)


def _eval(given: Path, out: Path) -> list[str]:
    options = ["--benchmark=rxr-ce", "--allow-partial", f"--data-root={given}", f"--out={out / 'run'}"]
    return ["eval", "--agent=random", "--env=tests.faulty:plane", "--envs=1", *options]


def _run_left(out: Path) -> Found:
    folder = out / "run"
    manifest, summary = (json.loads((folder / name).read_text()) for name in (MANIFEST, SUMMARY))
    rows = [json.loads(line) for line in (folder / ROWS).read_text().splitlines()]
    trajectories = set((folder / TRAJECTORIES).read_text().splitlines())  # one may be there twice
    if not (folder / ATTEMPTS).read_text().endswith("\n"):
        raise AssertionError(f"{folder / ATTEMPTS}: torn")
    return {
        "files": sorted(files(folder)),
        MANIFEST: {**manifest, "created": ""},
        SUMMARY: {**summary, "seconds": {}},
        ROWS: sorted(json.dumps({**row, "seconds": {}}) for row in rows),
        TRAJECTORIES: sorted(trajectories),
    }


class Guided(FaultyEnv):
    """A plane with pictures, on which the way is straight ahead."""

    def __init__(self, *_: Any) -> None:
        super().__init__()

    def _observe(self) -> Observation:
        import numpy as np

        return replace(super()._observe(), rgb=np.full((6, 8, 3), self.count, dtype=np.uint8))

    def shortest_path_action(self, target: Vec3, radius_m: float) -> Action:
        near = self.geodesic_distance(tuple(self.position), [target]) <= radius_m
        return Action.STOP if near else Action.MOVE_FORWARD


def _collect(given: Path, out: Path) -> list[str]:
    options = ["--benchmark=rxr-ce", "--set=rxr", "--split=val_unseen", "--allow-partial", f"--data-root={given}"]
    return ["collect", *options, "--env=tests.crash.commands:Guided", f"--out={out / 'set'}"]


def _collection_left(out: Path) -> Found:
    found: dict[str, Any] = dict(files(out / "set"))
    entries = [json.loads(line) for line in found[JOURNAL].splitlines()]
    found[JOURNAL] = sorted(json.dumps({**entry, "seconds": None}) for entry in entries)
    return found


def _recorded_run(given: Path) -> None:
    record(write_dataset(given / "data"), RandomAgent(), given / "run")
    (given / "results").mkdir()
    shutil.copy(ROOT / "results" / "published.json", given / "results")


def _add(given: Path, out: Path) -> list[str]:
    if not (out / "results").exists():
        shutil.copytree(given / "results", out / "results")
    committed = out / "results" / "runs" / "houses-r2r-val-unseen-random" / MANIFEST
    if committed.exists():  # it is added: what is left to do is the leaderboard
        return ["leaderboard", f"--results={out / 'results'}"]
    return ["leaderboard", str(given / "run"), "--add", "--name=random", f"--results={out / 'results'}"]


def _houses(given: Path, out: Path) -> list[str]:
    sizes = {"train-houses": 1, "val-unseen-houses": 1, "train-episodes": 2, "val-seen-episodes": 1}
    options = [f"--{name}={value}" for name, value in {**sizes, "val-unseen-episodes": 1}.items()]
    return ["data", "houses", f"--data-root={out / 'data'}", *options]


def _copied_run(given: Path, out: Path) -> list[str]:
    if not (out / "run").exists():
        shutil.copytree(given / "run", out / "run")
    return ["report", str(out / "run"), f"--data-root={given / 'data'}", "--env=tests.faulty:plane"]


def _walks(given: Path) -> None:
    """A trajectory set of one short walk."""
    import numpy as np
    from PIL import Image

    frames = given / "trajectories" / "R2R" / "images" / "walk" / "rgb"
    frames.mkdir(parents=True)
    chance = random.Random(0)
    for i in range(6):
        color = [chance.randrange(256) for _ in range(3)]
        Image.fromarray(np.full((24, 32, 3), color, dtype=np.uint8)).save(frames / f"{i:03d}.jpg")
    entry = {"id": 0, "video": "images/walk", "instructions": ["Go ahead."], "actions": [-1, 1, 2, 1, 3, 1]}
    (given / "trajectories" / "R2R" / "annotations.json").write_text(json.dumps([entry]))


def _train(given: Path, out: Path) -> list[str]:
    numbers = {"steps": 2, "save-every": 1, "log-every": 1, "workers": 0, "learning-rate": 1e-3}
    options = [f"--{name}={value}" for name, value in numbers.items()]
    parts = [
        "--tunable-parts",
        "mm_mlp_adapter",
        f"--trajectories={given / 'trajectories'}",
        f"--out={out / 'run'}",
    ]
    return ["train", "--checkpoint=preset:streamvln-tiny", *options, *parts]


def _training_left(out: Path) -> Found:
    """All files but those that time something; of steps that were done twice, the second time counts."""
    place = str(out).encode()  # which the options name
    found: dict[str, Any] = {name: text.replace(place, b"OUT") for name, text in files(out / "run").items()}
    steps = [json.loads(line) for line in found["train_log.jsonl"].splitlines()]
    timed = ("windows_per_s", "seconds", "cpu_seconds", "memory", "memory_spread")
    last = {entry["step"]: {k: v for k, v in entry.items() if k not in timed} for entry in steps}
    return {**found, "train_log.jsonl": last}


def _matrix_file(given: Path) -> None:
    write_dataset(given / "data")
    (given / "sets" / "R2R").mkdir(parents=True)
    (given / "sets" / "R2R" / "annotations.json").write_text("[]")
    content = {
        "name": "small",
        "train": {"checkpoint": "preset:streamvln-tiny", "trajectories": str(given / "sets"), "steps": 4},
        "evaluate": {
            "splits": ["val_unseen"],
            "data_root": str(write_dataset(given / "data")),
            "allow_partial": True,
        },
        "references": [],
        "axes": {"tunable_parts": [["mm_mlp_adapter"]]},
    }
    (given / "matrix.yaml").write_text(json.dumps(content))  # YAML, too


def _pretend() -> None:
    """Have a matrix run commands that write records and do nothing, without GPUs and without planning."""
    from tests.matrix.conftest import FAKE, plan_all
    from vlnbench.matrix import runner
    from vlnbench.matrix.work import stages
    from vlnbench.util import machine

    stages.PROGRAM, machine.gpus, runner.plan_matrix = (FAKE,), list, plan_all


def _matrix(given: Path, out: Path) -> list[str]:
    folders = [f"--out={out / 'matrix' / 'work'}", f"--results={out / 'matrix' / 'results'}"]
    return ["matrix", "run", str(given / "matrix.yaml"), *folders]


def _matrix_left(out: Path) -> Found:
    """What the rows say but how long anything took, and the names of all files but those that say that alone."""
    names = {str(path.relative_to(out)) for path in (out / "matrix").rglob("*") if not path.is_dir()}
    names = {name for name in names if not name.endswith(LOCK)}
    names -= {name for name in names if name.endswith("/attempts.jsonl")}  # of done work, none where it was killed
    (row,) = json.loads((out / "matrix" / "results" / "matrix.json").read_text())["rows"]
    kept = (
        "name",
        "key",
        "status",
        "reason",
        "options",
        "trainable",
        "data",
        "steps",
        "steps_done",
        "loss",
        "train",
    )
    found = {split: each or {} for split, each in row["results"].items()}
    results = {split: {k: v for k, v in each.items() if k != "hours"} for split, each in found.items()}
    return {"files": sorted(names), "row": {name: row[name] for name in kept}, "results": results}


PRELOADED = (
    "vlnbench.evaluation.session",
    "vlnbench.training.collect.collect",
    "vlnbench.leaderboard.pictures",
    "vlnbench.leaderboard.reproduction",
)

COMMANDS = {
    "eval": Command(_plain_data, _eval, "run", _run_left),
    "collect": Command(_plain_data, _collect, "set", _collection_left),
    "leaderboard": Command(_recorded_run, _add, "results", lambda out: files(out / "results")),
    "report": Command(_recorded_run, _copied_run, "run", lambda out: files(out / "run")),
    "train": Command(_walks, _train, "run", _training_left, preloaded=("deepspeed", "agents.streamvln.family")),
    "matrix": Command(
        _matrix_file, _matrix, "matrix", _matrix_left, _pretend, ("vlnbench.matrix.plots", "tests.matrix.conftest")
    ),
    "houses": Command(lambda given: None, _houses, "data", lambda out: files(out / "data")),
}
