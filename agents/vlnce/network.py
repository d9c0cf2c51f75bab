"""CMA and Seq2Seq (arXiv 2004.02857): encoders, how they are joined, the loss, and a step of training."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from agents.common.gru import StateEncoder
from agents.common.sight.rgbd import share_of, unflat
from agents.common.sight.semantics import AuxiliaryLoss
from agents.common.towers.grids import POSITION_SIZE, CellLayer, Positions, SmallEncoder, small_channels
from agents.common.towers.resnet import GRID, DepthResnet, imagenet_normalized, rgb_resnet
from agents.vlnce.options import TOKENS, Config, NetworkConfig


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


@dataclass(frozen=True, slots=True)
class Decisions:
    """Output for B rows: action `logits` (B, actions), `progress` (B,) in (-1, 1), and the `states` (N, layers, H)
    after the last step."""

    logits: Tensor
    progress: Tensor
    states: Tensor


class Policy(nn.Module):
    """CMA or Seq2Seq, with parameters named as in the released checkpoints."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.net: CMANet | Seq2SeqNet = CMANet(config) if config.kind == "cma" else Seq2SeqNet(config)
        self.action_distribution = ActionHead(config.state_size, config.num_actions)

    def read(self, words: Tensor) -> Tensor:
        """Encode instructions: (I, L) int64 tokens or (I, L, 768) features; zeros behind the words."""
        encoded: Tensor = self.net.instruction_encoder(words)
        return encoded

    def see(self, rgb: Tensor, depth: Tensor) -> tuple[Tensor, Tensor]:
        """Features of frames (B, H, W, 3) uint8 and depth images (B, H, W) in [0, 1]: see `Steps`."""
        return self.net.rgb_encoder.features(rgb), self.net.depth_encoder.features(depth)

    def forward(self, steps: Steps, states: Tensor) -> Decisions:
        """See `decide`."""
        return self.decide(steps, states)

    def decide(self, steps: Steps, states: Tensor) -> Decisions:
        """One step or many; `states` (N, layers, H) are those before the first, zeros for new episodes."""
        hidden, states = self.net(steps, states)
        progress = torch.tanh(self.net.progress_monitor(hidden)).squeeze(1)
        return Decisions(self.action_distribution(hidden), progress, states)

    def new_states(self, slots: int) -> Tensor:
        """States of slots whose episodes begin: zeros, (slots, layers, H)."""
        weight = self.action_distribution.linear.weight
        return weight.new_zeros(slots, self.net.layers, self.config.state_size)


class ActionHead(nn.Module):
    """One logit per action."""

    def __init__(self, hidden: int, actions: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, actions)

    def forward(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.linear(hidden)
        return logits


@dataclass(frozen=True, slots=True)
class Losses:
    """The training loss and its two terms; `progress` is 0 without a progress monitor."""

    total: Tensor
    action: Tensor
    progress: Tensor


def sequence_losses(
    config: NetworkConfig, decisions: Decisions, labels: Tensor, weights: Tensor, progress: Tensor
) -> Losses:
    """VLN-CE's loss over whole episodes.

    labels, weights, progress: (T, N): the expert's actions, the weight of each step (0 behind the end of an
    episode, the inflection coefficient where the expert's action changes, else 1), and the part of the way that is
    done. Each slot's cross entropy is averaged by its weights, then over slots; the progress monitor adds
    `progress_weight` times its mean squared error over steps with a weight.
    """
    logits = decisions.logits.view(*labels.shape, -1)
    entropy = functional.cross_entropy(logits.permute(0, 2, 1), labels, reduction="none")
    action = ((weights * entropy).sum(0) / weights.sum(0)).mean()
    if not config.progress_monitor:
        return Losses(action, action, torch.zeros_like(action))
    error = functional.mse_loss(decisions.progress.view(labels.shape), progress, reduction="none")
    counted = (weights > 0).to(error.dtype)
    aside = config.progress_weight * (error * counted).sum() / counted.sum()
    return Losses(action + aside, action, aside)


class Learner(Policy):
    """A `Policy` whose forward pass is over whole walks, with VLN-CE's loss; parameters have the same names.

    auxiliary: what learns to tell what frames show, if that is taught, and the weight of its loss.
    """

    auxiliary: AuxiliaryLoss | None

    def __init__(self, config: Config) -> None:
        super().__init__(config.network)
        self.whole = config
        self.auxiliary, self.auxiliary_weight = None, 0.0

    def forward(  # type: ignore[override]
        self,
        frames: tuple[Tensor, Tensor] | Sequence[Tensor],
        *,
        at_labels: bool = False,
        shown: Tensor | None = None,
        shown_of: Tensor | None = None,
        **batch: Any,
    ) -> Tensor:
        """The loss of a batch, a scalar, see `losses`; at_labels: the scores of what was drawn, see `scores`, with
        statistics of batch norm as they were when the network acted.

        frames: RGB and depth of all steps, walk after walk, as `Policy.see` takes them; or a list with the kept
        features of every walk. shown: (S, names, GRID, GRID), what the frames shown_of, (S,), show, where that is
        taught.
        """
        if at_labels:
            self.net.rgb_encoder.cnn.eval()
            return self.scores(self._look(frames), **batch)
        seen = self._look(frames)
        loss = self.losses(seen, **batch).total
        if self.auxiliary is None or shown is None or shown_of is None:
            return loss
        rgb, depth = (each[shown_of.to(self.device)] for each in seen)
        told: Tensor = self.auxiliary((rgb, depth), shown.to(self.device))
        return loss + self.auxiliary_weight * told

    def losses(
        self,
        seen: tuple[Tensor, Tensor],
        words: Tensor,
        walk_of: Tensor,
        previous: Tensor,
        labels: Tensor,
        weights: Tensor,
        progress: Tensor,
        rows: Tensor,
    ) -> Losses:
        """Losses of N instructions on W walks of at most T steps.

        seen: features of RGB and depth of all steps, walk after walk. words: (N, L). walk_of: (N,), which walk an
        instruction is about. previous, labels, weights, progress: (W, T), zeros behind a walk's end. rows: (W, T),
        which of the frames a step shows; behind a walk's end, how many there are.
        """
        decisions = self._decide(seen, words, walk_of, previous, rows)
        labels, weights, progress = (each.to(self.device)[walk_of].T for each in (labels, weights, progress))
        return sequence_losses(self.config, decisions, labels, weights, progress)

    def scores(
        self,
        seen: tuple[Tensor, Tensor],
        words: Tensor,
        walk_of: Tensor,
        previous: Tensor,
        weights: Tensor,
        rows: Tensor,
    ) -> Tensor:
        """Logits (steps, actions) of the steps that have a weight, instruction after instruction; see `losses`."""
        decisions = self._decide(seen, words, walk_of, previous, rows)
        instructions, steps = (weights[walk_of] > 0).nonzero(as_tuple=True)
        return decisions.logits[(steps * len(walk_of) + instructions).to(self.device)]

    def _look(self, frames: tuple[Tensor, Tensor] | Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Features of all frames, RGB and depth."""
        if isinstance(frames, tuple):
            colors, depths = (each.to(self.device) for each in frames)
            return self.see(colors, share_of(depths))
        return split_features(torch.cat(list(frames)).to(self.device), self.feature_shapes())

    def _decide(
        self,
        seen: tuple[Tensor, Tensor],
        words: Tensor,
        walk_of: Tensor,
        previous: Tensor,
        rows: Tensor,
    ) -> Decisions:
        """What the network decides at every step, (T * N,) rows, step after step."""
        device = self.device
        words, walk_of, rows = words.to(device), walk_of.to(device), rows.to(device)
        previous = previous.to(device)[walk_of].T
        longest, slots = previous.shape
        rgb, depth = seen
        begins = torch.ones(longest, slots, dtype=torch.bool)
        begins[0] = False
        together = math.gcd(*torch.unique_consecutive(walk_of, return_counts=True)[1].tolist())
        steps = Steps(
            self.read(words),
            _with_blank(rgb),
            _with_blank(depth),
            previous.flatten(),
            begins.flatten().to(device),
            rows[walk_of[::together]].T.flatten(),
            together,
        )
        return self.decide(steps, self.new_states(slots))

    @property
    def device(self) -> torch.device:
        return self.action_distribution.linear.weight.device

    def feature_shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of what the two encoders make of a frame; found by showing them one on the meta device."""
        return feature_shapes(self.whole)


class Eyes(nn.Module):
    """The two encoders of images as one part, which the feature cache keeps in memory."""

    def __init__(self, policy: Policy, config: Config) -> None:
        super().__init__()
        self.rgb, self.depth = policy.net.rgb_encoder, policy.net.depth_encoder
        self.config = config

    def forward(self, pixels: Tensor) -> Tensor:
        """Features (N, numbers) of frames as `samples.flat` writes them, (N, numbers)."""
        return self._seen(*unflat(pixels, self.config.views))

    @torch.no_grad()
    def features(self, rgb: Tensor, depth: Tensor) -> Tensor:
        """The same of RGB and depth as `Learner.forward` takes them, on the CPU."""
        device = next(self.parameters()).device
        return self._seen(rgb.to(device), share_of(depth.to(device))).cpu()

    def _seen(self, rgb: Tensor, depth: Tensor) -> Tensor:
        return torch.cat([self.rgb.features(rgb).flatten(1), self.depth.features(depth).flatten(1)], dim=1)


def feature_shapes(config: Config) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of the features of one frame, RGB and depth."""
    frame, depth_frame = config.views.inputs
    with torch.device("meta"), torch.no_grad():
        rgb, depth = (
            Policy(config.network)
            .eval()
            .see(torch.empty(1, *frame, 3, dtype=torch.uint8), torch.empty(1, *depth_frame))
        )
    return tuple(rgb.shape[1:]), tuple(depth.shape[1:])


def split_features(features: Tensor, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> tuple[Tensor, Tensor]:
    """What `Eyes` joined, (N, numbers), as features of RGB and depth."""
    first = prod(shapes[0])
    rgb, depth = features[:, :first], features[:, first:]
    return rgb.reshape(-1, *shapes[0]), depth.reshape(-1, *shapes[1])


def _with_blank(features: Tensor) -> Tensor:
    """Features of frames (F, ...) and one of zeros, for steps behind a walk's end."""
    return torch.cat([features, features.new_zeros(1, *features.shape[1:])])
