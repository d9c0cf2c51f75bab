"""CMA and Seq2Seq (arXiv 2004.02857): encoders, how they are joined, the loss, and a step of training."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional

from agents.common.prompts.words import Words
from agents.common.recurrent import InstructionEncoder, StateEncoder
from agents.common.sight.rgbd import apart, share_of
from agents.common.sight.semantics import AuxiliaryLoss
from agents.common.towers.grids import CellLayer, DepthEncoder, RgbEncoder
from agents.common.towers.resnet import GRID
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


ACTION_SIZE = 32
MASKED = 1e8
"""Taken from the scores of masked positions, as VLN-CE does it."""


class _Net(nn.Module):
    """The encoders that both have."""

    layers: int

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self._config = config
        how = {"small": config.encoders == "small", "grid": config.kind == "cma"}
        self.instruction_encoder = InstructionEncoder(
            config.embedding_size,
            config.text_size,
            words=config.vocab_size if config.reads == TOKENS else None,
            bidirectional=config.bidirectional,
            sequence=config.kind == "cma",
            tuned=config.tune_embeddings,
        )
        self.depth_encoder = DepthEncoder(config.depth_planes, config.depth_size, tuned=config.tune_depth, **how)
        self.rgb_encoder = RgbEncoder(
            config.rgb_width, config.rgb_size, tuned=config.tune_rgb, normalize=config.normalize_rgb, **how
        )


class CMANet(_Net):
    """Attention of the state over words, and of the words over the two grids of features."""

    layers = 2
    _scale: Tensor

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__(config)
        hidden, half = config.state_size, config.state_size // 2
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


class Seq2SeqNet(_Net):
    """Everything side by side into the GRU; the previous action only where the config says so."""

    layers = 1

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__(config)
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
        self.action_distribution = nn.Sequential(
            OrderedDict(linear=nn.Linear(config.state_size, config.num_actions))
        )

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
        return torch.zeros(slots, self.net.layers, self.config.state_size, device=self.device)

    @property
    def device(self) -> torch.device:
        return next(self.action_distribution.parameters()).device


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
        **batch: Tensor,
    ) -> Tensor:
        """The loss of a batch, a scalar; or at_labels the logits (steps, actions) of the steps that have a weight,
        instruction after instruction, with statistics of batch norm as they were when the network acted.

        frames: RGB and depth of all steps, walk after walk, as `Policy.see` takes them; or a list with the kept
        features of every walk. shown: (S, names, GRID, GRID), what the frames shown_of, (S,), show, where that is
        taught. Of N instructions on W walks of at most T steps: words: (N, L). walk_of: (N,), which walk an
        instruction is about. previous, labels, weights, progress: (W, T), zeros behind a walk's end. rows: (W, T),
        which of the frames a step shows; behind a walk's end, how many there are.
        """
        if at_labels:
            self.net.rgb_encoder.cnn.eval()
        seen = self._look(frames)
        decisions = self._decide(seen, *(batch[name] for name in ("words", "walk_of", "previous", "rows")))
        walk_of = batch["walk_of"]
        if at_labels:
            instructions, steps = (batch["weights"][walk_of] > 0).nonzero(as_tuple=True)
            return decisions.logits[(steps * len(walk_of) + instructions).to(self.device)]
        taught = (batch[name].to(self.device)[walk_of].T for name in ("labels", "weights", "progress"))
        loss = sequence_losses(self.config, decisions, *taught).total
        if self.auxiliary is None or shown is None or shown_of is None:
            return loss
        rgb, depth = (each[shown_of.to(self.device)] for each in seen)
        told: Tensor = self.auxiliary((rgb, depth), shown.to(self.device))
        return loss + self.auxiliary_weight * told

    def _look(self, frames: tuple[Tensor, Tensor] | Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Features of all frames, RGB and depth."""
        if isinstance(frames, tuple):
            colors, depths = (each.to(self.device) for each in frames)
            return self.see(colors, share_of(depths))
        shapes = self.feature_shapes()
        joined = torch.cat(list(frames)).to(self.device)
        both = torch.split(joined, [prod(shape) for shape in shapes], dim=1)
        rgb, depth = (each.reshape(-1, *shape) for each, shape in zip(both, shapes, strict=True))
        return rgb, depth

    def _decide(
        self, seen: tuple[Tensor, Tensor], words: Tensor, walk_of: Tensor, previous: Tensor, rows: Tensor
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
    def words(self) -> Words:
        """What instructions are to it."""
        return Words(self.whole.vocabulary, self.config.vocab_size)

    def feature_shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of what the two encoders make of a frame; found by showing them one on the meta device."""
        frame, depth_frame = self.whole.views.inputs
        with torch.device("meta"), torch.no_grad():
            black = torch.empty(1, *frame, 3, dtype=torch.uint8), torch.empty(1, *depth_frame)
            rgb, depth = Policy(self.config).eval().see(*black)
        return tuple(rgb.shape[1:]), tuple(depth.shape[1:])


class Eyes(nn.Module):
    """The two encoders of images as one part, which the feature cache keeps in memory."""

    def __init__(self, learner: Learner) -> None:
        super().__init__()
        self.rgb, self.depth = learner.net.rgb_encoder, learner.net.depth_encoder
        self.config = learner.whole

    @torch.no_grad()
    def features(self, rgb: Tensor, depth: Tensor) -> Tensor:
        """Features (N, numbers) of RGB and depth as `Learner.forward` takes them, on the CPU."""
        return self._seen(rgb, depth).cpu()

    def forward(self, pixels: Tensor) -> Tensor:
        """The same of frames in rows (`sight.rgbd.joined`) of bytes, in any type, where the network is."""
        return self._seen(*apart(pixels.to(torch.uint8), self.config.views))

    def _seen(self, rgb: Tensor, depth: Tensor) -> Tensor:
        device = next(self.parameters()).device
        rgb, depth = self.rgb.features(rgb.to(device)), self.depth.features(share_of(depth.to(device)))
        return torch.cat([rgb.flatten(1), depth.flatten(1)], dim=1)


def _with_blank(features: Tensor) -> Tensor:
    """Features of frames (F, ...) and one of zeros, for steps behind a walk's end."""
    return torch.cat([features, features.new_zeros(1, *features.shape[1:])])
