"""What `vlnbench doctor` says of GPUs: the cards as torch sees them, and what beside torch makes use of them.

Nothing of a GPU library is imported in this process.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vlnbench.util.findings import Finding, ProbeError, probe
from vlnbench.util.machine import c_compiler, installed_version

GIB = 1024.0**3
BFLOAT16 = (8, 0)
"""Compute capability from which on cards calculate in bfloat16, the usual precision of published checkpoints."""

LOOK = """
import json, torch
c = torch.cuda
count = c.device_count() if c.is_available() else 0
def free(i):
    try:
        return c.mem_get_info(i)[0]
    except RuntimeError:  # another process has the card for itself
        return 0
cards = [[c.get_device_name(i), c.get_device_properties(i).total_memory, free(i), c.get_device_capability(i)]
         for i in range(count)]
nccl = torch.distributed.is_available() and torch.distributed.is_nccl_available()
version = ".".join(map(str, c.nccl.version())) if count and nccl else None
print(json.dumps([torch.version.cuda, c.get_arch_list(), cards, version]))
"""


def check_cuda() -> Iterator[Finding]:
    """GPUs as torch sees them, whether its build has code for them, and the libraries that use them."""
    if installed_version("torch") is None:
        yield Finding("warn", "CUDA", "unknown without torch", "learned agents need torch")
        return
    build, architectures, cards, nccl = json.loads(probe(LOOK))
    for i, (name, memory, free, (major, minor)) in enumerate(cards):
        card = f"{name}, {memory / GIB:.1f} GiB, {free / GIB:.1f} free, sm_{major}{minor} (torch for CUDA {build})"
        if not has_code_for(major, minor, architectures):
            detail = f"{card}, for which it has no code, only for {', '.join(architectures)}"
            advice = "install a torch build that has (newer cards want a newer one), or give --device cpu"
            yield Finding("FAIL", f"CUDA device {i}", detail, advice)
        elif (major, minor) < BFLOAT16:
            detail = f"{card}, no bfloat16, which --dtype auto takes for most checkpoints"
            yield Finding("warn", f"CUDA device {i}", detail, "give --dtype float16 or float32")
        else:
            yield Finding("ok", f"CUDA device {i}", f"{card}, bfloat16")
    if cards:
        yield from _beside(len(cards), nccl)
    elif shutil.which("nvidia-smi"):
        advice = "install a torch build for the driver that `nvidia-smi` shows"
        yield Finding("warn", "CUDA", f"torch (built for CUDA {build}) sees no device though there is one", advice)
    else:
        yield Finding("warn", "CUDA", "no device", "scripted agents run without; learned ones will be slow")


@dataclass(frozen=True, slots=True)
class Library:
    """What is of use beside torch. name: of the finding. works: statements that fail where it cannot be used.

    without: what happens where it is not installed. mend: what brings it.
    """

    name: str
    distribution: str
    works: str
    without: str
    mend: str


LIBRARIES = (
    Library(
        "flash_attn",
        "flash-attn",
        "import torch, flash_attn; x = torch.zeros(1, 1, 1, 64, device='cuda', dtype=torch.float16); "
        "flash_attn.flash_attn_func(x, x, x)",
        "attention is torch's own (SDPA)",
        "pip install flash-attn --no-build-isolation",
    ),
    Library(
        "bitsandbytes",
        "bitsandbytes",
        "import torch, bitsandbytes as b; "
        "b.functional.quantize_4bit(torch.zeros(64, 64, device='cuda', dtype=torch.float16))",
        "no --quantize, no --optimizer adamw8bit",
        "pip install 'vlnbench[gpu]'",
    ),
    Library(
        "NVML",
        "nvidia-ml-py",
        "import pynvml; pynvml.nvmlInit(); pynvml.nvmlDeviceGetCount()",
        "memory of the whole process is not recorded, only what torch counts",
        "pip install nvidia-ml-py",
    ),
)


def _beside(cards: int, nccl: str | None) -> Iterator[Finding]:
    """Libraries, each tried on the first card: one that is installed and does not work is a warning."""
    for each in LIBRARIES:
        version = installed_version(each.distribution)
        if version is None:
            yield Finding("ok", each.name, f"not installed: {each.without} (`{each.mend}`)")
            continue
        try:
            probe(each.works)
        except ProbeError as error:
            yield Finding(
                "warn", each.name, f"{version} does not work here ({error}): {each.without}", "reinstall it"
            )
        else:
            yield Finding("ok", each.name, version)
    yield _triton()
    if nccl is not None:
        yield Finding("ok", "NCCL", nccl)
    elif cards > 1:
        yield Finding("warn", "NCCL", "torch has none", "training on several GPUs needs a build with it")


def _triton() -> Finding:
    """`--compile` writes kernels with triton, which calls a C compiler and reads Python's headers."""
    version, compiler = installed_version("triton"), c_compiler()
    if version is None:
        return Finding("ok", "triton", "not installed: no --compile")
    if compiler is None:
        return Finding(
            "warn", "triton", f"{version} without a C compiler: no --compile", "install gcc or clang, or set CC"
        )
    return Finding("ok", "triton", f"{version} with {compiler}")


_ARCHITECTURE = re.compile(r"(?P<kind>sm|compute)_(?P<major>\d+)(?P<minor>\d)(?P<only>[af]?)")


def has_code_for(major: int, minor: int, architectures: Sequence[str]) -> bool:
    """Whether a torch build can run on a card of compute capability major.minor; True for lists of other makers.

    Its list names machine code (sm_86 is for 8.6 and later 8.x, sm_90a for 9.0 alone, sm_100f for 10.x) and code
    that the driver translates (compute_90 is for 9.0 and later). Source: CUDA C++ Programming Guide, "Compute
    Capabilities".
    """
    parsed = [found for each in architectures if (found := _ARCHITECTURE.fullmatch(each))]
    for found in parsed:
        of = int(found["major"]), int(found["minor"])
        translated = found["kind"] == "compute" and not found["only"]
        within = of == (major, minor) if found["only"] == "a" else of[0] == major and of[1] <= minor
        if within or (translated and of <= (major, minor)):
            return True
    return not parsed
