"""StreamVLN as a policy: it acts by chance, in simulators or on windows of walks, and remembers what it drew."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agents.common.checkpoints.files import generation_settings
from agents.common.decoders.policy import FIRST_SLOT, ActsByChance, Walk, Walks
from agents.common.decoders.sampling import Draws
from agents.common.decoders.turns import Decoder, Row, Turn
from agents.common.decoders.windows import Windows
from agents.common.sets.conversations import SYMBOLS
from agents.streamvln import checkpoint
from agents.streamvln.loop import EpisodeLoop, expects
from agents.streamvln.network import IGNORED, StreamVLN
from agents.streamvln.options import StreamVLNTraining
from agents.streamvln.prompt import PHRASES, Prompts
from agents.streamvln.samples import NAMES, FrameReader, Sample, WindowDataset
from vlnbench.errors import UsageError
from vlnbench.interfaces import Conventions
from vlnbench.training.family.policy import Question, Recorded, Sampling
from vlnbench.training.family.trains import SetContent

AT_ONCE = 16
"""Prompts that are answered side by side."""


@dataclass
class _Window:
    """A window so far: its tokens, which of them were drawn, and the images it has seen, float32 (k, 3, S, S)."""

    ids: list[int] = field(default_factory=list)
    drawn: list[bool] = field(default_factory=list)
    images: list[Tensor] = field(default_factory=list)

    def add(self, ids: Sequence[int], drawn: bool) -> None:
        self.ids += ids
        self.drawn += [drawn] * len(ids)

    def sample(self) -> Sample:
        labels = [id_ if drawn else IGNORED for id_, drawn in zip(self.ids, self.drawn, strict=True)]
        images = torch.cat(self.images)
        return Sample(self.ids, labels, images, 0, range(0))


@dataclass
class _Walk(Walk):
    """A window holds several answers. `last`: the latest."""

    under_way: list[_Window] = field(default_factory=list)
    last: list[int] = field(default_factory=list)

    def windows(self) -> list[tuple[Sample, int]]:
        return [(window.sample(), sum(window.drawn)) for window in self.under_way]


class StreamVLNPolicy(Walks[_Walk]):
    """A `Policy`; see there.

    The header of the answer's block, which the agent writes itself, is put in front of it here: what is drawn, and
    learned from, are actions and the end of the answer. Raises UsageError for a tokenizer in which actions are not
    one token each.
    """

    def __init__(self, model: StreamVLN, base: Path, options: StreamVLNTraining, sampling: Sampling) -> None:
        super().__init__(_Walk, sampling)
        self._model, self._options = model, options
        self._prompts = Prompts(checkpoint.load_tokenizer(base, options.tokenizer))
        self._symbols = self._prompts.action_ids()
        self._settings = generation_settings(base)
        self._header = self._find_header()
        self._decoder: Decoder
        self.max_new_tokens = sampling.answer_tokens

    def renew(self) -> None:
        """Small networks keep copies of the weights for acting, which are made anew here."""
        self.forget()
        self._decoder = Decoder(
            self._model,
            self._settings,
            max_new_tokens=self.max_new_tokens,
            max_batch=AT_ONCE,
            choose=self._choose,
        )

    def agent(self) -> PolicyAgent:
        windows = self._options.windows
        return PolicyAgent(self._prompts, self, windows, self._model.config.vision.image_size)

    def run(self, turns: Sequence[Turn]) -> list[list[int]]:
        """As `Decoder.run`, by chance; what is drawn is recorded."""
        asked = []
        for turn in turns:
            ids = [*turn.input_ids, *self._header]
            asked.append(Turn(turn.slot, ids, turn.images, turn.opens_window))
        return self.drawn(self._decoder.run, asked)

    def drop(self, slot: int) -> None:
        self._decoder.drop(slot)

    def questions(self, sets: Sequence[SetContent]) -> WindowQuestions:
        return WindowQuestions(sets, self._prompts, self._options, self._model.config.vision.image_size)

    def answer(self, prompts: Sequence[Any], seeds: Sequence[int]) -> list[Recorded]:
        asked = list(zip(prompts, seeds, strict=True))
        chunks = (asked[first : first + AT_ONCE] for first in range(0, len(asked), AT_ONCE))
        return [recorded for chunk in chunks for recorded in self._answer(chunk)]

    def _answer(self, asked: Sequence[tuple[Any, int]]) -> list[Recorded]:
        """Answers to some prompts, whose windows are forgotten at once."""
        turns = []
        for place, ((ids, images), seed) in enumerate(asked):
            slot = FIRST_SLOT + place
            self._walks[slot] = _Walk(f"prompt {place}", seed)
            turns.append(Turn(slot, ids, images, opens_window=True))
        found = []
        for turn, answer in zip(turns, self.run(turns), strict=True):
            walk = self._walks.pop(turn.slot)
            walk.actions = tuple(self._prompts.actions(answer))
            self.drop(turn.slot)
            found.append(walk.recorded())
        return found

    def _record(self, turn: Turn, answer: list[int]) -> None:
        walk = self._walks[turn.slot]
        if turn.opens_window:
            walk.under_way.append(_Window())
        window = walk.under_way[-1]
        before = 0 if turn.opens_window else len(walk.last)
        window.add(turn.input_ids[before:], drawn=False)
        window.add(answer, drawn=True)
        window.images.append(turn.images)
        walk.last = answer
        walk.chances += self._sampler.end(turn.slot, len(answer))
        walk.answers += 1
        walk.formed += self._is_formed(answer)

    def _is_formed(self, answer: Sequence[int]) -> bool:
        """Whether an answer is 1 to `future_steps` actions and an end, and nothing else."""
        *actions, end = answer
        known = all(each in self._symbols for each in actions)
        return known and end in self._settings.eos and 1 <= len(actions) <= self._options.future_steps

    def _choose(self, rows: Sequence[Row], logits: Tensor) -> list[list[int]]:
        """Draw the token of every position, as `Choose` says."""
        wanted = [Draws(row.turn.slot, len(row.output), 0 if row.done else 1 + len(row.guess)) for row in rows]
        return self._sampler.draw(wanted, logits)

    def _find_header(self) -> list[int]:
        """Ids that come before the first action of every answer's block."""
        blocks = [self._prompts.block("assistant", symbol) for symbol in SYMBOLS]
        header = blocks[0][: next(i for i, id_ in enumerate(blocks[0]) if id_ in self._symbols)]
        if any(block[: len(header)] != header for block in blocks):
            raise UsageError("the tokenizer joins actions with what stands before them; rewards cannot be learned")
        return header


class PolicyAgent(ActsByChance, EpisodeLoop):
    """StreamVLN in simulators, acting by chance and remembered by its policy."""

    def __init__(self, prompts: Prompts, policy: StreamVLNPolicy, windows: Windows, image_size: int) -> None:
        self._policy = policy
        super().__init__(prompts, policy, windows, image_size)
        self.expects: Conventions = expects(image_size)


class WindowQuestions:
    """Windows of walks up to one of their turns, with the expert's answers before it; a `Questions`.

    Turns of which a step is no example are not asked. Raises UsageError for sets that are no walks.
    """

    def __init__(
        self, sets: Sequence[SetContent], prompts: Prompts, options: StreamVLNTraining, image_size: int
    ) -> None:
        reader = FrameReader(image_size)
        self._prompts, self._reader = prompts, reader
        self._datasets: list[WindowDataset] = []
        self._places: list[tuple[int, int]] = []
        for content in sets:
            walks = getattr(content, "trajectories", ())
            if not walks:
                raise UsageError(
                    f"{content.file}: has no walks, and so no actions that answers could be compared with"
                )
            dataset = WindowDataset(walks, prompts, options.windows, reader, wording="evaluation")
            number = len(self._datasets)
            self._datasets.append(dataset)
            self._places += [(number, index) for index in range(len(dataset)) if self._turns(dataset, index)]

    def __len__(self) -> int:
        return len(self._places)

    def question(self, index: int, seed: str) -> Question:
        rng = random.Random(seed)
        number, window = self._places[index]
        dataset = self._datasets[number]
        last = rng.choice(self._turns(dataset, window))
        memory, turns = dataset.steps(window)
        walk, instruction = dataset.walk(window)
        answers = ["".join(NAMES[walk.actions[step]] for step in turn) for turn in turns[:last]]
        phrases = [rng.choice(PHRASES) for _ in range(last + 1)]
        ids = self._prompts.opening(instruction, phrases[0], memory=bool(memory))
        for answer, phrase in zip(answers, phrases[1:], strict=True):
            told = self._prompts.block("assistant", answer)[:-1]  # generation ends before the newline
            ids += self._prompts.following(told, phrase)
        seen = walk.frames_at((*memory, *(turn.start for turn in turns[: last + 1])))
        images = self._reader.read(seen, rng)
        return Question((ids, images), tuple(walk.actions[step] for step in turns[last]))

    def _turns(self, dataset: WindowDataset, index: int) -> list[int]:
        """Turns of a window that can be asked."""
        walk, _ = dataset.walk(index)
        turns = dataset.steps(index)[1]
        return [place for place, turn in enumerate(turns) if not walk.strays.intersection(turn)]
