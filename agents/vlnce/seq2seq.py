"""Seq2Seq (arXiv 2004.02857): the instruction's last state, a vector of each image, and one GRU."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from agents.vlnce.config import NetworkConfig
from agents.vlnce.encoders import DepthEncoder, InstructionEncoder, RgbEncoder, StateEncoder, Steps

ACTION_SIZE = 32


class Seq2SeqNet(nn.Module):
    """Everything side by side into the GRU; the previous action only where the config says so."""

    layers = 1

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self._config = config
        self.instruction_encoder = InstructionEncoder(config)
        self.depth_encoder = DepthEncoder(config)
        self.rgb_encoder = RgbEncoder(config)
        inputs = self.instruction_encoder.output_size + config.depth_size + config.rgb_size
        if config.use_prev_action:
            self.prev_action_embedding = nn.Embedding(config.num_actions + 1, ACTION_SIZE)
            inputs += ACTION_SIZE
        self.state_encoder = StateEncoder(inputs, config.state_size)
        self.progress_monitor = nn.Linear(config.state_size, 1)

    def forward(self, steps: Steps, states: Tensor) -> tuple[Tensor, Tensor]:
        """What the action layer reads, (B, H), and the states after the last step, (N, 1, H)."""
        config = self._config
        inputs = [
            steps.instructions.repeat(len(steps.masks) // len(steps.instructions), 1)
            * (not config.ablate_instruction),
            steps.by_row(self.depth_encoder(steps.depth)) * (not config.ablate_depth),
            steps.by_row(self.rgb_encoder(steps.rgb)) * (not config.ablate_rgb),
        ]
        if config.use_prev_action:
            inputs.append(self.prev_action_embedding(steps.previous_index))
        x, state = self.state_encoder(torch.cat(inputs, dim=1), states[:, 0], steps.masks)
        return x, state.unsqueeze(1)
