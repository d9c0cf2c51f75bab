from __future__ import annotations

from pathlib import Path

import pytest

from envs.backends import choose_backend, cuda_is_visible
from envs.habitat_lab import has_habitat_sim
from vlnbench.errors import UsageError


@pytest.mark.parametrize(
    ("files", "variable", "visible"),
    [
        ((), None, False),
        (("nvidiactl", "nvidia-uvm", "nvidia-caps"), None, False),
        (("nvidiactl", "nvidia0"), None, True),
        (("nvidia0", "nvidia12"), "1", True),
        (("nvidia0",), "", False),
        (("nvidia0",), "-1", False),
    ],
)
def test_cuda_devices_are_seen_through_device_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...], variable: str | None, visible: bool
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    for name in files:
        (tmp_path / name).touch()
    assert cuda_is_visible(tmp_path) is visible


@pytest.mark.skipif(has_habitat_sim(), reason="habitat-sim is installed")
def test_habitat_sim_is_taken_only_where_it_is_installed() -> None:
    assert choose_backend("auto").name.startswith("embedded")
    with pytest.raises(UsageError, match="habitat-sim is not installed"):
        choose_backend("habitat-sim")
