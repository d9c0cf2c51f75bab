"""Recurrent layers: instructions by an LSTM, steps by a GRU whose training on a CPU takes few calls."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Gru(nn.GRU):
    """One layer of `torch.nn.GRU`, with the same parameters and, up to rounding, results.

    Where gradients are wanted on a CPU its steps are written out; elsewhere it is torch's own.
    """

    weight_ih_l0: nn.Parameter
    weight_hh_l0: nn.Parameter
    bias_ih_l0: nn.Parameter
    bias_hh_l0: nn.Parameter

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(inputs, hidden)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Outputs (T, N, H) and the last state (1, N, H), from x (T, N, inputs) and `state` (1, N, H)."""
        if not torch.is_grad_enabled() or x.device.type != "cpu":
            found: tuple[Tensor, Tensor] = super().forward(x, state)
            return found
        gates = nn.functional.linear(x, self.weight_ih_l0, self.bias_ih_l0)
        own = (self.weight_hh_l0, self.bias_hh_l0)
        outputs: Tensor = _Steps.apply(gates, state[0], *own)  # type: ignore[no-untyped-call]
        return outputs, outputs[-1:]


class _Steps(torch.autograd.Function):
    """The steps of a GRU as torch defines it, the reset gate after the product with the state.

    gates: what the inputs add to reset, update and new, (T, N, 3 H). state: (N, H). weight: (3 H, H).
    bias: (3 H,). Gives the states (T, N, H).
    """

    @staticmethod
    def forward(ctx: Any, gates: Tensor, state: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        steps, slots, size = gates.shape[0], gates.shape[1], state.shape[1]
        states = gates.new_empty(steps + 1, slots, size)
        opened = gates.new_empty(steps, slots, 2 * size)
        old, new = gates.new_empty(2, steps, slots, size)
        states[0] = state
        for t in range(steps):
            own = torch.addmm(bias, states[t], weight.t())
            torch.add(gates[t, :, : 2 * size], own[:, : 2 * size], out=opened[t]).sigmoid_()
            old[t] = own[:, 2 * size :]
            torch.addcmul(gates[t, :, 2 * size :], opened[t, :, :size], old[t], out=new[t]).tanh_()
            torch.lerp(new[t], states[t], opened[t, :, size:], out=states[t + 1])
        ctx.save_for_backward(states, opened, old, new, weight)
        return states[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        states, opened, old, new, weight = ctx.saved_tensors
        steps, slots, size = new.shape
        reset, update = opened[..., :size], opened[..., size:]
        to_new = (1 - update) * (1 - new * new)
        to_own = torch.cat(
            [
                to_new * old * reset * (1 - reset),
                (states[:-1] - new) * update * (1 - update),
                to_new * reset,
            ],
            dim=2,
        ).view(steps, slots, 3, size)
        at, own = torch.empty_like(new), torch.empty_like(to_own)
        later = torch.zeros_like(new[0])
        for t in range(steps - 1, -1, -1):
            torch.add(gradients[0][t], later, out=at[t])
            torch.mul(at[t].unsqueeze(1), to_own[t], out=own[t])
            later = torch.addmm(at[t] * update[t], own[t].flatten(1), weight)
        rows = own.view(steps * slots, 3 * size)
        to_gates = torch.cat([own[:, :, :2].flatten(2), at * to_new], dim=2)
        return to_gates, later, rows.t() @ states[:-1].flatten(0, 1), rows.sum(dim=0)


class InstructionEncoder(nn.Module):
    """Words -> LSTM outputs, or the last state of the LSTM.

    A word counts if its vector is not all zero. As in VLN-CE, as many positions as words count are read, from the
    first: a zero inside an instruction stays and the last word is lost.
    """

    embedding_layer: nn.Embedding

    def __init__(
        self, embedding: int, size: int, *, words: int | None, bidirectional: bool, sequence: bool, tuned: bool
    ) -> None:
        """words: rows of the table of vectors, None where vectors are given. tuned: whether these are trained."""
        super().__init__()
        self._sequence = sequence
        self.encoder_rnn = nn.LSTM(embedding, size, bidirectional=bidirectional, batch_first=True)
        if words is not None:
            self.embedding_layer = nn.Embedding(words, embedding, padding_idx=0)
            self.embedding_layer.requires_grad_(tuned)
        self.output_size = size * (1 + bidirectional)

    def forward(self, words: Tensor) -> Tensor:
        """(N, L) int64 tokens or (N, L, C) features -> (N, C, longest), zeros behind the words; or (N, C).

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
