"""Episode files and their ground truth, of R2R-CE and RxR-CE, gzipped or not, and the version beside them."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.judge import Builder
from tests.fuzz.values import changed_bytes, changed_json
from tests.runs import FILES, nine_episodes, write_dataset
from vlnbench.data.benchmarks import get_benchmark
from vlnbench.data.check import check_data
from vlnbench.data.episodes import load_split

VERSION = "datasets/houses_r2r/houses.json"
R2R, RXR = (f"datasets/{FILES[name]}" for name in ("houses-r2r", "rxr-ce"))


@cache
def honest() -> Mapping[str, bytes]:
    """Files of three episodes of either format below a data root, unpacked, by name."""
    episodes = [
        replace(episode, instruction_tokens=(5, 9, 30), instruction_id=episode.episode_id)
        for episode in nine_episodes()[:3]
    ]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_dataset(root, "houses-r2r", episodes)
        write_dataset(root, "rxr-ce", episodes)
        found = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*.gz")}
    unpacked = {name: gzip.decompress(content) for name, content in found.items()}
    return {**unpacked, VERSION: b'{"version": "houses-2"}'}


def put(folder: Path, stem: str, changed: Mapping[str, bytes]) -> None:
    """Write the files of one format; `changed` ones, as they lie on the disk, in place of the honest ones."""
    files = {name: packed(content) if name.endswith(".gz") else content for name, content in honest().items()}
    for name, content in {**files, **changed}.items():
        if name.startswith(stem.partition("/val")[0]):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def packed(content: bytes) -> bytes:
    return gzip.compress(content, compresslevel=1, mtime=0)


def write(folder: Path, random: Random) -> None:
    stem = random.choice((R2R, RXR))
    names = [name for name in honest() if name.startswith(stem)] + ([VERSION] if stem == R2R else [])
    name = random.choice([*names[:2], *names])
    content = changed_json(honest()[name], random, raw=0.15)
    if name.endswith(".gz") and random.random() < 0.8:  # readers tell by the content
        content = packed(content) + (packed(content[:9]) if random.random() < 0.02 else b"")
        content = changed_bytes(content, random) if random.random() < 0.1 else content
    put(folder, stem, {name: content})


def read(folder: Path) -> None:
    name = "houses-r2r" if (folder / VERSION).parent.exists() else "rxr-ce"
    for item in check_data(folder, name, "val_unseen"):
        str(item).encode()
    for episode in load_split(get_benchmark(name), "val_unseen", folder, allow_partial=True).episodes:
        repr(episode).encode()  # as printed and stored


def _unpacks_to(name: str, content: Callable[[], bytes]) -> Builder:
    return lambda folder: put(folder, R2R, {name: packed(content())})


def _field(name: str, value: Any) -> Builder:
    """The honest episodes with a field of the first one changed."""

    def build(folder: Path) -> None:
        root = json.loads(honest()[f"{R2R}.json.gz"])
        *owners, last = name.split(".")
        entry = root["episodes"][0]
        for owner in owners:
            entry = entry[owner]
        entry[last] = value
        put(folder, R2R, {f"{R2R}.json.gz": packed(json.dumps(root).encode())})

    return build


def _bomb(folder: Path) -> None:
    """1.4 MB that unpack to 1.4 GB of spaces: the same stream again and again."""
    put(folder, R2R, {f"{R2R}.json.gz": gzip.compress(b" " * (14 << 20), mtime=0) * 100})


corpus: Mapping[str, tuple[Builder, str]] = {
    "honest": (lambda folder: put(folder, R2R, {}), ""),
    "honest RxR": (lambda folder: put(folder, RXR, {}), ""),
    "gzip bomb": (_bomb, "unpacks to more than"),
    "gzip bomb of ground truth": (
        _unpacks_to(f"{R2R}_gt.json.gz", lambda: b'{"1": ' + b" " * (200 << 20)),
        "unpacks to more than",
    ),
    "one value of 30 MB": (
        _unpacks_to(f"{R2R}.json.gz", lambda: b'{"episodes": [' + b"[" + b"[]," * 10_000_000),
        "not a readable (gzipped) JSON file",
    ),
    "a list of 6 million numbers": (
        _unpacks_to(f"{R2R}_gt.json.gz", lambda: b'{"0": [' + b"0," * 6_000_000 + b"0]}"),
        "a value of more than 8 MiB",
    ),
    "400,000 names": (
        _unpacks_to(f"{R2R}_gt.json.gz", lambda: b"{" + b",".join(b'"n%x":0' % i for i in range(400_000))),
        "more than 300000 names",
    ),
    "a token of 18 digits": (_field("instruction.instruction_tokens", [10**18]), "instruction_tokens"),
    "nested too deep": (
        _unpacks_to(f"{R2R}.json.gz", lambda: b'{"episodes": ' + b"[" * 1_000_000),
        "not a readable (gzipped) JSON file",
    ),
    "a version that is a list": (
        lambda folder: put(folder, R2R, {VERSION: b'{"version": [1]}'}),
        "houses.json: field 'version' cannot be read",
    ),
}
