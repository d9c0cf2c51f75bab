"""StreamVLN as a policy: it acts by chance, in simulators or on windows of walks, and remembers what it drew."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from agents.common.checkpoints.files import generation_settings
from agents.common.decoders.policy import ActsByChance, Recorder, Walk, Window
from agents.common.decoders.sampling import Draws
from agents.common.decoders.turns import Decoder, Row, Turn
from agents.common.decoders.windows import Windows
from agents.common.sets.conversations import SYMBOLS
from agents.streamvln import checkpoint
from agents.streamvln.loop import EpisodeLoop, expects
from agents.streamvln.network import StreamVLN
from agents.streamvln.options import StreamVLNTraining
from agents.streamvln.prompt import PHRASES, Prompts
from agents.streamvln.samples import NAMES, FrameReader, Sample, WindowDataset
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Conventions
from vlnbench.training.family.policy import Question, Sampling
from vlnbench.training.family.trains import SetContent


class StreamVLNPolicy(Recorder):
    """A `Policy`; see there. A window holds several answers.

    The header of the answer's block, which the agent writes itself, is put in front of it here: what is drawn, and
    learned from, are actions and the end of the answer. Raises UsageError for a tokenizer in which actions are not
    one token each.
    """

    at_once = 16

    def __init__(self, model: StreamVLN, base: Path, options: StreamVLNTraining, sampling: Sampling) -> None:
        super().__init__(sampling)
        self._model, self._options = model, options
        self._prompts = Prompts(checkpoint.load_tokenizer(base, options.tokenizer))
        self._symbols = self._prompts.action_ids()
        self._settings = generation_settings(base)
        self._header = self._find_header()
        self.max_new_tokens = sampling.answer_tokens

    def decoder(self) -> Decoder:
        """Small networks keep copies of the weights for acting, which are made anew here."""
        longest = self.max_new_tokens
        return Decoder(self._model, self._settings, max_new_tokens=longest, choose=self._choose)

    def agent(self) -> PolicyAgent:
        windows = self._options.windows
        return PolicyAgent(self._prompts, self, windows, self._model.config.vision.image_size)

    def run(self, questions: Sequence[Turn]) -> list[list[int]]:
        return super().run([replace(turn, input_ids=[*turn.input_ids, *self._header]) for turn in questions])

    def drop(self, slot: int) -> None:
        self._decoder.drop(slot)

    def asked(self, prompts: Mapping[int, tuple[list[int], Tensor]]) -> list[Turn]:
        return [Turn(slot, *prompt, opens_window=True) for slot, prompt in prompts.items()]

    def take_in(self, walk: Walk, question: Turn) -> None:
        """A turn that goes on in a window begins with the last answer, which was recorded when it was drawn."""
        known = 0 if question.opens_window else len(walk.last)
        walk.see(question.input_ids[known:], question.images, opens=question.opens_window)

    def read(self, answer: Sequence[int]) -> tuple[Sequence[Action], bool]:
        """Of the expected form are 1 to `future_steps` actions and an end, and nothing else."""
        *actions, end = answer
        known = all(each in self._symbols for each in actions)
        formed = known and end in self._settings.eos and 1 <= len(actions) <= self._options.future_steps
        return self._prompts.actions(answer), formed

    def sample(self, window: Window) -> Sample:
        return Sample(window.ids, window.labels, torch.cat(window.shown), 0, range(0))

    def asks(self, content: SetContent) -> AskedWindows:
        return AskedWindows(content, self._prompts, self._options, self._model.config.vision.image_size)

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
        self._recorder = policy
        super().__init__(prompts, policy, windows, image_size)
        self.expects: Conventions = expects(image_size)


class AskedWindows:
    """Windows of walks up to one of their turns, with the expert's answers before it; see `Asks`.

    Turns of which a step is no example are not asked. Raises UsageError for sets that are no walks.
    """

    def __init__(self, content: SetContent, prompts: Prompts, options: StreamVLNTraining, image_size: int) -> None:
        walks = getattr(content, "trajectories", ())
        if not walks:
            raise UsageError(
                f"{content.file}: has no walks, and so no actions that answers could be compared with"
            )
        self._prompts, self._reader = prompts, FrameReader(image_size)
        self._dataset = WindowDataset(walks, prompts, options.windows, self._reader, wording="evaluation")
        self.places = [index for index in range(len(self._dataset)) if self._turns(index)]

    def question(self, place: int, rng: random.Random) -> Question:
        last = rng.choice(self._turns(place))
        memory, turns = self._dataset.steps(place)
        walk, instruction = self._dataset.walk(place)
        answers = ["".join(NAMES[walk.actions[step]] for step in turn) for turn in turns[:last]]
        phrases = [rng.choice(PHRASES) for _ in range(last + 1)]
        ids = self._prompts.opening(instruction, phrases[0], memory=bool(memory))
        for answer, phrase in zip(answers, phrases[1:], strict=True):
            told = self._prompts.block("assistant", answer)[:-1]  # generation ends before the newline
            ids += self._prompts.following(told, phrase)
        seen = walk.frames_at((*memory, *(turn.start for turn in turns[: last + 1])))
        images = self._reader.read(seen, rng)
        return Question((ids, images), tuple(walk.actions[step] for step in turns[last]))

    def _turns(self, index: int) -> list[int]:
        """Turns of a window that can be asked."""
        walk, _ = self._dataset.walk(index)
        turns = self._dataset.steps(index)[1]
        return [place for place, turn in enumerate(turns) if not walk.strays.intersection(turn)]
