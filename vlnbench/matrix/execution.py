"""How a matrix is carried out, apart from what it is."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from vlnbench.errors import UsageError, unknown
from vlnbench.util.bounds import Count, Natural, Positive, Processes, check_bounds
from vlnbench.util.cards import PEAKS, Throughput, expected, peak

_SIZE = re.compile(r"[1-9]\d{0,4}(\.\d{1,3})?(GB|GiB)")
_PLACE = re.compile(r"[A-Za-z0-9.-]{1,253}:[1-9]\d{0,4}")


@dataclass(frozen=True)
class Execution:
    """How a matrix is carried out. Nothing here changes a result, and it may change while a matrix is half done.

    jobs: how many settings at a time share the machine's cores evenly. machines: how many a setting trains on,
    with gpus_per_setting on each; launch: command that starts its training once on every machine, default srun;
    rendezvous: HOST:PORT at which they meet, default this host and a port by the training.

    By what plans are judged: gpu, memory of one GPU, such as 80GB, default that of the GPUs that are there; host,
    memory of one machine, such as 1000GB, default this one's where its GPUs are meant; card, which GPU, as
    `vlnbench.util.cards` names them, default the one here or the usual one of this size; tflops, what one device
    computes per second while training, in 1e12 operations, default a share of the card's peak; plan_as, published
    sizes of a checkpoint that is not there yet, default its family's, where that has only one; windows, of every
    set that is not there yet; scenes, of every split whose episodes are not there yet.

    unfit: what is done with settings that do not fit by their plan. train_timeout_s, eval_timeout_s: for one
    command. store: folder by which matrices share finished trainings and evaluations, see `store`.
    """

    jobs: Processes = 1
    gpus_per_setting: Natural = 1
    gpu: str | None = None
    unfit: Literal["run", "skip"] = "run"
    train_timeout_s: Positive | None = None
    eval_timeout_s: Positive | None = None
    tflops: Positive | None = None
    plan_as: str | None = None
    card: str | None = None
    host: str | None = None
    windows: dict[str, int] = field(default_factory=dict)
    scenes: dict[str, int] = field(default_factory=dict)
    machines: Count = 1
    launch: tuple[str, ...] = ()
    rendezvous: str | None = None
    store: Path | None = None

    def check(self, where: str) -> None:
        """Raise UsageError for numbers that make no sense."""
        check_bounds(self, f"{where}.")
        for name in ("gpu", "host"):
            size = getattr(self, name)
            if size is not None and not _SIZE.fullmatch(size):
                raise UsageError(f"{where}.{name} {size}: expected a size such as 80GB or 79.2GiB")
        if self.card is not None and peak(self.card) is None:
            raise UsageError(f"{where}.card: {unknown('card', self.card, PEAKS)}")
        for name in ("windows", "scenes"):
            for of, count in getattr(self, name).items():
                if count < 1:
                    raise UsageError(f"{where}.{name}: {of} {count}: expected 1 or more")
        if self.machines > 1 and not self.gpus_per_setting:
            raise UsageError(f"{where}.machines {self.machines}: needs GPUs; give gpus_per_setting, those of each")
        if self.machines == 1 and (self.launch or self.rendezvous):
            given = "launch" if self.launch else "rendezvous"
            raise UsageError(f"{where}.{given}: is for several machines; give machines, too, or leave it out")
        if self.rendezvous is not None and not _PLACE.fullmatch(self.rendezvous):
            raise UsageError(f"{where}.rendezvous {self.rendezvous}: expected HOST:PORT, such as node1:29400")

    @property
    def devices(self) -> int:
        """How many processes a training has."""
        return max(1, self.gpus_per_setting) * self.machines

    def pace(self, gpu: str | None, here: str | None) -> Throughput | None:
        """What one device is expected to compute. gpu: its memory; here: the name of the card that is there.

        None where nothing tells.
        """
        if self.tflops is not None:
            return Throughput(self.tflops, "run.tflops")
        return expected(self.card or here, gpu) if self.gpus_per_setting else None


def parse_size(text: str) -> int:
    """Bytes of a size such as 80GB (of 1e9 bytes) or 79.2GiB."""
    unit = 2**30 if text.endswith("GiB") else 10**9
    return int(float(text.rstrip("GiB")) * unit)
