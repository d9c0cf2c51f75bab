"""The benchmarks that ship with vlnbench: one table, and the bodies that they share."""

from __future__ import annotations

from dataclasses import replace

from vlnbench.data.protocol import Benchmark
from vlnbench.interfaces import Camera, Embodiment

VLM_BODY = Embodiment(camera=Camera(width=640, height=480, hfov=79.0, height_m=1.25))
"""The body that StreamVLN, JanusVLN and InternNav evaluate with on R2R-CE and RxR-CE."""

CMA_BODY = Embodiment(
    camera=Camera(width=224, height=224, hfov=90.0, height_m=1.25),
    depth_camera=Camera(width=256, height=256, hfov=90.0, height_m=1.25),
)
"""The body of VLN-CE's CMA and Seq2Seq baselines."""

VILA_BODY = Embodiment(camera=Camera(width=512, height=512, hfov=90.0, height_m=1.25))
"""The body that NaVILA evaluates with."""

UNINAVID_BODY = Embodiment(camera=Camera(width=640, height=480, hfov=120.0, height_m=1.25), turn_deg=30.0)
"""The body that Uni-NaVid evaluates with, on R2R too."""

CHALLENGE_BODY = Embodiment(
    camera=Camera(width=640, height=480, hfov=79.0, height_m=0.88),
    depth_range_m=(0.5, 5.0),
    agent_height_m=0.88,
    agent_radius_m=0.18,
    turn_deg=30.0,
    tilt_deg=30.0,
    allow_sliding=False,
)
"""The body of the RxR-Habitat challenge and VLN-CE's RxR baselines. Its navmesh is built from the scene."""

R2R_SPLITS = {
    "train": 10819,
    "val_seen": 778,
    "val_unseen": 1839,
    "test": 3408,
    "envdrop": 146304,
    "joint_train_envdrop": 157123,
}
R2R_FOLDERS = (
    "R2R_VLNCE_v1-3_preprocessed",
    "R2R_VLNCE_v1-3",
    "r2r",
    "R2R_VLNCE_v1-2_preprocessed",
    "R2R_VLNCE_v1-2",
    "R2R_VLNCE_v1-2_preprocessed_BERTidx",
)
RXR_FOLDERS = ("RxR_VLNCE_v0", "rxr")
SCALEVLN = "scalevln_subset_150k"
"""The split of ScaleVLN that StreamVLN published; its file lies in the dataset's folder itself."""
ENGLISH = ("en-US", "en-IN")
HOUSES_2_DRAWN = ("train", "val_seen", "val_seen_far", "val_unseen", "val_unseen_far")


def _generated(drawn: tuple[str, ...], looks: tuple[str, ...], added: tuple[str, ...]) -> dict[str, int | None]:
    """Splits of generated houses: as they are, in further looks, and sets to train on."""
    return dict.fromkeys((*drawn, *added, *(f"{split}_{look}" for look in looks for split in (*drawn, *added))))


_HOUSES = Benchmark(
    name="houses-r2r",
    version=1,
    summary="generated houses, R2R-like instructions; needs no download",
    reader="r2r",
    dataset_folders=("houses_r2r",),
    splits=_generated(
        ("train", "val_seen", "val_unseen"),
        ("materials", "evening", "textures"),
        ("envdrop", "speaker", "recolored"),
    ),
    body=VLM_BODY,
    generator="houses",
)
_R2R = Benchmark(
    name="r2r-ce",
    version=1,
    summary="R2R-CE v1-3 with the body of StreamVLN and JanusVLN",
    reader="r2r",
    dataset_folders=R2R_FOLDERS,
    splits=R2R_SPLITS,
    body=VLM_BODY,
)
_RXR = Benchmark(
    name="rxr-ce",
    version=1,
    summary="RxR-CE, English guide, with the body of StreamVLN and JanusVLN (not the challenge's)",
    reader="rxr",
    dataset_folders=RXR_FOLDERS,
    splits={"train": None, "val_seen": None, "val_unseen": None},
    body=VLM_BODY,
    roles=("guide",),
    languages=ENGLISH,
)

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        _HOUSES,
        replace(
            _HOUSES,
            name="houses-rxr",
            summary="the same houses, RxR-like instructions in four languages; needs no download",
            reader="rxr",
            dataset_folders=("houses_rxr",),
            splits=_RXR.splits,
            roles=("guide",),
        ),
        replace(
            _HOUSES,
            name="houses2-r2r",
            summary="generated houses that look different, many words, far goals; needs no download",
            dataset_folders=("houses2_r2r",),
            splits=_generated(HOUSES_2_DRAWN, ("evening", "textures"), ("envdrop", "noise", "speaker")),
            generator="houses2",
        ),
        replace(
            _HOUSES,
            name="houses2-rxr",
            summary="the same houses, RxR-like instructions in four languages; needs no download",
            reader="rxr",
            dataset_folders=("houses2_rxr",),
            splits=dict.fromkeys(HOUSES_2_DRAWN),
            roles=("guide",),
            generator="houses2",
        ),
        _R2R,
        replace(
            _R2R,
            name="scalevln",
            summary="ScaleVLN's episodes in HM3D as StreamVLN published them, to train on, with its body",
            dataset_folders=("scalevln",),
            splits={SCALEVLN: None},
        ),
        replace(
            _R2R, name="r2r-vlnce", summary="R2R-CE v1-3 with the body of VLN-CE's CMA and Seq2Seq", body=CMA_BODY
        ),
        replace(_R2R, name="r2r-navila", summary="R2R-CE v1-3 with the body of NaVILA", body=VILA_BODY),
        replace(_R2R, name="r2r-uninavid", summary="R2R-CE v1-3 with the body of Uni-NaVid", body=UNINAVID_BODY),
        _RXR,
        replace(
            _RXR,
            name="rxr-navila",
            summary="RxR-CE, American English guide, with the body of NaVILA",
            body=VILA_BODY,
            languages=ENGLISH[:1],
        ),
        replace(
            _RXR,
            name="rxr-uninavid",
            summary="RxR-CE, English guide, with the body of Uni-NaVid",
            body=UNINAVID_BODY,
        ),
        replace(
            _RXR,
            name="rxr-habitat",
            summary="RxR-CE, guide, all languages, with the body of the RxR-Habitat challenge",
            splits={"train": 60300, "val_seen": None, "val_unseen": 11006, "test_challenge": None},
            body=CHALLENGE_BODY,
            languages=(),
        ),
    )
}
