"""Uni-NaVid (arXiv 2412.06224) as an agent: what it remembers, what it is asked, what its words mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from agents.common.checkpoints.files import generation_settings
from agents.common.checkpoints.hashes import content_hash
from agents.common.checkpoints.placement import place
from agents.common.checkpoints.tokenizer import Tokenizer
from agents.common.decoders.placeholders import IGNORED, IMAGE, MEMORY
from agents.common.decoders.policy import SampledActing
from agents.common.decoders.questions import QuestionLoop, Running
from agents.common.decoders.sampling import Sampler
from agents.common.decoders.turns import Decoder
from agents.common.early_stop import EarlyStop
from agents.common.inputs import described
from agents.common.prompts.vicuna import prompt
from agents.common.remembering import Answers, Question
from agents.common.sets.conversations import TAG
from agents.common.sight.instead import Instead
from agents.common.towers.eva import crop
from agents.uninavid import network
from agents.uninavid.network import (
    NAVIGATION,
    PICTURE,
    PICTURE_END,
    SEPARATOR,
    VIDEO,
    VIDEO_END,
    inputs_of,
    tower_file,
)
from agents.uninavid.options import FAMILY, UniNaVidOptions
from vlnbench.interfaces import Action, Conventions, Episode, Observation, Scalar
from vlnbench.training.family.sources import opened
from vlnbench.util.machine import installed_version

EXPECTS = Conventions(width=640, height=480, hfov=120.0, camera_height_m=1.25, forward_m=0.25, turn_deg=30.0)
"""What the published model was trained for."""

SMALL_IMAGE = 120
"""Networks that see images of up to this many pixels, a quarter of a frame's height, take any camera, and turns as
their walks had them: nothing that they are told says degrees."""

STEPS, RXR_STEPS = 400, 500
"""Steps after which the published evaluation stops on R2R and on RxR."""

WORDS = {
    "stop": Action.STOP,
    "forward": Action.MOVE_FORWARD,
    "left": Action.TURN_LEFT,
    "right": Action.TURN_RIGHT,
}
SHOWN = "a video of historical observations and an image of the current observation"
"""By these words the published program knows that the question is how to go on."""


def expects(image_size: int) -> Conventions:
    """What a network has to be shown that sees images of `image_size` pixels."""
    small = replace(EXPECTS, width=None, height=None, hfov=None, turn_deg=None)
    return small if image_size <= SMALL_IMAGE else EXPECTS


def question_text(instruction: str) -> str:
    """What is asked; the instruction goes in as it is."""
    return (
        f"Imagine you are a robot programmed for navigation tasks. You have been given {SHOWN} {TAG}. Your "
        f"assigned task is: '{instruction}'. Analyze this series of images to determine your next four actions. "
        "The predicted action should be one of the following: forward, left, right, or stop."
    )


def actions_of(text: str, executed: int, skip: bool = False) -> list[Action] | None:
    """The first actions of an answer, None where it has another word among them or none.

    Nobody reads on behind those that are executed. skip: other words are left out instead.
    """
    words = [word for word in text.split(" ") if not skip or word in WORDS][:executed]
    return [WORDS[word] for word in words] if words and all(word in WORDS for word in words) else None


class Prompts:
    """Writes questions and reads answers with one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids = {mark: tokenizer.encode(mark, add_special_tokens=False)[-1] for mark in network.MARKS}
        self._begin = len(tokenizer.encode("", add_special_tokens=True))

    def question(self, instruction: str) -> list[int]:
        """Token ids that ask for the next actions, with placeholders of what is remembered and of the frame."""
        return self.encode(prompt([(f"{TAG}\n{question_text(instruction).replace(TAG, '')}", None)]))

    def lesson(self, turns: Sequence[tuple[str, str]], video: bool = True) -> tuple[list[int], list[int]]:
        """Token ids of a conversation, and labels on its answers and their ends; see `encode`."""
        ids, labels = self.encode(prompt(turns), video), list[int]()
        for number, (asked, _) in enumerate(turns):
            first = len(self.encode(prompt([*turns[:number], (asked, None)]), video))
            end = len(self.encode(prompt(turns[: number + 1]), video))
            labels += [IGNORED] * (first - len(labels)) + ids[first:end]
        return ids, labels

    def encode(self, text: str, video: bool = True) -> list[int]:
        """Ids of a text whose tags stand for what is shown: for a video, or for a picture.

        What is between tags is encoded by itself, each time with the begin of a text, which is then left out.
        """
        first, *others = text.split(TAG)
        shown = [*self._marked(VIDEO, SEPARATOR), MEMORY, *self._marked(VIDEO_END)]
        if not video:
            shown = [*self._marked(PICTURE), IMAGE, *self._marked(PICTURE_END)]
        elif SHOWN in text:
            shown += [*self._marked(PICTURE), IMAGE, *self._marked(PICTURE_END, NAVIGATION)]
        ids = self._tokenizer.encode(first, add_special_tokens=True)
        for piece in others:
            ids += [*shown, *self._tokenizer.encode(piece, add_special_tokens=True)[self._begin :]]
        return ids

    def text(self, answer: Sequence[int]) -> str:
        """An answer in words."""
        found = self._tokenizer.decode(answer, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return found.strip()

    def _marked(self, *marks: str) -> list[int]:
        return [self._ids[mark] for mark in marks]


class EpisodeLoop(QuestionLoop[Question]):
    """Drives many episodes: a question whenever the actions to be executed are, which shows what was seen since.

    As in the published evaluation, an episode ends after a number of steps, and where it gets nowhere; the network
    is asked all the same.
    """

    def __init__(self, prompts: Prompts, answers: Any, image_size: int, options: UniNaVidOptions) -> None:
        instead = Action.MOVE_FORWARD if options.unreadable == "forward" else Action.STOP
        self.shown = Instead(options)
        super().__init__(prompts, answers, instead, self.shown)
        self._image_size, self._options = image_size, options
        self._ends: dict[int, EarlyStop] = {}

    def reset(self, slot: int, episode: Episode, seed: int) -> None:
        if self._answers is not None:
            self._answers.begin(slot, seed)
        last = self._options.step_limit or (RXR_STEPS if episode.instruction_id else STEPS)
        self._ends[slot] = EarlyStop(last, self._options.still_limit)
        super().reset(slot, episode, seed)

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        due = {slot for slot, seen in observations.items() if self._ends[slot].is_due(seen)}
        chosen = super().act(observations) | dict.fromkeys(due, Action.STOP)
        for slot, action in chosen.items():
            self._ends[slot].last = action
        return chosen

    def feel(self, slot: int, action: Action) -> None:
        super().feel(slot, action)
        self._ends[slot].last = action

    def frame(self, rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return crop(rgb[..., ::-1] if self._options.channels == "bgr" else rgb, self._image_size)

    def read(self, answer: Sequence[int]) -> list[Action] | None:
        options = self._options
        return actions_of(self._prompts.text(answer), options.executed, options.unreadable == "skip")

    def images(self, question: Question) -> int:
        return len(question.frames)

    def question(self, slot: int, running: Running) -> Question:
        frames, running.frames = running.frames, []
        return Question(slot, self._prompts.question(running.instruction), frames)


class UniNaVidAgent(EpisodeLoop):
    """A checkpoint in `EpisodeLoop`."""

    options_type = UniNaVidOptions
    expects = EXPECTS

    def __init__(self, options: UniNaVidOptions) -> None:
        """Load the checkpoint of `options`. Raises UsageError if that cannot be done as they say."""
        folder = opened(options, FAMILY)
        # Half precision is what was published, whatever is saved.
        placement = place(options.device, options.dtype, options.attn, torch.float16, options.deterministic)
        inputs, settings = inputs_of(folder, options), generation_settings(folder)
        tower, top_p = options.vision_tower, options.top_p or settings.top_p
        model = network.load(folder, **placement.loading(options), vision_tower=tower, inputs=inputs)
        prompts = Prompts(network.load_tokenizer(folder))
        sampler = Sampler(options.temperature, top_p, options.top_k) if options.temperature else None
        decoder = Decoder(
            model,
            settings,
            max_new_tokens=options.max_new_tokens,
            max_batch=options.batch,
            choose=None if sampler is None else sampler.choose,
            keeps=False,
            graphs=options.cuda_graphs,
        )
        super().__init__(prompts, Answers(model, decoder, sampler), model.config.vision.image_size, options)
        self.expects = expects(model.config.vision.image_size)
        self.fullest_step = 2 * inputs.window_frames  # each of the older frames adds a token at most
        own = tuple(network.read_files(folder, tower, options.trust_pickle))
        self.files = (*own, *self.shown.files)
        drawn = {"temperature": options.temperature, "top_p": top_p, "top_k": options.top_k}
        self.identity: Mapping[str, Scalar] = {
            "checkpoint": content_hash(own),
            **placement.identity(options),
            **options.added_identity,
            "max_new_tokens": options.max_new_tokens,
            **vars(inputs),
            **drawn,
            **{name: getattr(options, name) for name in ("executed", "unreadable", "still_limit", "channels")},
            "step_limit": options.step_limit or f"R2R {STEPS}, RxR {RXR_STEPS}",
            "torch": torch.__version__,
            "transformers": installed_version("transformers"),
            **self.shown.identity,
        }
        self.description = "\n".join(
            (
                placement.describe(folder, model),
                f"vision tower: {tower_file(folder, tower) or 'of the checkpoint folder'}",
                described(inputs, folder),
            )
        )


class PolicyAgent(SampledActing, EpisodeLoop):
    """Uni-NaVid in simulators, acting by chance and remembered by its policy."""

    def __init__(self, prompts: Prompts, policy: Any, image_size: int) -> None:
        self._recorder = policy
        super().__init__(prompts, policy, image_size, UniNaVidOptions())
        self.expects: Conventions = expects(image_size)
