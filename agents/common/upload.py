"""Small tensors on their way to a GPU, which nobody waits for."""

from __future__ import annotations

import torch
from torch import Tensor


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on a device; to a GPU from pinned memory, so that the host goes on."""
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
