"""Decoding for many episodes at once, one key-value cache per episode and window: greedy, or by chance.

A turn feeds what is new (an image and a few words) and generates a handful of tokens. Episodes advance together:
their caches are laid side by side for a turn and taken apart again after it.

The likely answer of a turn is that of the turn before, so its tokens are fed along and kept as far as greedy
decoding agrees with them (speculative decoding, arXiv 2211.17192, for the greedy case). That changes how many
passes a turn takes, not what it says.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from agents.common.checkpoints.files import GenerationSettings
from agents.common.decoders.batches import Batches, groups
from agents.common.decoders.cache import CacheView, TurnCache
from agents.common.decoders.sizes import WindowedSizes
from agents.common.packing.fast import FastBlocks, FastTower, fast_enough
from vlnbench.errors import GpuMemoryError, UsageError
from vlnbench.util.gpu_memory import is_gpu_memory

Choose = Callable[[Sequence["Row"], Tensor], list[list[int]]]
"""Which token comes at every position of every row, were the guess right up to it; logits are float32 (rows,
positions, vocabulary), of which a row's first 1 + len(guess) positions count."""

IMAGE_BATCH = 32  # images the vision tower sees at once; bounds its activations
DRAFT = 16  # tokens of the last answer that are tried at once
REHEARSED = 4  # tokens of an answer that is only timed; trained models give about as many
PROMPT_TOKENS, TURN_TOKENS = 1024, 48  # generous: system, task and instruction text; text of one later turn


class Network(Protocol):
    """What a network is asked for here: ids with placeholders become embeddings, and states become scores."""

    model: Any
    lm_head: nn.Linear

    @property
    def config(self) -> WindowedSizes: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def eval(self) -> Self: ...

    def patch_features(self, pixels: Tensor) -> Tensor: ...

    def project(self, features: Tensor) -> Tensor: ...

    def expand(
        self, ids: Sequence[int], images: int, labels: Sequence[int] | None = None
    ) -> tuple[Tensor, Tensor]: ...

    def embed(self, expanded: Tensor, features: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Turn:
    """One request for an answer.

    `input_ids` are what the window gets in this turn: the last answer's ids and the new block, or a whole prompt
    where `opens_window`; -200 stands for an image and -300 for all memory frames. `images` is (k, 3, S, S), memory
    frames first, the current frame last; or (k, hidden), embeddings that take the places of as many -200.
    """

    slot: int
    input_ids: list[int]
    images: Tensor
    opens_window: bool


@dataclass
class Window:
    """What a slot keeps between turns. `cache`: (layers, 2, kv heads, length, head dim), keys before values."""

    cache: Tensor
    output: list[int]


_NO_WINDOW = Window(torch.empty(0), [])


@dataclass
class Row:
    """A turn in progress: `length` cache entries, then `ids` to feed, then `guess`, what likely comes after them.

    `likely` is the whole answer that guesses are taken from, `output` the answer so far.
    """

    turn: Turn
    past: Window | None
    length: int
    ids: Tensor
    likely: list[int]
    guess: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    done: bool = False


class Decoder:
    """Answers turns for any number of slots, at most `max_batch` of them in one pass.

    The answer's last token is not in the cache when a turn ends; the next turn feeds it with the new block.
    The repetition penalty sees the tokens of the same answer only. An answer ends with an end token, included, or
    after `max_new_tokens`. `compile` has torch.compile build the language model's blocks. `choose` takes the place
    of greedy decoding, without the penalty then. `keeps`: False where every turn opens a window, of which only the
    answer is kept then, as what is likely to come next.

    Raises UsageError for `compile` where there is nothing to compile with.
    """

    def __init__(
        self,
        model: Network,
        settings: GenerationSettings,
        *,
        max_new_tokens: int = 512,
        max_batch: int = 16,
        compile: bool = False,
        choose: Choose | None = None,
        keeps: bool = True,
    ) -> None:
        self.model = model.eval()
        self.settings = settings
        self.max_new_tokens = max_new_tokens
        self._batches = Batches(max_batch)
        self._saved: dict[int, Window] | None = None  # of a chunk for which the GPU had no room
        if compile and (lacking := compiler_lacking(model.device)):
            raise UsageError(f"--compile cannot be used here: {lacking}")
        fast = not compile and fast_enough(model)
        if not fast:
            from agents.common.decoders.qwen2 import read  # with transformers, which `fast` does without

            self._read = partial(read, torch.compile(model.model, dynamic=True) if compile else model.model)
        self._fast = FastBlocks(model.model, model.config) if fast else None
        siglip = fast and hasattr(model, "tower")
        self._patches = FastTower(model) if siglip else model.patch_features
        self._windows: dict[int, Window] = {}
        self._chosen = choose or self._choose
        self._keeps = keeps

    @property
    def cache_bytes_per_token(self) -> int:
        """Bytes of the keys and values of one token, over all layers."""
        config = self.model.config
        entries = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
        return entries * self.model.dtype.itemsize

    @property
    def cache_bytes_per_slot(self) -> int:
        """Bytes of the longest window there can be: a turn for every step, each with the longest answer."""
        return self.cache_bytes_per_token * window_tokens(self.model.config, 1, self.max_new_tokens)

    def describe(self) -> str:
        """One line about the memory that episodes take."""
        config = self.model.config
        typical = window_tokens(config, config.num_future_steps, config.num_future_steps + 4)
        return (
            f"key-value cache: {self.cache_bytes_per_token:,} bytes per token; per episode about"
            f" {typical * self.cache_bytes_per_token / 1e9:.2g} GB ({typical:,} tokens), at most"
            f" {self.cache_bytes_per_slot / 1e9:.2g} GB, twice that during a turn"
        )

    def drop(self, slot: int) -> None:
        """Forget a slot's window and last answer. Due before a new episode, which must not guess from the old."""
        self._windows.pop(slot, None)

    def unsay(self, slot: int) -> None:
        """Forget the last answer of a slot's window: the next turn begins with what is to stand in its place."""
        window = self._windows[slot]
        fed = max(len(window.output) - 1, 0)
        self._windows[slot] = Window(window.cache[..., : window.cache.shape[-2] - fed, :], [])

    def window_length(self, slot: int) -> int:
        """Cached positions of a slot, 0 without a window."""
        return self._windows[slot].cache.shape[-2] if slot in self._windows else 0

    @torch.inference_mode()
    def run(self, turns: Sequence[Turn]) -> list[list[int]]:
        """The answers to `turns`, in their order. A slot may occur once.

        Raises ValueError, before any turn is answered, for a window longer than the model's positions and for a
        turn that does not continue its slot's window. Slots of a chunk that fails half-way are dropped.
        """
        if len({turn.slot for turn in turns}) != len(turns):
            raise ValueError("a slot occurs twice in one call")
        rows = [self._row(turn) for turn in turns]
        order = sorted(range(len(rows)), key=lambda i: len(rows[i].ids))

        def begin_anew(some: Sequence[int]) -> None:
            if self._saved is None:
                raise GpuMemoryError("out of GPU memory, and what was cached could not be kept")
            for slot, window in self._saved.items():
                self._windows[slot] = Window(window.cache.to(self.model.device), window.output)
            for i in some:
                rows[i] = self._row(turns[i])

        self._batches.run(order, lambda some: self._answer([rows[i] for i in some]), begin_anew)
        return [row.output for row in rows]

    def rehearse(self, input_ids: list[int], episodes: int = 1) -> None:
        """Answer a turn of so many made-up episodes with `REHEARSED` tokens at most; the windows stay as they are.

        input_ids: a whole prompt with one image, which is black.
        """
        vision, limit = self.model.config.vision, self.max_new_tokens
        images = torch.zeros(1, 3, vision.image_size, vision.image_size)
        self.max_new_tokens = min(REHEARSED, limit)
        try:
            self.run([Turn(-1 - each, input_ids, images, opens_window=True) for each in range(episodes)])
        finally:
            self.max_new_tokens = limit
            for each in range(episodes):
                self.drop(-1 - each)

    def _row(self, turn: Turn) -> Row:
        """A turn's starting point: what of it is not in the cache yet, and what it may answer."""
        past = None if turn.opens_window else self._windows.get(turn.slot)
        ids, last = turn.input_ids, self._windows[turn.slot].output if turn.slot in self._windows else []
        if not turn.opens_window:
            if past is None:
                raise ValueError(f"slot {turn.slot} has no window to continue")
            if ids[: len(last)] != last:
                raise ValueError(f"slot {turn.slot}: a turn must begin with the last answer's ids")
            ids = ids[max(len(last) - 1, 0) :]
        expanded, _ = self.model.expand(ids, len(turn.images))
        length = 0 if past is None else past.cache.shape[-2]
        limit = self.model.config.max_position_embeddings
        if (total := length + len(expanded)) + self.max_new_tokens > limit:
            raise ValueError(
                f"slot {turn.slot}: a window of {total:,} tokens and up to {self.max_new_tokens:,} to come exceed"
                f" max_position_embeddings {limit:,}: shorten the instruction or lower max_new_tokens"
            )
        row = Row(turn, past, length, expanded, [token for token in last if token not in self.settings.eos])
        self._guess(row)
        return row

    def _guess(self, row: Row) -> None:
        room = min(DRAFT, self.max_new_tokens - len(row.output) - 1)
        row.guess = row.likely[len(row.output) :][:room]

    def _answer(self, rows: list[Row]) -> list[Row]:
        """Answer one chunk of turns, sorted by the length of what they feed, and store their windows.

        Windows are dropped if that fails, and kept as `_saved` where the GPU had no room for it.
        """
        before = [(row.length, self._windows.get(row.turn.slot, _NO_WINDOW).output) for row in rows]
        for row in rows:
            self.drop(row.turn.slot)
        self._saved, cache = None, None
        try:
            features = self._encode_all([row.turn.images for row in rows])
            pasts = [row.past.cache if row.past else None for row in rows]
            coming = max(len(row.ids) + len(row.guess) for row in rows)
            cache = TurnCache(self.model.config, pasts, features, coming)
            self._advance(rows, cache, features)
        except Exception as error:
            if is_gpu_memory(error):
                self._saved = {
                    row.turn.slot: Window(
                        row.past.cache if cache is None and row.past else _kept(cache, i, n), told
                    )
                    for i, (row, (n, told)) in enumerate(zip(rows, before, strict=True))
                }
            raise
        for i, row in enumerate(rows):
            kept = cache.row(i) if self._keeps else features.new_empty(0, 0)
            self._windows[row.turn.slot] = Window(kept, row.output)
        return rows

    def _advance(self, rows: list[Row], cache: TurnCache, features: Tensor) -> None:
        """Feed what is new and generate until every answer is whole."""
        for row in rows:
            row.past = None  # copied into the batch
        hidden: list[Tensor] = []
        for size in groups([len(row.ids) for row in rows]):
            group = range(len(hidden), len(hidden) + size)
            count = sum(len(rows[i].turn.images) for i in group)
            hidden += self._forward(rows, group, cache, features[:count])
            features = features[count:]
        self._keep(rows, hidden, cache)
        while not all(row.done for row in rows):
            self._keep(rows, self._forward(rows, range(len(rows)), cache, features), cache)

    def _forward(self, rows: Sequence[Row], group: range, cache: TurnCache, features: Tensor) -> list[Tensor]:
        """Feed ids and guesses of a group of rows.

        Returns for every row the hidden states (1 + guesses, hidden) that its answer's next tokens follow from.
        """
        fed = [torch.cat([rows[i].ids, torch.tensor(rows[i].guess, dtype=torch.long)]) for i in group]
        padded = nn.utils.rnn.pad_sequence(fed, batch_first=True)
        lengths = torch.tensor([rows[i].length for i in group])
        positions = lengths[:, None] + torch.arange(padded.shape[1])
        view, mask = cache.open(group, [len(ids) for ids in fed])
        states = self._states(self.model.embed(padded, features), positions, view, mask)
        wanted = []
        for i, state, ids in zip(group, states, fed, strict=True):
            rows[i].length += len(ids)
            wanted.append(state[len(ids) - len(rows[i].guess) - 1 : len(ids)])
        return wanted

    def _encode_all(self, images: Sequence[Tensor]) -> Tensor:
        parts = torch.split(torch.cat(list(images)), IMAGE_BATCH)
        return torch.cat([self._encode(part) for part in parts])

    def _encode(self, images: Tensor) -> Tensor:
        """Embeddings (N, image_tokens, hidden) of images (N, 3, S, S); what is embedded already stays as it is."""
        if images.ndim == 2:
            return images
        return self.model.project(self._patches(images.to(self.model.device, self.model.dtype)))

    def _states(self, embeddings: Tensor, positions: Tensor, view: CacheView, mask: Tensor | None) -> Tensor:
        """Hidden states (rows, length, hidden) of new tokens; mask: see `TurnCache.open`."""
        if self._fast is None:
            return self._read(embeddings, positions.to(self.model.device), view, mask)
        rows, length = positions.shape
        entries = view.entries(length)
        columns = entries.shape[-2]
        seen = torch.ones(length, columns, dtype=torch.bool).tril_(columns - length).expand(rows, -1, -1)
        return self._fast(embeddings, positions, entries, seen if mask is None else seen & mask[:, None])

    def _keep(self, rows: Sequence[Row], hidden: Sequence[Tensor], cache: TurnCache) -> None:
        """Extend every answer as far as its guess is what greedy decoding says, and by one token more."""
        logits = self.model.lm_head(nn.utils.rnn.pad_sequence(list(hidden), batch_first=True)).float()
        for i, (row, best) in enumerate(zip(rows, self._chosen(rows, logits), strict=True)):
            wrong = 1  # a finished row's last token is fed again, for the shape's sake
            if not row.done:
                right = 0
                while True:
                    row.output.append(best[right])
                    row.done = best[right] in self.settings.eos or len(row.output) == self.max_new_tokens
                    if row.done or row.guess[right : right + 1] != [best[right]]:
                        break
                    right += 1
                wrong = len(row.guess) - right
            cache.discard(i, wrong)
            row.length -= wrong
            row.ids = torch.tensor(row.output[-1:])
            row.guess = []
            if not row.done:
                self._guess(row)

    def _choose(self, rows: Sequence[Row], logits: Tensor) -> list[list[int]]:
        """The best token at every position, were the guess right up to it.

        logits: float32 (rows, positions, vocabulary).
        """
        penalty = self.settings.repetition_penalty
        seen = [
            (i, j, token)
            for i, row in enumerate(rows)
            for j in range(len(row.guess) + 1)
            for token in {*row.output, *row.guess[:j]}
        ]
        if penalty != 1 and seen:
            i, j, token = torch.tensor(seen, device=logits.device).T
            value = logits[i, j, token]
            logits = logits.index_put((i, j, token), torch.where(value < 0, value * penalty, value / penalty))
        best: list[list[int]] = logits.argmax(-1).tolist()
        return best


def _kept(cache: TurnCache | None, row: int, length: int) -> Tensor:
    """What was cached of a row before its turn; a turn that opens a window needs nothing of that."""
    return torch.empty(0) if cache is None else cache.past(row, length)


def compiler_lacking(device: torch.device) -> str | None:
    """What torch.compile misses on this machine, None if nothing."""
    if device.type == "cuda":
        return None if find_spec("triton") else "torch.compile needs the package triton on a GPU"
    compiler = os.environ.get("CXX", "g++")
    return (
        None if shutil.which(compiler) else f"torch.compile needs a C++ compiler on a CPU ({compiler} not found)"
    )


def window_tokens(config: WindowedSizes, steps_per_turn: int, answer: int) -> int:
    """Tokens of a window whose turns take `steps_per_turn` steps and answers of `answer` tokens."""
    turns = -(-config.num_frames // steps_per_turn)
    prompt = PROMPT_TOKENS + config.num_history * config.image_tokens
    tokens = prompt + turns * (config.image_tokens + TURN_TOKENS + answer)
    return min(tokens, config.max_position_embeddings)
