"""A data root as StreamVLN's and JanusVLN's downloads fill it, in small, of generated houses.

Every layout is theirs; scans, walks and words are those of houses. EnvDrop and ScaleVLN are annotations alone.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from vlnbench.data.sets import TRAJECTORIES
from vlnbench.interfaces import Action
from vlnbench.training.collect.collect import collect
from vlnbench.training.collect.options import CollectOptions

WIDTH = 96
"""Of frames, in pixels."""
TOURS = 4
"""Walks of a set."""
SETS = {"R2R": ("r2r-ce", "r2r"), "RxR": ("rxr-ce", "rxr"), "EnvDrop": ("r2r-ce", "envdrop")}
"""Sets that are walked: benchmark, and how `vlnbench collect` calls the set."""
UNSEEN = ("EnvDrop", "ScaleVLN")
"""Sets that are published without frames."""


def publish(houses: Path, root: Path) -> dict[str, Path]:
    """Fill a data root; returns the frames that EnvDrop and ScaleVLN should have, by set."""
    _link_scenes(houses / "scene_datasets" / "houses", root / "scene_datasets")
    _write_episodes(houses / "datasets", root / "datasets")
    sets = root / "trajectory_data"
    for name, (benchmark, walks) in SETS.items():
        _walk(sets / name, benchmark, walks, root)
    _write_scalevln(sets / "EnvDrop", sets / "ScaleVLN")
    for name in SETS:
        shutil.copytree(sets / name, root / "dagger_data" / name, copy_function=os.link)
    for name, of in (("R2R", "train.json.gz"), ("RxR", "train_guide.json.gz")):
        episodes = root / "datasets" / name.lower() / "train" / of
        _write_numbered(sets / name, sets / f"{name}-CE-640x480" / "images", _read(episodes))
    return {name: (sets / name / "images").rename(root / f"{name}_rendered") for name in UNSEEN}


def _link_scenes(houses: Path, scenes: Path) -> None:
    """As in Matterport3D and, for the houses to train in, as in HM3D."""
    scenes.mkdir(parents=True)
    (scenes / "mp3d").symlink_to(houses)
    for number, scan in enumerate(sorted(path.name for path in houses.iterdir() if "train" in path.name)):
        folder = scenes / "hm3d" / "train" / f"{number:05d}-{scan}"
        folder.mkdir(parents=True)
        for suffix in ("glb", "navmesh"):
            (folder / f"{scan}.basis.{suffix}").symlink_to(houses / scan / f"{scan}.{suffix}")


def _write_episodes(houses: Path, datasets: Path) -> None:
    for split in ("train", "val_seen", "val_unseen"):
        for name in ("r2r", "rxr"):
            for path in (houses / f"houses_{name}" / split).glob("*.json.gz"):
                _write(datasets / name / split / path.name, _of_scene(_read(path), _mp3d))
    train = _read(houses / "houses_r2r" / "train" / "train.json.gz")
    _write(datasets / "envdrop" / "envdrop.json.gz", _of_scene(train, _mp3d))
    _write(datasets / "scalevln" / "scalevln_subset_150k.json.gz", _of_scene(train, _hm3d))
    truth = _read(houses / "houses_r2r" / "train" / "train_gt.json.gz")
    _write(datasets / "envdrop" / "envdrop_gt.json.gz", truth)


def _mp3d(scan: str) -> str:
    return f"mp3d/{scan}/{scan}.glb"


def _hm3d(scan: str) -> str:
    return f"hm3d/train/{int(scan.rpartition('_')[2]):05d}-{scan}/{scan}.basis.glb"


def _of_scene(content: Any, name: Callable[[str], str]) -> Any:
    for episode in content.get("episodes", ()):
        episode["scene_id"] = name(episode["scene_id"].split("/")[1])
    return content


def _walk(out: Path, benchmark: str, walks: Any, root: Path) -> None:
    collect(
        CollectOptions(
            out=out,
            benchmark=benchmark,
            set=walks,
            data_root=root,
            frame_width=WIDTH,
            tours=TOURS,
            sim="embedded",
            allow_partial=True,
        )
    )
    for path in out.iterdir():
        if path.name not in ("images", TRAJECTORIES):
            path.unlink() if path.is_file() else shutil.rmtree(path)


def _write_scalevln(envdrop: Path, out: Path) -> None:
    """The walks of EnvDrop again, in other scenes."""
    records = json.loads((envdrop / TRAJECTORIES).read_text())
    for record in records:
        record["video"] = record["video"].replace("_envdrop_", "_scalevln_")
    (out / "images").mkdir(parents=True)
    (out / TRAJECTORIES).write_text(json.dumps(records))
    for folder in (envdrop / "images").iterdir():
        name = folder.name.replace("_envdrop_", "_scalevln_")
        shutil.copytree(folder, out / "images" / name, copy_function=os.link)


def _write_numbered(walked: Path, out: Path, content: Any) -> None:
    """JanusVLN's layout: a folder for every episode of a walk, frames named by number and next action."""
    alike: dict[Any, list[str]] = {}
    for episode in content["episodes"]:
        alike.setdefault(_start(episode), []).append(str(episode["episode_id"]))
    by_id = {str(episode["episode_id"]): episode for episode in content["episodes"]}
    for record in json.loads((walked / TRAJECTORIES).read_text()):
        episode = by_id[str(int(record["video"].rpartition("_")[2]))]
        frames = sorted((walked / record["video"] / "rgb").iterdir())
        actions = [*record["actions"][1:], Action.STOP]
        for name in alike[_start(episode)]:
            (out / name).mkdir(parents=True)
            for step, (frame, action) in enumerate(zip(frames, actions, strict=True)):
                with Image.open(frame) as image:
                    image.save(out / name / f"step_{step}_{Action(action).name}.png")


def _start(episode: Any) -> tuple[Any, ...]:
    return (episode["scene_id"], *episode["start_position"], *episode["goals"][0]["position"])


def _read(path: Path) -> Any:
    return json.loads(gzip.decompress(path.read_bytes()))


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps(content).encode(), 1, mtime=0))
