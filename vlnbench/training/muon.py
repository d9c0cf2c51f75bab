"""Muon: matrices inside the network move along orthogonalized momentum, everything else by AdamW.

Keller Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024). Scale and weight decay are
those of arXiv 2502.16982, whose updates are as large as AdamW's, so that AdamW's learning rates can be kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn

MOMENTUM = 0.95
UPDATE_RMS = 0.2
"""Root mean square of an update per learning rate, about AdamW's."""
EPSILON = 1e-8
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5


def orthogonalized(matrices: Tensor, low: torch.dtype | None = None) -> Tensor:
    """Nearly the closest matrices of the same shape (2-D or, several, 3-D) with orthonormal rows or columns.

    Singular values above a fiftieth of a matrix's norm become about 1 (0.65 to 1.25). low: what is multiplied in.
    """
    a, b, c = _COEFFICIENTS
    stack = matrices if matrices.ndim == 3 else matrices[None]
    wide = stack.mT if stack.shape[1] > stack.shape[2] else stack
    found: Tensor = (wide / (torch.linalg.matrix_norm(wide, keepdim=True) + EPSILON)).to(low or wide.dtype)
    for _ in range(_ITERATIONS):
        square = found @ found.mT
        found = torch.baddbmm(found, torch.baddbmm(square, square, square, beta=b, alpha=c), found, beta=a)
    found = (found.mT if wide is not stack else found).to(matrices.dtype)
    return found.view_as(matrices)


def shares(shapes: Sequence[tuple[int, int]], processes: int) -> list[list[int]]:
    """Which process orthogonalizes which matrices, so that all of them have about as much to multiply."""
    work = [min(shape) ** 2 * (2 * max(shape) + min(shape)) for shape in shapes]
    taken: list[list[int]] = [[] for _ in range(processes)]
    done = [0] * processes
    for index in sorted(range(len(shapes)), key=lambda index: -work[index]):
        least = done.index(min(done))
        taken[least].append(index)
        done[least] += work[index]
    return taken


def all_orthogonalized(matrices: Sequence[Tensor], low: torch.dtype | None = None) -> list[Tensor]:
    """Every matrix orthogonalized, by processes that train together, have the same matrices and share the work."""
    taken = shares([(matrix.shape[0], matrix.shape[1]) for matrix in matrices], distributed.get_world_size())
    length = max(sum(matrices[index].numel() for index in indices) for indices in taken)
    mine = matrices[0].new_zeros(length)
    own = {index: matrices[index] for index in taken[distributed.get_rank()]}
    for shape in {matrix.shape for matrix in own.values()}:  # those of one shape by one product after the other
        alike = {index: matrix for index, matrix in own.items() if matrix.shape == shape}
        own.update(zip(alike, orthogonalized(torch.stack(list(alike.values())), low), strict=True))
    if own:
        flat = torch.cat([matrix.flatten() for matrix in own.values()])
        mine[: len(flat)] = flat
    del own
    everyones = [torch.empty_like(mine) for _ in taken]
    distributed.all_gather(everyones, mine)
    found = list(matrices)
    for indices, row in zip(taken, everyones, strict=True):
        sizes = [matrices[index].numel() for index in indices]
        for index, part in zip(indices, torch.split(row[: sum(sizes)], sizes), strict=True):
            found[index] = part.view_as(matrices[index])
    return found


class Muon(torch.optim.Optimizer):
    """Parameter groups as of AdamW; `orthogonal` says whether a group's tensors are matrices inside the network.

    Parameters keep their shapes, so it does not work under ZeRO, which flattens them. `low`: a lower precision in
    which they are orthogonalized.
    """

    def __init__(
        self, groups: Iterable[dict[str, Any]], betas: tuple[float, float], low: torch.dtype | None = None
    ) -> None:
        super().__init__(groups, {"lr": 1e-3, "weight_decay": 0.0, "betas": betas, "orthogonal": False})
        self._low = low

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        alone = not distributed.is_initialized() or distributed.get_world_size() == 1
        matrices: list[nn.Parameter] = []
        updates: list[Tensor] = []
        rates: list[float] = []
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is None:
                    continue
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                if not group["orthogonal"]:
                    self._adapt(parameter, gradient, group["lr"], *group["betas"])
                    continue
                update = self._direction(parameter, gradient)
                rate = -group["lr"] * UPDATE_RMS * math.sqrt(max(parameter.shape))
                if alone:  # at once, so that one update is held at a time
                    parameter.add_(orthogonalized(update, self._low), alpha=rate)
                    continue
                matrices.append(parameter)
                updates.append(update)
                rates.append(rate)
        if matrices:
            for matrix, update, rate in zip(matrices, all_orthogonalized(updates, self._low), rates, strict=True):
                matrix.add_(update, alpha=rate)

    def _direction(self, matrix: nn.Parameter, gradient: Tensor) -> Tensor:
        """Where a matrix moves, before it is orthogonalized."""
        state = self.state[matrix]
        if not state:
            state["momentum"] = torch.zeros_like(matrix)
        momentum = state["momentum"].lerp_(gradient, 1 - MOMENTUM)
        return torch.lerp(gradient, momentum, MOMENTUM)

    def _adapt(self, tensor: nn.Parameter, gradient: Tensor, rate: float, beta1: float, beta2: float) -> None:
        """AdamW's update."""
        state = self.state[tensor]
        if not state:
            state.update(step=0, mean=torch.zeros_like(tensor), square=torch.zeros_like(tensor))
        state["step"] += 1
        mean = state["mean"].lerp_(gradient, 1 - beta1)
        square = state["square"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = square.sqrt().div_(math.sqrt(1 - beta2 ** state["step"])).add_(EPSILON)
        tensor.addcdiv_(mean, root, value=-rate / (1 - beta1 ** state["step"]))
