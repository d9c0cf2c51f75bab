"""The command `vlnbench doctor`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from vlnbench.errors import UsageError


@dataclass(frozen=True)
class Doctor:
    """Check this machine: packages, simulator, GPUs, caches, disk and data."""

    data_root: Path = Path("data")
    """Folder that holds datasets/ and scene_datasets/."""
    gpu_evidence: Path | None = None
    """Instead measure on the first GPU, 20 minutes at most: answers of every family against its recordings in
    float32, planned against measured memory of eight trainings, episodes an hour against a loop over single ones.
    The folder of the record and its page; the command goes on where it was stopped. Needs a checkout."""

    def run(self) -> None:
        if self.gpu_evidence is not None:
            measure(self.gpu_evidence)
            return
        from vlnbench.cli.checks import report

        report(self.data_root)


def measure(out: Path) -> None:
    """Ask a GPU what only it can tell. Raises UsageError where the measurements are not at hand."""
    from vlnbench.defaults import GPU_EVIDENCE
    from vlnbench.util.loading import import_string

    checkout = Path(__file__).parents[2]
    if not (checkout / GPU_EVIDENCE.partition(":")[0].replace(".", "/")).with_suffix(".py").is_file():
        raise UsageError(
            f"--gpu-evidence: its measurements come with a checkout, which {checkout} is not: clone "
            "the repository, run `pip install --editable '.[dev,train]'` there and give the command again"
        )
    sys.path.insert(0, str(checkout))  # another distribution may have a package of that name
    import_string(GPU_EVIDENCE)(out)
