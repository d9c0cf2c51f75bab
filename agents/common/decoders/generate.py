"""Answers to many requests at once, token by token: greedy, or by chance.

Requests have seats in a batch. One whose answer is whole leaves its seat to those that wait, and where none waits
the batch becomes smaller: no answer waits for the longest beside it, and no pass is made for those that are whole.

The likely answer of a request may be known, so its tokens are fed along and kept as far as greedy decoding agrees
with them (speculative decoding, arXiv 2211.17192, for the greedy case). That changes how many passes an answer
takes, not what it says.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from agents.common.answers.noted import Noted
from agents.common.checkpoints.files import GenerationSettings
from agents.common.decoders.batches import Batches, groups
from agents.common.decoders.cache import CacheColumns, CacheView, TurnCache
from agents.common.decoders.graphs import Graphs
from agents.common.upload import upload
from vlnbench.util.gpu_memory import is_gpu_memory

Choose = Callable[[Sequence["Row"], Tensor], list[list[int]]]
"""Which token comes at every position of every row, were the guess right up to it; logits are float32 (rows,
positions, vocabulary), of which a row's first 1 + len(guess) positions count."""

DRAFT = 16  # tokens of a likely answer that are tried at once
REFILL = 4  # seats are given away once a part of them like this is free: what joins takes a pass of its own


@dataclass
class Row:
    """A request in progress: `length` cache entries, then `ids` to feed, then `guess`, what likely comes after.

    turn: the request, which has a `slot`. past: what is cached before, (layers, 2, kv heads, length, head dim);
    `begun` are its entries. positions: of `ids`, where those are not the places in the cache, (3, length); behind
    them an entry's position is its place and `offset`. penalized: tokens that the repetition penalty sees beside
    the answer's own. `likely`: the whole answer that guesses are taken from; `said`: the last one. `output`: the
    answer so far. `left`: the answer is whole, and what is to be kept of it is kept.
    """

    turn: Any
    length: int
    ids: Tensor
    past: Tensor | None = None
    positions: Tensor | None = None
    offset: int = 0
    penalized: frozenset[int] = frozenset()
    likely: list[int] = field(default_factory=list)
    said: list[int] = field(default_factory=list)
    guess: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    done: bool = False
    left: bool = False

    def __post_init__(self) -> None:
        self.begun = self.length

    @property
    def fed(self) -> Tensor:
        """What is fed next: ids, and the guess behind them."""
        return torch.cat([self.ids, torch.tensor(self.guess, dtype=torch.long)])


class Generator(ABC):
    """Answers requests, at most `max_batch` in one pass. Who derives from it says what is asked of a network.

    The repetition penalty sees the tokens of the same answer, and what a row says beside. An answer ends with an
    end token, included, or after `max_new_tokens`. `choose` decides instead of that, without penalty.
    graphs: passes that generate are CUDA graphs.
    """

    def __init__(
        self,
        model: Any,
        settings: GenerationSettings,
        *,
        max_new_tokens: int,
        max_batch: int,
        choose: Choose | None,
        graphs: str | None,
    ) -> None:
        """graphs: the kind of attention of what is captured, None for none. Raises UsageError where graphs cannot
        be."""
        self.model = model.eval()
        self.settings = settings
        self.max_new_tokens = max_new_tokens
        self._batches = Batches(max_batch)
        self.noted = Noted()
        self._chosen = self.noted.noting(choose or self._choose)
        widths = (1, 1 + DRAFT) if self.guesses else (1,)
        self._graphs = Graphs(model.device, graphs, widths, self._captured) if graphs else None

    guesses = True
    """Whether there are likely answers."""

    # what a network does

    @abstractmethod
    def _look(self, rows: Sequence[Row]) -> list[Tensor]:
        """Of every row the embeddings that take the places of placeholders in its ids."""

    @abstractmethod
    def _read(
        self, rows: Sequence[Row], ids: Tensor, features: Tensor, view: CacheView, mask: Tensor | None
    ) -> Tensor:
        """Hidden states (rows, length, hidden) of ids, padded on the right. features: of all rows, in order. mask:
        see `TurnCache.open`."""

    @abstractmethod
    def _logits(self, hidden: Tensor) -> Tensor:
        """Scores (..., vocabulary)."""

    @abstractmethod
    def _captured(self, ids: Tensor, positions: Tensor, into: CacheColumns) -> Tensor:
        """Scores, float32 (rows, width, vocabulary), of values on the GPU alone; ids, positions (rows, width)."""

    def _seated(self, row: Row) -> None:  # noqa: B027 - most have nothing to do
        """What was cached of a row lies in its seat now."""

    def _leave(self, row: Row, cache: TurnCache, seat: int) -> None:  # noqa: B027
        """Keep what is to be kept of a row whose answer is whole."""

    def _rescue(self, rows: Sequence[Row], cache: TurnCache) -> None:  # noqa: B027
        """Keep, not on the GPU, what was cached of seated rows before: it has no room for their answers."""

    def _restore(self) -> None:  # noqa: B027
        """Put back what was rescued: rows are made anew."""

    def _allowed(self, rows: Sequence[Row], logits: Tensor) -> Tensor:
        """The scores (rows, positions, vocabulary) of what may follow; of all, if nothing else is said."""
        return logits

    # what is alike

    def _answer(self, make: Callable[[int], Row], count: int) -> list[list[int]]:
        """The answers to as many rows, in their order; make: a row by its number, also where it begins anew."""
        rows = [make(i) for i in range(count)]
        order = sorted(range(count), key=lambda i: len(rows[i].ids))

        def begin_anew(left: Sequence[int]) -> list[int]:
            self._restore()
            again = [i for i in left if not rows[i].left]
            for i in again:
                rows[i] = make(i)
            return again

        self._batches.drain(order, lambda some: self._generate([rows[i] for i in some]), begin_anew)
        return [row.output for row in rows]

    def _generate(self, rows: Sequence[Row]) -> None:
        """Answer rows, in their order as seats become free."""
        waiting, seated = deque(rows), list[Row]()
        cache: TurnCache | None = None
        most = self._batches.most
        try:
            while waiting or seated:
                free = min(most - len(seated), len(waiting))
                if cache is None or (free and free >= min(len(waiting), most / REFILL)):
                    coming = [waiting.popleft() for _ in range(free)]
                    features = self._look(coming)
                    cache = cache or self._cache(rows, features[0])
                    self._join(coming, seated, cache, features)
                else:
                    self._pass(seated, cache)
                self._clear(seated, cache)
        except Exception as error:
            if is_gpu_memory(error) and cache is not None:
                self._rescue(seated, cache)
            raise

    def _cache(self, rows: Sequence[Row], like: Tensor) -> TurnCache:
        """With room for the longest row; of graphs always for a whole batch, so that they stay what they are."""
        columns = max(row.length + len(row.ids) + len(row.guess) for row in rows)
        most, config = self._batches.most, self.model.config
        if self._graphs:
            return TurnCache(config, most, columns, like, self._graphs.zeros)
        return TurnCache(config, min(most, len(rows)), columns, like)

    def _join(self, coming: Sequence[Row], seated: list[Row], cache: TurnCache, features: list[Tensor]) -> None:
        """Seat rows and read what they feed."""
        first = len(seated)
        for row in coming:
            cache.seat(len(seated), row.past)
            seated.append(row)
            self._seated(row)
            row.past = None  # copied into the batch
        hidden: list[Tensor] = []
        for size in groups([len(row.ids) for row in coming]):
            begin = len(hidden)
            shown = torch.cat(features[begin : begin + size])
            hidden += self._forward(seated, range(first + begin, first + begin + size), cache, shown)
        self._keep(seated, first, self._scores(hidden), cache)

    def _pass(self, seated: Sequence[Row], cache: TurnCache) -> None:
        """Feed a token and a guess of every row."""
        if self._graphs is None:
            nothing = cache.buffer.new_empty(0)
            logits = self._scores(self._forward(seated, range(len(seated)), cache, nothing))
        else:
            logits = self._replay(self._graphs, seated, cache)
        self._keep(seated, 0, logits, cache)

    def _clear(self, seated: list[Row], cache: TurnCache) -> None:
        """Rows whose answers are whole leave, and others move together."""
        for seat in reversed(range(len(seated))):
            if seated[seat].done:
                self._leave(seated[seat], cache, seat)
                seated[seat].left = True
                last = seated.pop()
                if seat < len(seated):
                    cache.move(len(seated), seat)
                    seated[seat] = last

    def _scores(self, hidden: Sequence[Tensor]) -> Tensor:
        return self._logits(nn.utils.rnn.pad_sequence(list(hidden), batch_first=True)).float()

    def _replay(self, graphs: Graphs, seated: Sequence[Row], cache: TurnCache) -> Tensor:
        """As `_forward` and `_scores`, of rows that feed a token and a guess each."""
        fed = [row.fed for row in seated]
        begin = cache.place(range(len(fed)), [len(ids) for ids in fed], graphs.width(max(map(len, fed))))
        scores = graphs(cache.buffer, begin, cache.valid, fed, [row.length + row.offset for row in seated])
        for row, ids in zip(seated, fed, strict=True):
            row.length += len(ids)
        return scores

    def _forward(self, seated: Sequence[Row], group: range, cache: TurnCache, features: Tensor) -> list[Tensor]:
        """Feed ids and guesses of a group of rows.

        Returns for every row the hidden states (1 + guesses, hidden) that its answer's next tokens follow from.
        """
        rows = seated[group.start : group.stop]
        fed = [row.fed for row in rows]
        view, mask = cache.open(group, [len(ids) for ids in fed])
        states = self._read(rows, nn.utils.rnn.pad_sequence(fed, batch_first=True), features, view, mask)
        wanted = []
        for row, state, ids in zip(rows, states, fed, strict=True):
            row.length += len(ids)
            wanted.append(state[len(ids) - len(row.guess) - 1 : len(ids)])
        return wanted

    def _keep(self, seated: Sequence[Row], first: int, logits: Tensor, cache: TurnCache) -> None:
        """Extend answers from the first on as far as their guess is what decoding says, and by one token more."""
        rows = seated[first:]
        for seat, (row, best) in enumerate(zip(rows, self._chosen(rows, logits), strict=True), first):
            right = 0
            while True:
                row.output.append(best[right])
                row.done = best[right] in self.settings.eos or len(row.output) == self.max_new_tokens
                if row.done or row.guess[right : right + 1] != [best[right]]:
                    break
                right += 1
            wrong = len(row.guess) - right
            cache.discard(seat, wrong)
            row.length -= wrong
            row.ids = torch.tensor(row.output[-1:])
            self._guess(row)

    def _guess(self, row: Row) -> None:
        room = min(DRAFT, self.max_new_tokens - len(row.output) - 1)
        row.guess = row.likely[len(row.output) :][: max(room, 0)]

    def _choose(self, rows: Sequence[Row], logits: Tensor) -> list[list[int]]:
        """The best token at every position, were the guess right up to it.

        logits: float32 (rows, positions, vocabulary).
        """
        penalty = self.settings.repetition_penalty
        seen = [
            (i, j, token)
            for i, row in enumerate(rows if penalty != 1 else ())
            for j in range(len(row.guess) + 1)
            for token in {*row.penalized, *row.output, *row.guess[:j]}
        ]
        if seen:
            i, j, token = upload(torch.tensor(seen), logits.device).T
            value = logits[i, j, token]
            logits = logits.index_put((i, j, token), torch.where(value < 0, value * penalty, value / penalty))
        best: list[list[int]] = self._allowed(rows, logits).argmax(-1).tolist()
        return best
