"""The record: one JSON file with what was found, on which machine, by which code. Written after every case."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu_evidence.pieces import Case, Piece
from vlnbench.errors import UsageError
from vlnbench.util import machine
from vlnbench.util.durable.files import read_object, write_json

FILE, FORMAT = "evidence.json", 1
FINAL = ("done", "out of memory", "failed", "timed out")
"""What is not asked again. "skipped" and "cut off" are: another package or more time changes them."""

PACKAGES = (
    *("torch", "triton", "transformers", "deepspeed", "peft", "flash-attn", "bitsandbytes", "numpy", "numba"),
    *("habitat-lab", "nvidia-ml-py"),
)
_QUERY = ("nvidia-smi", "--query-gpu=driver_version,power.limit", "--format=csv,noheader")


class Record:
    """One file and what is in it: `machine`, `sessions` and, by piece and case, `pieces`."""

    def __init__(self, path: Path, content: dict[str, Any]) -> None:
        self.path, self.content = path, content

    @classmethod
    def open(cls, path: Path, here: Mapping[str, Any], toy: bool) -> Record:
        """The record at `path`, or an empty one. Raises UsageError for one of another machine or kind."""
        if not path.exists():
            return cls(path, {"format": FORMAT, "toy": toy, "machine": dict(here), "sessions": [], "pieces": {}})
        found = read(path)
        if found["toy"] != toy:
            kind = "of a trial at toy size" if found["toy"] else "of a GPU"
            raise UsageError(f"{path}: is {kind}; give another folder")
        for field in ("gpus", "packages"):
            if found["machine"].get(field) != here[field]:
                there = found["machine"].get(field)
                raise UsageError(
                    f"{path}: field 'machine.{field}': {there}, here {here[field]}; give another folder"
                )
        return cls(path, found)

    def begin(self, commit: str | None) -> None:
        """A session begins: what it finds is of this commit."""
        self.content["sessions"].append(
            {"began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "commit": commit}
        )
        self.save()

    def entry(self, piece: str, case: str) -> dict[str, Any] | None:
        """What is known of a case."""
        found: dict[str, Any] | None = self.content["pieces"].get(piece, {}).get(case)
        return found

    def is_open(self, piece: Piece, case: Case) -> bool:
        """Whether nothing is known of a case yet, not even that it cannot be asked here."""
        entry = self.entry(piece.name, case.name)
        return entry is None or entry["status"] == "cut off"

    def keep(self, piece: str, case: str, entry: Mapping[str, Any]) -> None:
        """Write down what became of a case in the session that runs."""
        session = len(self.content["sessions"]) - 1
        self.content["pieces"].setdefault(piece, {})[case] = {**entry, "session": session}
        self.save()

    def save(self) -> None:
        """Replace the file."""
        write_json(self.path, self.content)


def read(path: Path) -> dict[str, Any]:
    """A record's content. Raises UsageError for a file that is none."""
    found = read_object(path)
    if found.get("format") != FORMAT:
        raise UsageError(f"{path}: field 'format': expected {FORMAT}, found {found.get('format')!r}")
    for field, kind in (("toy", bool), ("machine", dict), ("sessions", list), ("pieces", dict)):
        if not isinstance(found.get(field), kind):
            raise UsageError(f"{path}: field {field!r}: expected {kind.__name__}")
    return found


def finished(content: Mapping[str, Any], piece: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Cases of a piece of which something is known, with what was found."""
    for case, entry in content["pieces"].get(piece, {}).items():
        if entry.get("found"):
            yield case, entry["found"]


def wrong(content: Mapping[str, Any]) -> list[str]:
    """Cases that have failed, and answers in float32 that are not those that were recorded, a text each."""
    failed = [
        f"{piece}/{case} {entry['status']}"
        for piece, cases in content["pieces"].items()
        for case, entry in cases.items()
        if entry["status"] in ("failed", "timed out")
    ]
    other = [
        f"parity/{case}, {kind}: {entry['same']} of {entry['tokens']} answers as recorded"
        for case, found in finished(content, "parity")
        for kind, entry in found.items()
        if kind.endswith("float32") and not entry["same"] == entry["tokens"] > 0
    ]
    return failed + other


def describe(toy: bool) -> dict[str, Any]:
    """This machine and its programs. Takes no GPU memory. Raises UsageError where a GPU is wanted and absent."""
    import torch

    gpus = machine.gpus()
    if not toy and not torch.cuda.is_available():
        raise UsageError("no CUDA device: PyTorch sees none here")
    if not toy and not gpus:
        raise UsageError("nvidia-smi does not answer: expected it on the PATH, for the GPU's name and memory")
    return {
        "gpus": [] if toy else [{"name": each.name, "memory_mib": each.memory_mib} for each in gpus],
        "driver": None if toy else _driver(),
        "cuda": torch.version.cuda,
        "cpu": machine.describe([])["cpu"],
        "cores": machine.cores(),
        "host_gb": round(host_bytes() / 1e9, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": {name: machine.installed_version(name) for name in PACKAGES},
    }


def host_bytes() -> int:
    """Memory of this machine, or what its control group allows."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.exists() else "max"
    return min(found, int(text)) if text.isdigit() else found


def _driver() -> str | None:
    try:
        answer = subprocess.run(_QUERY, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.splitlines()[0].strip() if answer.strip() else None
