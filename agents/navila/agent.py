"""NaVILA (arXiv 2412.04453) as an agent: which frames it is shown, what it is asked, what its sentences mean."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from agents.common.checkpoints.hashes import content_hash
from agents.common.checkpoints.placement import place
from agents.common.checkpoints.tokenizer import Tokenizer
from agents.common.decoders.placeholders import IGNORED, IMAGE
from agents.common.decoders.policy import SampledActing
from agents.common.decoders.questions import QuestionLoop, Running
from agents.common.decoders.turns import Decoder, Turn
from agents.common.inputs import described
from agents.common.sets.conversations import TAG
from agents.common.sight.instead import Instead
from agents.common.towers.siglip import network_input, resize
from agents.navila import network
from agents.navila.network import BEGIN, END, HEADER, HEADER_END, TURN_END, generation, inputs_of
from agents.navila.options import FAMILY, NaVILAInputs, NaVILAOptions
from vlnbench.interfaces import Action, Conventions, Episode, Scalar
from vlnbench.training.family.sources import opened
from vlnbench.util.machine import installed_version

EXPECTS = Conventions(width=512, height=512, hfov=90.0, camera_height_m=1.25, forward_m=0.25, turn_deg=15.0)
"""What the published model was trained for."""

SMALL_IMAGE = 128
"""Networks that see images of up to this many pixels, a quarter of a frame's, take those of any camera: they were
trained here, on whatever their walks were collected with."""

BLACK = -1
"""In place of a step: a black frame, before an episode has as many as a question shows."""

SYSTEM = (
    "You are a helpful language and vision assistant. You are able to understand the visual content that the user "
    "provides, and assist the user with a variety of tasks using natural language."
)
MOVES = {
    Action.MOVE_FORWARD: ("move forward", "cm", 25),
    Action.TURN_LEFT: ("turn left", "degree", 15),
    Action.TURN_RIGHT: ("turn right", "degree", 15),
}
"""How sentences name actions, in the order in which they are looked for, and how much of it a step is."""
MOST_STEPS = 500
"""Of a single answer; an episode has no more."""

_UNTIDY = re.compile(r" (?=[.?!,]|n't|'(?:m|s|ve|re))| (') ")
"""Blanks that transformers takes from decoded text."""


def expects(image_size: int) -> Conventions:
    """What a network has to be shown that sees images of `image_size` pixels."""
    return replace(EXPECTS, width=None, height=None, hfov=None) if image_size <= SMALL_IMAGE else EXPECTS


def chosen(length: int, count: int) -> list[int]:
    """Steps of the `count` frames that are shown of `length`, oldest first: the newest, earlier ones evenly."""
    if length < count:
        return [BLACK] * (count - length) + list(range(length))
    return [*np.linspace(0, length - 1, num=count - 1, endpoint=False, dtype=int).tolist(), length - 1]


def question_text(instruction: str, frames: int) -> str:
    """What is asked; the instruction goes in as it is."""
    shown = f"{TAG}\n"
    return (
        "Imagine you are a robot programmed for navigation tasks. You have been given a video of historical "
        f"observations {shown * (frames - 1)}, and current observation {shown}. Your assigned task is: "
        f'"{instruction}" Analyze this series of images to decide your next action, which could be turning left '
        "or right by a specific degree, moving forward a certain distance, or stop if the task is completed."
    )


def description_text(frames: int) -> str:
    """What is asked of a whole walk, whose instruction is the answer."""
    shown = f"{TAG}\n"
    return (
        "Assume you are a robot designed for navigation. You are provided with captured images sequences "
        f"{shown * frames}. Based on this image sequence, please describe the navigation trajectory of the robot."
    )


def normalized(instruction: str) -> str:
    """An instruction as the published training writes it."""
    text = instruction.replace("\r\n", " ").replace("\n", " ").capitalize()
    return re.sub(r"\s+\.", ".", re.sub(r"\.\s[a-z]", lambda found: found[0].upper(), text))


def sentence(action: Action, steps: int = 1) -> str:
    """The answer that means so many of an action."""
    if action is Action.STOP:
        return "The next action is stop."
    words, unit, amount = MOVES[action]
    return f"The next action is {words} {amount * steps} {unit}."


def actions_of(text: str) -> list[Action] | None:
    """What an answer means, None where it names no action.

    As published, the first of stop, forward, left and right counts that is anywhere in the text. Amounts that are
    no multiples of a step are the nearest of one to three steps, others are taken as they are, however large.
    """
    if re.search(r"\bstop\b", text, re.IGNORECASE):
        return [Action.STOP]
    for action, (words, unit, step) in MOVES.items():
        if re.search(rf"\bis {words}\b", text, re.IGNORECASE):
            found = re.search(rf"{words} (\d+) {unit}", text)
            amount = int(found[1]) if found else step
            if amount % step:
                amount = min((step, 2 * step, 3 * step), key=lambda each: abs(each - amount))
            return [action] * min(max(amount // step, 1), MOST_STEPS)
    return None


def _chat(question: str) -> str:
    """A chat up to where the model answers."""
    blocks = (("system", SYSTEM), ("user", question))
    text = "".join(f"{HEADER}{role}{HEADER_END}\n\n{content}{TURN_END}" for role, content in blocks)
    return f"{BEGIN}{text}{HEADER}assistant{HEADER_END}\n\n"


class Prompts:
    """Writes questions and reads answers with one tokenizer, whose `frames` a question shows."""

    def __init__(self, tokenizer: Tokenizer, inputs: NaVILAInputs, frames: int) -> None:
        self._tokenizer, self._written, self.frames = tokenizer, inputs.instructions, frames
        (self._begin,) = tokenizer.encode(BEGIN, add_special_tokens=False)

    def question(self, instruction: str) -> list[int]:
        """Token ids that ask for the next move, a placeholder for each frame.

        Raises ValueError where the instruction holds a placeholder itself.
        """
        return self._encode(_chat(self._asked(instruction, self._written == "normalized")))

    def lesson(self, instruction: str, answer: str | None) -> tuple[list[int], list[int]]:
        """Token ids of a question with its answer, and labels on the answer and its end.

        None: the answer to what could not be read, of which nothing is to be learned.
        """
        return self._taught(self._asked(instruction, self._written != "raw"), answer)

    def description(self, instruction: str | None) -> tuple[list[int], list[int]]:
        """The same of a whole walk that is described."""
        return self._taught(description_text(self.frames), instruction)

    def reply(self, question: str, answer: str | None, frames: int) -> tuple[list[int], list[int]]:
        """The same of a question about a video."""
        return self._taught(f"{TAG}\n" * frames + question.strip(), answer)

    def _taught(self, question: str, answer: str | None) -> tuple[list[int], list[int]]:
        asked = _chat(question)
        ids = self._encode(asked)
        whole = self._encode(f"{asked}{'Empty video.' if answer is None else answer.strip()}{END}")
        same = next(i for i, (one, other) in enumerate(zip([*ids, None], whole, strict=False)) if one != other)
        known = same if answer is not None else len(whole)
        return whole, [*[IGNORED] * known, *whole[known:]]

    def text(self, answer: Sequence[int]) -> str:
        """An answer in words."""
        text = self._tokenizer.decode(answer, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return _UNTIDY.sub(r"\1", text).strip()

    def read(self, answer: Sequence[int]) -> list[Action] | None:
        """See `actions_of`."""
        return actions_of(self.text(answer))

    def _asked(self, instruction: str, tidy: bool) -> str:
        if TAG in instruction:
            raise ValueError(f"the instruction holds {TAG}, which stands for an image")
        return question_text(normalized(instruction) if tidy else instruction, self.frames)

    def _encode(self, text: str) -> list[int]:
        """Ids of a text with images.

        What stands between images is encoded by itself, and of all but the first piece the first token is left
        out: with a tokenizer that does not put the begin of a text there, it is the newline behind the image.
        """
        first, *others = (self._tokenizer.encode(piece, add_special_tokens=True) for piece in text.split(TAG))
        left_out = int(first[:1] == [self._begin])
        return first + [id_ for piece in others for id_ in (IMAGE, *piece[left_out:])]


class EpisodeLoop(QuestionLoop[Turn]):
    """Drives many episodes: a question for every sentence, with frames of all steps so far to choose from.

    The published code does not forget what is planned when an episode ends; here every episode begins with a
    question.
    """

    def __init__(
        self,
        prompts: Prompts,
        decoder: Any,
        image_size: int,
        instead: Action = Action.MOVE_FORWARD,
        shown: Instead | None = None,
    ) -> None:
        super().__init__(prompts, decoder, instead, shown)
        self._image_size = image_size

    def reset(self, slot: int, episode: Episode, seed: int) -> None:
        if self._answers is not None:
            self._answers.drop(slot)
        super().reset(slot, episode, seed)

    def frame(self, rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return resize(rgb, self._image_size)

    def images(self, question: Turn) -> int:
        return len(question.images)

    def question(self, slot: int, running: Running) -> Turn:
        black = np.zeros((self._image_size, self._image_size, 3), np.uint8)
        steps = chosen(len(running.frames), self._prompts.frames)
        images = network_input([black if step == BLACK else running.frames[step] for step in steps])
        return Turn(slot, self._prompts.question(running.instruction), images, opens_window=True)


class NaVILAAgent(EpisodeLoop):
    """A checkpoint in `EpisodeLoop`."""

    options_type = NaVILAOptions
    expects = EXPECTS

    def __init__(self, options: NaVILAOptions) -> None:
        """Load the checkpoint of `options`. Raises UsageError if that cannot be done as they say."""
        folder = opened(options, FAMILY)
        published = torch.float16  # whatever is saved
        placement = place(options.device, options.dtype, options.attn, published, options.deterministic)
        inputs = inputs_of(folder, options)
        model = network.load(folder, **placement.loading(options), history=options.history)
        config, tokenizer = model.config, network.load_tokenizer(folder)
        decoder = Decoder(
            model,
            generation(folder, tokenizer),
            max_new_tokens=options.max_new_tokens,
            max_batch=options.batch,
            keeps=False,
            graphs=options.cuda_graphs,
        )
        instead = Action.STOP if options.unreadable == "stop" else Action.MOVE_FORWARD
        prompts, shown = Prompts(tokenizer, inputs, config.frames), Instead(options)
        super().__init__(prompts, decoder, config.vision.image_size, instead, shown)
        self.expects = expects(config.vision.image_size)
        self.fullest_step = config.frames
        own = tuple(network.read_files(folder, options.trust_pickle))
        self.files = (*own, *shown.files)
        self.identity: Mapping[str, Scalar] = {
            "checkpoint": content_hash(own),
            **placement.identity(options),
            **options.added_identity,
            "max_new_tokens": options.max_new_tokens,
            "history": config.num_history,
            "instructions": inputs.instructions,
            "unreadable": options.unreadable,
            "torch": torch.__version__,
            "transformers": installed_version("transformers"),
            **shown.identity,
        }
        self.description = "\n".join(
            (
                placement.describe(folder, model),
                f"{config.frames} frames of {config.image_tokens} embeddings in a question",
                described(inputs, folder),
            )
        )


class PolicyAgent(SampledActing, EpisodeLoop):
    """NaVILA in simulators, acting by chance and remembered by its policy."""

    def __init__(self, prompts: Prompts, policy: Any, image_size: int) -> None:
        self._recorder = policy
        super().__init__(prompts, policy, image_size)
        self.expects: Conventions = expects(image_size)
