"""CMA, cross-modal attention (arXiv 2004.02857): one GRU decides where to look, a second one what to do."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from agents.vlnce.config import NetworkConfig
from agents.vlnce.encoders import CellLayer, DepthEncoder, InstructionEncoder, RgbEncoder, StateEncoder, Steps
from agents.vlnce.resnet import GRID

ACTION_SIZE = 32
MASKED = 1e8
"""Taken from the scores of masked positions, as VLN-CE does it."""


class CMANet(nn.Module):
    """Attention of the state over words, and of the words over the two grids of features."""

    layers = 2
    _scale: Tensor

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self._config = config
        hidden, half = config.state_size, config.state_size // 2
        self.instruction_encoder = InstructionEncoder(config)
        self.depth_encoder = DepthEncoder(config)
        self.rgb_encoder = RgbEncoder(config)
        text = self.instruction_encoder.output_size
        rgb, depth = self.rgb_encoder.output_size, self.depth_encoder.output_size
        self.prev_action_embedding = nn.Embedding(config.num_actions + 1, ACTION_SIZE)
        self.rgb_linear = nn.Sequential(
            nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(rgb, config.rgb_size), nn.ReLU()
        )
        self.depth_linear = nn.Sequential(nn.Flatten(), nn.Linear(depth * GRID**2, config.depth_size), nn.ReLU())
        self.state_encoder = StateEncoder(config.rgb_size + config.depth_size + ACTION_SIZE, hidden)
        self.rgb_kv = CellLayer(rgb, half + config.rgb_size)
        self.depth_kv = CellLayer(depth, half + config.depth_size)
        self.state_q = nn.Linear(hidden, half)
        self.text_k = nn.Conv1d(text, half, 1)
        self.text_q = nn.Linear(text, half)
        self.register_buffer("_scale", torch.tensor(half**-0.5))
        joined = hidden + text + config.rgb_size + config.depth_size + ACTION_SIZE
        self.second_state_compress = nn.Sequential(nn.Linear(joined, hidden), nn.ReLU())
        self.second_state_encoder = StateEncoder(hidden, hidden)
        self.progress_monitor = nn.Linear(hidden, 1)

    def forward(self, steps: Steps, states: Tensor) -> tuple[Tensor, Tensor]:
        """What the action layer reads, (B, H), and the states after the last step, (N, 2, H)."""
        words, rgb, depth = self._ablated(steps)
        action = self.prev_action_embedding(steps.previous_index)
        looked = torch.cat([self.rgb_linear(rgb), self.depth_linear(depth)], dim=1)
        seen = torch.cat([steps.by_row(looked), action], dim=1)
        state, first = self.state_encoder(seen, states[:, 0], steps.masks)
        asked = self.state_q(state).view(-1, len(words), self.text_k.out_channels).transpose(0, 1)
        text = self.attend(asked, self.text_k(words), words, (words == 0).all(dim=1, keepdim=True))
        text = text.transpose(0, 1).flatten(0, 1)
        query = self.text_q(text).unflatten(0, (-1, steps.together))
        rgb_seen, depth_seen = (self.attend(query, *cells).flatten(0, 1) for cells in self._cells(steps))
        x = self.second_state_compress(torch.cat([state, text, rgb_seen, depth_seen, action], dim=1))
        x, second = self.second_state_encoder(x, states[:, 1], steps.masks)
        return x, torch.stack([first, second], dim=1)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, masked: Tensor | None = None) -> Tensor:
        """query (B, Q, half), keys (B, half, P), values (B, C, P), masked (B, 1, P) bool -> (B, Q, C)."""
        return self.weigh(query, keys, masked) @ values.transpose(1, 2)

    def weigh(self, query: Tensor, keys: Tensor, masked: Tensor | None) -> Tensor:
        """How much each position counts, (B, Q, P)."""
        scores = query @ keys
        if masked is not None:
            scores = scores - masked.float() * MASKED
        return torch.softmax(scores * self._scale, dim=2)

    def _cells(self, steps: Steps) -> Iterator[tuple[Tensor, Tensor]]:
        """Keys (B / together, half, cells) and values (B / together, C, cells) of RGB and of depth."""
        config, half = self._config, self.text_q.out_features
        for layer, encoder, grid, ablated in (
            (self.rgb_kv, self.rgb_encoder, steps.rgb, config.ablate_rgb),
            (self.depth_kv, self.depth_encoder, steps.depth, config.ablate_depth),
        ):
            positions = encoder.spatial_embeddings.channels
            seen = steps.seen(layer(grid.flatten(2) * (not ablated), positions * (not ablated))).transpose(1, 2)
            # Gradients of a split are joined; those of slices would be added, each with zeros beside it.
            keys, values = torch.split(seen, [half, seen.shape[1] - half], dim=1)
            yield keys, values

    def _ablated(self, steps: Steps) -> tuple[Tensor, Tensor, Tensor]:
        """Instructions (I, C, L) and the two grids (F, C, cells), zeroed where the config says so."""
        words = steps.instructions * (not self._config.ablate_instruction)
        rgb = self.rgb_encoder(steps.rgb).flatten(2) * (not self._config.ablate_rgb)
        depth = self.depth_encoder(steps.depth).flatten(2) * (not self._config.ablate_depth)
        return words, rgb, depth
