"""Small CMA and Seq2Seq networks to train from scratch, with random weights, and the published ones' sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch

from agents.vlnce.config import Config, Kind, NetworkConfig, Views
from agents.vlnce.folder import save_folder
from agents.vlnce.policy import Policy
from agents.vlnce.views import words_of
from vlnbench.interfaces import Conventions

FRAME = (96, 128)
"""Height and width of what the small networks see before it is halved: every fifth pixel of 640 x 480."""
MOST_WORDS = 5000


def _published(kind: Kind) -> Config:
    network = NetworkConfig(kind=kind, bidirectional=kind == "cma", progress_monitor=True)
    views = Views((224, 224), (256, 256), (0.0, 10.0))
    body = Conventions(width=224, height=224, hfov=90.0, camera_height_m=1.25, forward_m=0.25, turn_deg=15.0)
    return Config(network, views, body, samples=False)


def _tiny(kind: Kind) -> Config:
    network = NetworkConfig(
        kind=kind,
        encoders="small",
        embedding_size=64,
        text_size=64,
        bidirectional=kind == "cma",
        rgb_size=96,
        depth_size=64,
        state_size=192,
        rgb_width=32,
        depth_planes=16,
        use_prev_action=True,
    )
    views = Views(FRAME, FRAME, (0.0, 10.0), halved=True)
    body = Conventions(hfov=79.0, camera_height_m=1.25, forward_m=0.25, turn_deg=15.0)
    return Config(network, views, body, samples=False)


SIZES = {"cma": _published("cma"), "seq2seq": _published("seq2seq")}
PRESETS = {"cma-tiny": _tiny("cma"), "seq2seq-tiny": _tiny("seq2seq")}


def create(preset: str, folder: Path, texts: Iterable[str], seed: int) -> None:
    """Write a checkpoint folder with random weights and the words of `texts`. The same arguments give the same
    bytes."""
    counts = Counter(word for text in texts for word in words_of(text))
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[:MOST_WORDS]
    config = PRESETS[preset]
    config = replace(
        config,
        network=replace(config.network, vocab_size=len(frequent) + 2),
        vocabulary=tuple(frequent),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy = Policy(config.network)
    save_folder(policy, config, folder)
