"""What works of the simulators on this machine: checks for `vlnbench doctor`. Imports nothing heavy."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterator

from vlnbench.util.findings import Finding, ProbeError, probe


def check_simulator() -> Iterator[Finding]:
    """Which simulator is used, and whether habitat-sim can be."""
    if not _has_habitat_sim():
        yield Finding("ok", "simulator", "embedded (habitat-sim is not installed)")
        return
    try:
        version = probe("import habitat_sim; print(habitat_sim.__version__)")
    except ProbeError as error:
        advice = "repair or remove it, or use --sim embedded"
        yield Finding("FAIL", "simulator", f"habitat-sim cannot be imported ({error})", advice)
    else:
        yield Finding("ok", "simulator", f"habitat-sim {version}; embedded with --sim embedded")


def check_egl() -> Iterator[Finding]:
    """habitat-sim draws through EGL; the embedded simulator draws on the CPU and needs none."""
    needed = _has_habitat_sim()
    code = (
        "import ctypes; egl = ctypes.CDLL('libEGL.so.1'); egl.eglGetProcAddress.restype = ctypes.c_void_p; "
        "query = egl.eglGetProcAddress(b'eglQueryDevicesEXT'); n = ctypes.c_int(0); "
        "query and ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))"
        "(query)(0, None, ctypes.byref(n)); print(n.value)"
    )
    try:
        devices = int(probe(code))
    except ProbeError as error:
        devices, reason = 0, f"not available ({error})"
    else:
        reason = f"number of devices {devices}"
    if devices or not needed:
        yield Finding("ok", "EGL", reason + ("" if needed else "; only habitat-sim needs it"))
    else:
        yield Finding("FAIL", "EGL", reason, "install the EGL part of the GPU driver, or use --sim embedded")


def check_cache() -> Iterator[Finding]:
    """The cache folder can be written, and whether the embedded simulator is compiled."""
    from envs.embedded.kernels.cache import NOT_OURS
    from vlnbench.util.durable.own import cache_dir, own_cache

    folder = cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        if error.errno not in NOT_OURS:
            yield Finding("FAIL", "cache", f"{folder} cannot be written ({error.strerror})", "set VLNBENCH_CACHE")
            return
    own = own_cache()
    from envs.embedded.warmup import WarmUp  # imports numba, which may be what is broken

    waiting = WarmUp().needed
    state = "not compiled yet, the first evaluation does it" if waiting else "compiled"
    own_too = "" if own == folder else f"; {own}, since others write there or this user may not"
    yield Finding("ok", "cache", f"{folder}{own_too}; kernels of the embedded simulator: {state}")


def _has_habitat_sim() -> bool:
    return importlib.util.find_spec("habitat_sim") is not None


CHECKS = {"simulator": check_simulator, "EGL": check_egl, "cache": check_cache}
"""By the name that a check is reported under if it breaks."""
