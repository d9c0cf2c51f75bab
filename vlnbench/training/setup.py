"""DeepSpeed, set up so that every option means what it says: one process or many, CPU or CUDA, any ZeRO stage."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vlnbench.errors import RunError, UsageError
from vlnbench.training.deepspeed_file import deepspeed_config
from vlnbench.training.family.checkpoints import Placement
from vlnbench.training.muon import Muon
from vlnbench.training.options import LAUNCHER_VARIABLES, TrainOptions
from vlnbench.training.parts import Group
from vlnbench.util.durable.files import read_object, write_json
from vlnbench.util.machine import LOOPBACK, cores
from vlnbench.util.progress import say
from vlnbench.util.threads import explicit, fastest

MOST_THREADS = 4096
"""More than any machine has cores; a file that says more is damaged."""


@dataclass(frozen=True)
class Process:
    """This process among those of the run, and the device it computes on."""

    rank: int
    local_rank: int
    world_size: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0


def find_process() -> Process:
    """Read the launcher's variables, or Slurm's; without a launcher this is the only process.

    Raises UsageError if they are incomplete or name a CUDA device that does not exist.
    """
    if not any(name in os.environ for name in LAUNCHER_VARIABLES):
        os.environ.update(_slurm())
    given = [name for name in LAUNCHER_VARIABLES if name in os.environ]
    if not given:
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1")
        os.environ["MASTER_PORT"] = str(_free_port())
    elif len(given) < len(LAUNCHER_VARIABLES):
        missing = ", ".join(name for name in LAUNCHER_VARIABLES if name not in given)
        raise UsageError(f"environment: {missing} not set though {given[0]} is; start with torchrun or deepspeed")
    rank, local_rank, world_size = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    if not torch.cuda.is_available():
        return Process(rank, local_rank, world_size, torch.device("cpu"))
    if torch.cuda.device_count() == 1 and len(os.environ.get("CUDA_VISIBLE_DEVICES", ",").split(",")) == 1:
        # one of its own for every process, as of srun --gpus-per-task=1
        return Process(rank, local_rank, world_size, torch.device("cuda", 0))
    if local_rank >= torch.cuda.device_count():
        raise UsageError(
            f"local rank {local_rank}: this machine has {torch.cuda.device_count()} CUDA devices; start fewer "
            "processes per machine"
        )
    return Process(rank, local_rank, world_size, torch.device("cuda", local_rank))


def _slurm() -> dict[str, str]:
    """The launcher's variables for a task of `srun` with several; nothing elsewhere.

    Raises UsageError where Slurm does not say which machine is the first.
    """
    found = os.environ
    if int(found.get("SLURM_STEP_NUM_TASKS") or 1) == 1:
        return {}
    nodes, first = found.get("SLURM_STEP_NODELIST", ""), "127.0.0.1"
    if found.get("SLURM_STEP_NUM_NODES") != "1":
        command = ["scontrol", "show", "hostnames", nodes]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
            first = answer.stdout.split()[0]
        except (OSError, subprocess.SubprocessError, IndexError):
            raise UsageError(
                f"srun: {' '.join(command)} does not name this step's machines; start with torchrun, "
                "one per machine (srun --ntasks-per-node=1 torchrun …)"
            ) from None
    port = 20000 + (int(found["SLURM_JOB_ID"]) * 8 + int(found["SLURM_STEP_ID"]) % 8) % 40000  # alike on all
    return {
        "RANK": found["SLURM_PROCID"],
        "LOCAL_RANK": found["SLURM_LOCALID"],
        "WORLD_SIZE": found["SLURM_STEP_NUM_TASKS"],
        "MASTER_ADDR": first,
        "MASTER_PORT": str(port),
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def make_optimizer(options: TrainOptions, groups: list[Group], device: torch.device) -> torch.optim.Optimizer:
    """The optimizer over the parts' groups. Raises UsageError where it cannot work here."""
    arguments: list[dict[str, Any]] = [
        {
            "params": list(group.parameters),
            "lr": options.rate_of(group.part),
            "weight_decay": options.weight_decay if group.decays else 0.0,
            "name": group.part,
            "peak_lr": options.rate_of(group.part),
        }
        for group in groups
    ]
    if options.optimizer == "adafactor":
        return torch.optim.Adafactor(arguments)
    betas = (0.9, options.adam_beta2)
    if options.optimizer == "muon":
        split = []
        for argument, group in zip(arguments, groups, strict=True):
            for orthogonal in (False, True):
                inside = zip(group.parameters, group.hidden, strict=True)
                if members := [parameter for parameter, hidden in inside if hidden is orthogonal]:
                    split.append({**argument, "params": members, "orthogonal": orthogonal})
        return Muon(split, betas, torch.bfloat16 if options.dtype == "mixed" else None)
    if options.optimizer == "adamw8bit":
        if device.type != "cuda":
            raise UsageError("--optimizer adamw8bit: needs a CUDA device; use adamw")
        try:
            from bitsandbytes.optim import AdamW8bit
        except ImportError:
            raise UsageError("--optimizer adamw8bit: pip install bitsandbytes") from None
        optimizer: torch.optim.Optimizer = AdamW8bit(arguments, betas=betas)
        return optimizer
    return torch.optim.AdamW(arguments, betas=betas, fused=True)  # one pass over memory, no temporaries


@contextmanager
def connected(process: Process) -> Iterator[None]:
    """The processes of the run as one group. A group that the caller has made already is used and left as it is.

    DeepSpeed remembers the first group for good, so a process can leave it only once.
    """
    if process.device.type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    # DeepSpeed calls functions that newer torch versions rename; nothing that its user could change.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    import deepspeed
    from deepspeed.ops import __compatible_ops__

    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    if process.device.type == "cpu":
        # Otherwise the first run compiles a shared-memory helper, which fails on machines without a compiler.
        __compatible_ops__["deepspeed_shm_comm"] = False
    else:
        torch.cuda.set_device(process.device)
    if torch.distributed.is_initialized():
        yield
        return
    backend = "nccl" if process.device.type == "cuda" else "gloo"
    if os.environ["MASTER_ADDR"] in LOOPBACK:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    if process.world_size == 1:  # a store for others listens at every address of the machine, without a password
        alone = torch.distributed.HashStore()  # type: ignore[attr-defined]
        torch.distributed.init_process_group(backend, store=alone, rank=0, world_size=1)
    try:
        deepspeed.init_distributed(dist_backend=backend, verbose=False)
    except torch.distributed.DistError as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        reason = str(error).partition("\n")[0]
        raise RunError(
            f"the processes of the training cannot meet at {where} ({reason}); start it again"
        ) from error
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def barrier(process: Process) -> None:
    """Wait until all processes of the run are here."""
    if process.world_size > 1:
        torch.distributed.barrier()


def settle_threads(path: Path, process: Process, work: Callable[[], object] | None) -> None:
    """Have PyTorch use one number of threads for the whole run, the same in every process; on the CPU.

    It is recorded in `path` and used again when the run is resumed, for the last digits of a sum depend on how it
    was shared out. The first time it is what takes the least time for `work`, which all processes do at once; for
    None, what PyTorch has chosen. A number that the user has set comes before both.
    """
    recorded: int | None = _agreed(_recorded_threads(path) if process.first else None, process)
    own, now = explicit(), torch.get_num_threads()
    if own is not None:
        why = f"by {own}"
        if recorded not in (None, now):
            why += f"; the run was begun with {recorded}, so the last digits may differ"
    elif recorded is not None:
        now, why = recorded, "as the run was begun"
    elif work is not None:
        most = max(1, min(now, cores() // _beside(process)))
        now, why = fastest(work, torch.set_num_threads, most), f"fastest of 1 to {most}"
    else:
        why = "as it was"
    torch.set_num_threads(_agreed(now, process))
    if process.first:
        if recorded is None:
            write_json(path, {"threads": now})
        say(f"PyTorch's threads per process: {now} ({why})")


def share_cores(process: Process) -> None:
    """Have the processes of a machine share its cores, where its processor updates weights beside GPUs: torchrun
    leaves each a single thread. A number that the user has set is kept."""
    own = explicit()
    by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("OMP_NUM_THREADS") == "1"
    if own is None or (own == "OMP_NUM_THREADS" and by_torchrun):
        torch.set_num_threads(max(1, cores() // _beside(process)))
        if process.first:
            say(f"PyTorch's threads per process: {torch.get_num_threads()} (this machine's cores, shared)")


def _beside(process: Process) -> int:
    """Processes of the run on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE") or process.world_size)


def _recorded_threads(path: Path) -> int | None:
    if not path.exists():
        return None
    count = read_object(path).get("threads")
    if not isinstance(count, int) or not 1 <= count <= MOST_THREADS:
        raise UsageError(
            f"{path}: field 'threads': expected a number from 1 to {MOST_THREADS:,}; delete the file to have the "
            "threads chosen anew"
        )
    return count


def _agreed(value: Any, process: Process) -> Any:
    """The first process's value."""
    if process.world_size == 1:
        return value
    values = [value]
    torch.distributed.broadcast_object_list(values)
    return values[0]


def placed(placement: Placement, options: TrainOptions, process: Process) -> Placement:
    """Also where the network is loaded: on this process's card, unless none holds all of it (ZeRO 3)."""
    return placement if options.zero == 3 else replace(placement, device=process.device)


def start_engine(
    model: torch.nn.Module,
    options: TrainOptions,
    groups: list[Group],
    process: Process,
    dtype: torch.dtype,
    uneven: Sequence[torch.nn.Module] = (),
) -> Any:
    """The DeepSpeed engine around a model whose parts are frozen or not already; see `Trains.uneven`."""
    import deepspeed

    for module in uneven:
        deepspeed.utils.set_z3_leaf_module(module, True)

    config = deepspeed_config(options, dtype)
    if (
        options.zero == 3
    ):  # one parameter after the other: the engine would move the whole network to the GPU first
        deepspeed.zero.Init(module=model, config_dict_or_path=config, dtype=dtype)
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=make_optimizer(options, groups, process.device), config=config
    )
    if process.device.type == "cuda":
        torch.cuda.empty_cache()  # in which parameters of ZeRO 3 were whole
    _keep_norms(engine)
    return engine


def _keep_norms(engine: Any) -> None:
    """Have the engine know the gradient's norm without ZeRO too: there DeepSpeed clips by it and forgets it."""
    from deepspeed.runtime.utils import clip_grad_norm_

    def clip() -> None:
        parameters, most = engine.module.parameters(), engine.gradient_clipping()
        engine._global_grad_norm = clip_grad_norm_(parameters=parameters, max_norm=most, mpu=engine.mpu)

    engine.clip_fp32_gradients = clip  # asked where neither ZeRO nor another wrapper of the optimizer clips
