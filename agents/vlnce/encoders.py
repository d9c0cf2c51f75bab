"""The encoders that CMA and Seq2Seq share: instruction, RGB, depth, and the recurrent state.

The two visual encoders work in two steps, so that what a frozen network made of a frame can be kept: `features`
runs the convolutions, `forward` does the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from agents.common.gru import Gru
from agents.vlnce.config import TOKENS, NetworkConfig
from agents.vlnce.resnet import GRID, DepthResnet, imagenet_normalized, rgb_resnet

POSITION_SIZE = 64
PATCH = 4
"""Pixels of each side of the squares that the first layer of a small encoder cuts a picture into."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Input for T steps of N slots, B = T * N rows, time-major: step t of slot n is row t * N + n.

    instructions: as `Policy.read` returns them, (I, C, L) or (I, C); row r follows instruction r % I: one for each
    slot, or one for each row. rgb, depth: features of F frames as `Policy.see` returns them. previous: (B,) int64,
    the action before, any value where an episode begins. masks: (B,) bool, False where an episode begins.
    together: so many rows, one after the other, see the same frame. frame_of: (B / together,) int64, which of the
    frames these see; None: row r sees frame r.
    """

    instructions: Tensor
    rgb: Tensor
    depth: Tensor
    previous: Tensor
    masks: Tensor
    frame_of: Tensor | None = None
    together: int = 1

    @property
    def previous_index(self) -> Tensor:
        """Row of the action embedding: 0 where an episode begins, else 1 more than the action before."""
        return (self.previous + 1) * self.masks.long()

    def seen(self, of_frames: Tensor) -> Tensor:
        """What was made of every frame, (F, ...), as what rows see together, (B / together, ...)."""
        return of_frames if self.frame_of is None else of_frames.index_select(0, self.frame_of)

    def by_row(self, of_frames: Tensor) -> Tensor:
        """What was made of every frame, (F, ...), as what each row sees, (B, ...)."""
        seen = self.seen(of_frames)
        return seen if self.together == 1 else seen.repeat_interleave(self.together, dim=0)


class InstructionEncoder(nn.Module):
    """Words -> LSTM outputs, or the last state of the LSTM.

    A word counts if its vector is not all zero. As in VLN-CE, as many positions as words count are read, from the
    first: a zero inside an instruction stays and the last word is lost.
    """

    embedding_layer: nn.Embedding

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self._sequence = config.kind == "cma"
        self.encoder_rnn = nn.LSTM(
            config.embedding_size, config.text_size, bidirectional=config.bidirectional, batch_first=True
        )
        if config.reads == TOKENS:
            self.embedding_layer = nn.Embedding(config.vocab_size, config.embedding_size, padding_idx=0)
            self.embedding_layer.requires_grad_(config.tune_embeddings)
        self.output_size = config.text_size * (1 + config.bidirectional)

    def forward(self, words: Tensor) -> Tensor:
        """(N, L) int64 tokens or (N, L, 768) features -> (N, C, longest), zeros behind the words; or (N, C).

        Raises ValueError for an instruction without words.
        """
        vectors = words if words.dim() == 3 else self.embedding_layer(words)
        if vectors.is_meta:  # when memory is planned there are shapes and no words
            padded, (last, _) = self.encoder_rnn(vectors)
        else:
            counts = (vectors != 0).any(dim=2).sum(dim=1)
            if not bool(counts.all()):
                raise ValueError("an instruction without words")
            packed = pack_padded_sequence(vectors, counts.cpu(), batch_first=True, enforce_sorted=False)
            outputs, (last, _) = self.encoder_rnn(packed)
            padded, _ = pad_packed_sequence(outputs, batch_first=True)
        encoded: Tensor = padded.transpose(1, 2) if self._sequence else last.squeeze(0)
        return encoded


class Positions(nn.Embedding):
    """Learned vectors of the cells, appended to a grid of features as channels."""

    def __init__(self) -> None:
        super().__init__(GRID**2, POSITION_SIZE)

    @property
    def channels(self) -> Tensor:
        """(POSITION_SIZE, cells). The table is laid out as channels row by row, as VLN-CE does it: a cell's
        channels are not a row of it."""
        return self.weight.view(POSITION_SIZE, GRID**2)

    def append_to(self, grid: Tensor) -> Tensor:
        """(N, C, GRID, GRID) -> (N, C + POSITION_SIZE, GRID, GRID)."""
        cells = self.channels.view(1, POSITION_SIZE, GRID, GRID).expand(len(grid), -1, -1, -1)
        return torch.cat([grid, cells], dim=1)


class CellLayer(nn.Conv1d):
    """A layer on every cell of a grid and its position, which it applies once: it is the same in all frames."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 1)

    def forward(self, grid: Tensor, positions: Tensor) -> Tensor:  # type: ignore[override]
        """(N, C, cells) and (POSITION_SIZE, cells) -> (N, cells, outputs)."""
        own, placed = torch.split(self.weight.squeeze(2), [grid.shape[1], len(positions)], dim=1)
        places = nn.functional.linear(positions.t(), placed, self.bias)
        return nn.functional.linear(grid.transpose(1, 2), own) + places


class Patches(nn.Conv2d):
    """A convolution of squares that touch and do not overlap, as one matrix product, which is faster on a CPU."""

    def __init__(self, inputs: int, outputs: int, side: int) -> None:
        super().__init__(inputs, outputs, side, side)

    def forward(self, images: Tensor) -> Tensor:
        """(N, inputs, H, W) -> (N, outputs, H // side, W // side)."""
        side = self.kernel_size[0]
        count, channels, height, width = images.shape
        h, w = height // side, width // side
        squares = images[:, :, : h * side, : w * side].reshape(count, channels, h, side, w, side)
        rows = squares.permute(0, 2, 4, 1, 3, 5).reshape(count * h * w, channels * side**2)
        found = nn.functional.linear(rows, self.weight.flatten(1), self.bias)
        return found.view(count, h, w, -1).permute(0, 3, 1, 2)


class SmallEncoder(nn.Module):
    """In place of a ResNet, to be trained on a CPU: (N, inputs, H, W) -> (N, 2 * width, cells, cells)."""

    def __init__(self, inputs: int, width: int, cells: int) -> None:
        super().__init__()
        outputs = small_channels(width)
        self.layers = nn.Sequential(
            Patches(inputs, width, PATCH),
            nn.ReLU(),
            nn.Conv2d(width, outputs, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.GroupNorm(4, outputs),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(cells),
        )

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layers(images)
        return features


def small_channels(width: int) -> int:
    """Channels of the output."""
    return 2 * width


class RgbEncoder(nn.Module):
    """Frames -> a grid with positions (CMA) or a vector (Seq2Seq)."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self._normalize = config.normalize_rgb
        self._tuned = config.tune_rgb
        self._grid = config.kind == "cma"
        cells = GRID if self._grid or config.encoders == "small" else 1
        self.cnn: nn.Module
        if config.encoders == "small":
            channels = small_channels(config.rgb_width)
            self.cnn = SmallEncoder(3, config.rgb_width, cells)
        else:
            channels = 32 * config.rgb_width
            self.cnn = rgb_resnet(config.rgb_width, cells)
        self.cnn.requires_grad_(config.tune_rgb)
        self.output_size = channels + POSITION_SIZE if self._grid else config.rgb_size
        if self._grid:
            self.spatial_embeddings = Positions()
        else:
            self.fc = nn.Sequential(nn.Flatten(), nn.Linear(channels * cells**2, config.rgb_size), nn.ReLU())

    def features(self, frames: Tensor) -> Tensor:
        """(N, H, W, 3) uint8 -> (N, channels, GRID, GRID), or (..., 1, 1) for Seq2Seq's ResNet."""
        images = frames.permute(0, 3, 1, 2).float() / 255.0
        grid: Tensor = self.cnn(imagenet_normalized(images) if self._normalize else images)
        return grid

    def forward(self, features: Tensor) -> Tensor:
        """Features -> (N, C, GRID, GRID) or (N, rgb_size)."""
        if self._grid:
            return self.spatial_embeddings.append_to(features)
        vector: Tensor = self.fc(features)
        return vector

    def train(self, mode: bool = True) -> RgbEncoder:
        """Training mode, in which a frozen network still uses the statistics that it was trained with."""
        super().train(mode)
        self.cnn.train(mode and self._tuned)
        return self


class DepthEncoder(nn.Module):
    """Depth images -> a grid with positions (CMA) or a vector (Seq2Seq)."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.visual_encoder: nn.Module
        if config.encoders == "small":
            channels = small_channels(config.depth_planes)
            self.visual_encoder = SmallEncoder(1, config.depth_planes, GRID)
        else:
            channels = DepthResnet.CHANNELS
            self.visual_encoder = DepthResnet(config.depth_planes)
        self._small = config.encoders == "small"
        self.visual_encoder.requires_grad_(config.tune_depth)
        self._grid = config.kind == "cma"
        self.output_size = channels + POSITION_SIZE if self._grid else config.depth_size
        if self._grid:
            self.spatial_embeddings = Positions()
        else:
            head = nn.Linear(channels * GRID**2, config.depth_size)
            self.visual_fc = nn.Sequential(nn.Flatten(), head, nn.ReLU())

    def features(self, depth: Tensor) -> Tensor:
        """(N, H, W) float in [0, 1] -> (N, channels, GRID, GRID); the ResNet takes 256 x 256 pixels."""
        grid: Tensor = self.visual_encoder(depth.unsqueeze(1) if self._small else depth)
        return grid

    def forward(self, features: Tensor) -> Tensor:
        """Features -> (N, C, GRID, GRID) or (N, depth_size)."""
        if self._grid:
            return self.spatial_embeddings.append_to(features)
        vector: Tensor = self.visual_fc(features)
        return vector


class StateEncoder(nn.Module):
    """A GRU over steps, whose state is set to zero where an episode begins."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.rnn = Gru(inputs, hidden)

    def forward(self, x: Tensor, state: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
        """One step or many.

        x: (T * N, C), step t of slot n at t * N + n. state: (N, hidden) before the first step. masks: (T * N,)
        bool, False where an episode begins. Returns outputs (T * N, hidden) and the state after the last step.
        """
        slots = len(state)
        steps = x.view(-1, slots, x.shape[1])
        keep = masks.view(-1, slots, 1)
        begins = (~keep.squeeze(2)).any(dim=1).nonzero().flatten().tolist()
        bounds = sorted({0, *begins, len(steps)})
        hidden, outputs = state.unsqueeze(0), []
        for first, end in pairwise(bounds):
            output, hidden = self.rnn(steps[first:end], hidden * keep[first])
            outputs.append(output)
        return torch.cat(outputs).flatten(0, 1), hidden.squeeze(0)
