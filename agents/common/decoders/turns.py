"""Turns of many episodes at once, one key-value cache per episode and window.

A turn feeds what is new (an image and a few words) and generates a handful of tokens. Episodes advance together:
their caches are laid side by side for a turn and taken apart again after it. The likely answer of a turn is that
of the turn before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from agents.common.checkpoints.files import GenerationSettings
from agents.common.checkpoints.placement import compiler_lacking
from agents.common.decoders.cache import CacheColumns, CacheView, TurnCache
from agents.common.decoders.generate import Choose, Generator, Row
from agents.common.decoders.sizes import WindowedSizes
from agents.common.decoders.windows import window_tokens
from agents.common.packing.fast import FastBlocks, FastTower, fast_enough
from agents.common.upload import upload
from vlnbench.errors import GpuMemoryError, UsageError

IMAGE_BATCH = 32  # images the vision tower sees at once; bounds its activations
REHEARSED = 4  # tokens of an answer that is only timed; trained models give about as many


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

    def eval(self) -> Network: ...

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


class Decoder(Generator):
    """Answers turns for any number of slots, as `Generator` does requests.

    The answer's last token is not in the cache when a turn ends; the next turn feeds it with the new block.
    `compile` has torch.compile build the language model's blocks. `keeps`: False where every turn opens a window,
    of which only the answer is kept then, as what is likely to come next.

    Raises UsageError for `compile` where there is nothing to compile with, and for `graphs` where they cannot be.
    """

    model: Network

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
        graphs: bool = False,
    ) -> None:
        super().__init__(
            model,
            settings,
            max_new_tokens=max_new_tokens,
            max_batch=max_batch,
            choose=choose,
            graphs=model.model.config._attn_implementation if graphs else None,
        )
        self._saved: dict[int, Window] | None = {}  # of turns for which the GPU had no room
        if compile and (lacking := compiler_lacking(model.device)):
            raise UsageError(f"--compile cannot be used here: {lacking}")
        fast = not compile and fast_enough(model)
        if not fast:
            from agents.common.decoders.qwen2 import read  # with transformers, which `fast` does without

            blocks = torch.compile(model.model, dynamic=True) if compile else model.model
            self._blocks = partial(read, blocks)
        self._fast = FastBlocks(model.model, model.config) if fast else None
        siglip = fast and hasattr(model, "tower")
        self._patches = FastTower(model) if siglip else model.patch_features
        self._windows: dict[int, Window] = {}
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
        turn that does not continue its slot's window. Slots whose answers fail half-way are dropped.
        """
        if len({turn.slot for turn in turns}) != len(turns):
            raise ValueError("a slot occurs twice in one call")
        return self._answer(lambda i: self._row(turns[i]), len(turns))

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
        row = Row(turn, length, expanded, past.cache if past else None)
        row.said, row.likely = last, [token for token in last if token not in self.settings.eos]
        self._guess(row)
        return row

    def _seated(self, row: Row) -> None:
        self.drop(row.turn.slot)

    def _leave(self, row: Row, cache: TurnCache, seat: int) -> None:
        kept = cache.row(seat) if self._keeps else cache.buffer.new_empty(0, 0)
        self._windows[row.turn.slot] = Window(kept, row.output)

    def _rescue(self, rows: Sequence[Row], cache: TurnCache) -> None:
        self._saved = None
        self._saved = {
            row.turn.slot: Window(cache.past(seat, row.begun), row.said) for seat, row in enumerate(rows)
        }

    def _restore(self) -> None:
        if self._saved is None:
            raise GpuMemoryError("out of GPU memory, and what was cached could not be kept")
        for slot, window in self._saved.items():
            self._windows[slot] = Window(window.cache.to(self.model.device), window.output)
        self._saved = {}

    def _look(self, rows: Sequence[Row]) -> list[Tensor]:
        images = [row.turn.images for row in rows]
        parts = torch.split(torch.cat(images), IMAGE_BATCH)
        return list(torch.split(torch.cat([self._encode(part) for part in parts]), list(map(len, images))))

    def _encode(self, images: Tensor) -> Tensor:
        """Embeddings (N, image_tokens, hidden) of images (N, 3, S, S); what is embedded already stays as it is."""
        if images.ndim == 2:
            return images
        return self.model.project(self._patches(upload(images.to(self.model.dtype), self.model.device)))

    def _read(
        self, rows: Sequence[Row], ids: Tensor, features: Tensor, view: CacheView, mask: Tensor | None
    ) -> Tensor:
        positions = torch.tensor([row.length for row in rows])[:, None] + torch.arange(ids.shape[1])
        embeddings = self.model.embed(ids, features)
        if self._fast is None:
            return self._blocks(embeddings, upload(positions, self.model.device), view, mask)
        length = ids.shape[1]
        entries = view.entries(length)
        columns = entries.shape[-2]
        seen = torch.ones(length, columns, dtype=torch.bool).tril_(columns - length).expand(len(rows), -1, -1)
        return self._fast(embeddings, positions, entries, seen if mask is None else seen & mask[:, None])

    def _logits(self, hidden: Tensor) -> Tensor:
        scores: Tensor = self.model.lm_head(hidden)
        return scores

    def _captured(self, ids: Tensor, positions: Tensor, into: CacheColumns) -> Tensor:
        from agents.common.decoders.qwen2 import read_in_columns  # with transformers, which takes seconds

        embedded = self.model.model.embed_tokens(ids)
        return self._logits(read_in_columns(self.model.model, embedded, positions, into)).float()
