"""What is remembered of a video as tokens: the last frames whole, and of older ones a token that alike ones share.

This is the online token merging of Uni-NaVid (arXiv 2412.06224).
"""

from __future__ import annotations

from collections import deque

from torch import Tensor
from torch.nn import functional


class Memory:
    """What is remembered of one episode: the last frames as they are, and one token for every frame before them,
    or for several that are alike. Only the last of those tokens can still change.

    `weights`: how many frames each token stands for.
    """

    def __init__(self, window: int, similarity: float) -> None:
        """window: frames kept whole. similarity: the cosine above which a frame joins the token before it."""
        self._window, self._similarity = window, similarity
        self.long: list[Tensor] = []
        self.weights: list[int] = []
        self.recent: deque[Tensor] = deque()

    def add(self, frame: Tensor) -> None:
        """Remember the tokens of a frame, (side ** 2, hidden); comparisons are in their precision."""
        self.recent.append(frame)
        if len(self.recent) <= self._window:
            return
        token = self.recent.popleft().mean(dim=0)
        if self.long and self._alike(token):
            known = self.weights[-1]
            self.long[-1] = (self.long[-1] * known + token) / (known + 1)
            self.weights[-1] += 1
        else:
            self.long.append(token)
            self.weights.append(1)

    def _alike(self, token: Tensor) -> bool:
        if token.is_meta:  # of planning, where the longest is asked for
            return False
        return bool(functional.cosine_similarity(self.long[-1], token, dim=0) > self._similarity)

    def chunks(self) -> list[Tensor]:
        """What stands between separators, oldest first: rows of a token, then those of frames."""
        return [*(token[None] for token in self.long), *self.recent]
