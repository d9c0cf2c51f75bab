"""Data of others: what to download from where, under which license, where it goes, and whether all of it is there.

vlnbench downloads none of it: most asks for consent or a form first, and the addresses are its owners'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from vlnbench.data.check import Item, check_splits
from vlnbench.data.trajectory_sets import check_sets
from vlnbench.errors import UsageError, unknown

Look = Callable[[Path], Iterator[Item]]
"""Looks at what is below a data root; yields nothing where there is none of it."""


@dataclass(frozen=True, slots=True)
class Download:
    """One thing to get, as its owners tell it (`told`).

    consent: what has to be done before, empty where nothing has. steps: in order; ROOT is the data root. size: of
    the download, empty where it is not told. look: whether all of it is there.
    """

    holds: str
    license: str
    told: str
    steps: tuple[str, ...]
    look: Look
    consent: str = ""
    size: str = ""


def _of_benchmark(name: str) -> Look:
    def look(data_root: Path) -> Iterator[Item]:
        return (item for item in check_splits(data_root, name) if item.name != "scenes")

    return look


def _of_owner(owner: str) -> Look:
    def look(data_root: Path) -> Iterator[Item]:
        return (Item(ok, name, item, detail) for name, (ok, item, detail) in check_sets(data_root, owner))

    return look


MP3D_SCENES = 90


def _mp3d(data_root: Path) -> Iterator[Item]:
    folder = data_root / "scene_datasets" / "mp3d"
    if not folder.is_dir():
        return
    scans = sorted(path for path in folder.iterdir() if path.is_dir())
    for suffix in (".glb", ".navmesh"):
        lacking = [scan.name for scan in scans if not (scan / f"{scan.name}{suffix}").is_file()]
        found = len(scans) - len(lacking)
        without = f"; not for {', '.join(lacking[:3])}{', ...' * (len(lacking) > 3)}" if lacking else ""
        yield Item(found == MP3D_SCENES, "mp3d", suffix, f"{found} of {MP3D_SCENES} below {folder}{without}")


_MP3D_TERMS = "Matterport3D Terms of Use, http://kaldir.vc.in.tum.de/matterport/MP_TOS.pdf"
_DERIVED = f"{_MP3D_TERMS}, and CC BY-NC-SA 3.0 US"
_FRAMES = f"its frames show Matterport3D: {_MP3D_TERMS}"
_VLNCE = "https://github.com/jacobkrantz/VLN-CE (README, Data and License)"

DOWNLOADS: dict[str, Download] = {
    "mp3d": Download(
        holds=f"Matterport3D, {MP3D_SCENES} scenes with navmeshes: what R2R-CE and RxR-CE take place in",
        license=_MP3D_TERMS,
        told=_VLNCE,
        consent="sign the terms as https://niessner.github.io/Matterport/ says; download_mp.py comes by mail",
        steps=(
            "python2.7 download_mp.py --task habitat -o ROOT/scene_datasets/mp3d/",
            "unpack so that there is ROOT/scene_datasets/mp3d/{scan}/{scan}.glb",
        ),
        look=_mp3d,
    ),
    "r2r-ce": Download(
        holds="R2R-CE v1-3 with ground truth, and its EnvDrop split: R2R_VLNCE_v1-3_preprocessed.zip",
        license=_DERIVED,
        told=_VLNCE,
        size="250 MB",
        steps=(
            "pip install gdown && gdown 1fo8F4NKgZDH-bPSdVU3cONAkt5EW-tyr",
            "unzip R2R_VLNCE_v1-3_preprocessed.zip -d ROOT/datasets/",
        ),
        look=_of_benchmark("r2r-ce"),
    ),
    "rxr-ce": Download(
        holds="RxR-CE in four languages, guide and follower: RxR_VLNCE_v0.zip",
        license=f"{_DERIVED}; RxR's annotations: CC BY",
        told=_VLNCE,
        steps=(
            "pip install gdown && gdown 145xzLjxBaNTbVgBfQ8e9EsBAV8W-SM0t",
            "unzip RxR_VLNCE_v0.zip -d ROOT/datasets/",
        ),
        look=_of_benchmark("rxr-ce"),
    ),
    "scalevln": Download(
        holds="ScaleVLN's episodes in HM3D as StreamVLN published them, and HM3D's scenes to render them in",
        license="HM3D: Matterport End User License Agreement for Academic Use of Model Data",
        told="https://github.com/InternRobotics/StreamVLN (README, Data Preparation)",
        consent="ask for HM3D's train scenes as https://aihabitat.org/datasets/hm3d/ says",
        steps=(
            "put its habitat-format train scenes (GLB, navmesh) below ROOT/scene_datasets/hm3d/",
            "put scalevln_subset_150k.json.gz into ROOT/datasets/scalevln/ (the README names its place)",
            "vlnbench data render ROOT/trajectory_data/ScaleVLN --data-root ROOT",
        ),
        look=_of_benchmark("scalevln"),
    ),
    "streamvln-trajectories": Download(
        holds="StreamVLN's walks of R2R-CE and RxR-CE with frames, those of EnvDrop and ScaleVLN without",
        license=f"CC BY-NC-SA 4.0, as users report; {_FRAMES}",
        told="https://github.com/InternRobotics/StreamVLN (README, Data Preparation)",
        size="about 92.5 GB, as users report",
        consent="ask for access at https://huggingface.co/datasets/cywan/StreamVLN-Trajectory-Data",
        steps=(
            "hf auth login",
            "hf download cywan/StreamVLN-Trajectory-Data --repo-type dataset --local-dir ROOT/trajectory_data",
            "unpack every archive where it lies, to ROOT/trajectory_data/R2R/images/{walk}/rgb/000.jpg and so on",
            "vlnbench data render ROOT/trajectory_data/EnvDrop --data-root ROOT: its frames are not published",
        ),
        look=_of_owner("StreamVLN"),
    ),
    "janusvln-trajectories": Download(
        holds="JanusVLN's walks of R2R-CE and RxR-CE with frames, ScaleVLN, and corrected walks of its base model",
        license=f"not stated where it was looked for; {_FRAMES}",
        told="https://github.com/MIV-XJTU/JanusVLN (README, Data Preparation)",
        steps=(
            "pip install modelscope && modelscope download --dataset misstl/JanusVLN_Trajectory_Data "
            "--local_dir ROOT/janusvln",
            "put archives in parts together: cat R2R-CE-640x480.tar.gz.part* | tar xz -C ROOT/trajectory_data",
            "unpack the others to ROOT/trajectory_data and ROOT/dagger_data",
            "get r2r-ce and rxr-ce: what a frame's episode says is in their train.json.gz and train_guide.json.gz",
        ),
        look=_of_owner("JanusVLN"),
    ),
}
"""By name. Addresses and licenses as their owners told them on 2026-11-22."""


def describe(name: str, data_root: Path) -> Iterator[str]:
    """What to do for a download, line by line. Raises UsageError for a name that is none."""
    if name not in DOWNLOADS:
        raise UsageError(unknown("download", name, DOWNLOADS))
    download = DOWNLOADS[name]
    yield f"{name}: {download.holds}"
    yield f"license   {download.license}"
    if download.size:
        yield f"size      {download.size}"
    if download.consent:
        yield f"first     {download.consent}"
    for number, step in enumerate(download.steps, start=1):
        yield f"step {number}    {step.replace('ROOT', str(data_root))}"
    yield f"source    {download.told}"
