"""The made weights and inputs of the recordings in ../shared/goldens/vlnce_cma: its README gives the formulas."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from agents.vlnce.network import Policy

GAINS = (
    ("action_distribution.linear.weight", 6.0),
    ("rgb_linear.2.weight", 0.4),
    ("rgb_encoder.fc.1.weight", 0.4),
    ("encoder_rnn.weight_", 2.0),
    ("state_q.weight", 4.0),
    ("text_q.weight", 12.0),
)


def draw(text: str, count: int, start: int = 0) -> NDArray[np.uint32]:
    """`count` 32-bit numbers for a text."""
    key = 2166136261
    for byte in f"1:{text}".encode():
        key = ((key ^ byte) * 16777619) & 0xFFFFFFFF
    x = np.uint32(key) + np.arange(start, start + count, dtype=np.uint32) * np.uint32(0x9E3779B9)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def uniform(text: str, count: int) -> NDArray[np.float64]:
    """`count` numbers in [-1, 1) for a text."""
    return (draw(text, count) >> np.uint32(8)).astype(np.float64) / 8388608 - 1


def tensor(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """The made value of one entry of a state dict; `_scale` is left to the caller."""
    *_, before, leaf = name.split(".")
    if leaf == "num_batches_tracked":
        return torch.tensor(1000)
    x = uniform(name, int(np.prod(shape)))
    last_norm = ".bn3." in name or ".convs.7." in name
    if leaf == "running_mean" or leaf.startswith("bias"):
        x = 0.1 * x
    elif leaf == "running_var":
        x = 1 + 0.25 * x
    elif "embedding" in before:
        if before == "embedding_layer":
            x[: shape[1]] = 0
    elif len(shape) == 1:
        x = 0.4 + 0.1 * x if last_norm else 1 + 0.25 * x
    else:
        gain = ([1.0] + [gain for part, gain in GAINS if part in name])[-1]
        x = gain * np.sqrt(6 / np.prod(shape[1:])) * x
    return torch.from_numpy(x.astype(np.float32).reshape(shape))


def fill(policy: Policy, action_bias: list[float] | None = None) -> Policy:
    """Give a policy the made weights, in evaluation mode."""
    state = policy.state_dict()
    made = {name: tensor(name, tuple(value.shape)) for name, value in state.items() if name != "net._scale"}
    if "net._scale" in state:
        made["net._scale"] = torch.tensor((policy.config.state_size // 2) ** -0.5)
    if action_bias is not None:
        made["action_distribution.linear.bias"] = torch.tensor(action_bias)
    policy.load_state_dict(made, assign=True)
    return policy.eval()


def _wave(v: NDArray[np.int64]) -> NDArray[np.int64]:
    t = v % 512
    return np.where(t < 256, t, 511 - t)


def rgb(frame: str) -> NDArray[np.uint8]:
    """A made RGB frame, (224, 224, 3)."""
    d = draw(f"rgb/{frame}", 31).astype(np.int64)
    y, x = np.mgrid[:224, :224]
    image = np.zeros((224, 224, 3), np.int64)
    for c in range(3):
        kx, ky, phase, low, span = d[8 * c : 8 * c + 5] % (9, 9, 512, 96, 97) + (0, 0, 0, 0, 32)
        image[..., c] = low + _wave(kx * x + ky * y + phase) * span // 256
    left, top = d[24:26] % 180
    width, height = 20 + d[26:28] % 100
    image[top : top + height, left : left + width] = d[28:31] % 224
    noise = (draw(f"rgbnoise/{frame}", image.size) >> np.uint32(27)).astype(np.int64)
    return (image + noise.reshape(image.shape)).astype(np.uint8)


def depth(frame: str) -> NDArray[np.float32]:
    """A made depth image in [0, 1], (256, 256)."""
    d = draw(f"depth/{frame}", 12).astype(np.int64)
    y, x = np.mgrid[:256, :256]
    kx, ky, phase, low, span = d[:5] % (9, 9, 512, 1024, 3072) + (0, 0, 0, 0, 1024)
    image = low + _wave(kx * x + ky * y + phase) * span // 256
    left, top = d[5:7] % 200
    width, height = 20 + d[7:9] % 100
    image[top : top + height, left : left + width] = d[9] % 4097
    image += (draw(f"depthnoise/{frame}", image.size) >> np.uint32(25)).astype(np.int64).reshape(image.shape)
    image = np.minimum(image, 4096)
    left, top = d[10:12] % 216
    image[top : top + 40, left : left + 40] = 0
    return (image / 4096).astype(np.float32)


def rxr_features(name: str, rows: int) -> NDArray[np.float32]:
    """Made BERT features, (512, 768) with zeros behind `rows`."""
    made = np.zeros((512, 768), np.float32)
    made[:rows] = uniform(f"rxr/{name}", 512 * 768).reshape(512, 768)[:rows]
    return made
