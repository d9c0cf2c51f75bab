"""JanusVLN, a vision-language navigation model with a geometric memory (arXiv 2509.22548), as an agent.

The strings of its prompts are part of the trained weights' format (chat blocks of Qwen2.5-VL) and must not be
improved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from agents.common.answers.names import NAMES
from agents.common.answers.noted import told
from agents.common.checkpoints.hashes import content_hash
from agents.common.checkpoints.placement import Placement, place
from agents.common.checkpoints.tokenizer import Tokenizer
from agents.common.checkpoints.versions import check_transformers
from agents.common.inputs import Wording, described
from agents.common.qwen2_5_vl import checkpoint
from agents.common.qwen2_5_vl.image import grid_of
from agents.common.qwen2_5_vl.tokens import BLOCK_END, IMAGE, SHOWN, chat, generation_settings
from agents.janusvln.network import (
    WIDTH,
    Decoder,
    JanusVLN,
    Memory,
    Question,
    inputs_of,
    load,
    part_of,
    read_config,
    resize,
    resized_height,
)
from agents.janusvln.options import FAMILY, JanusVLNInputs, JanusVLNOptions
from vlnbench.interfaces import Action, Answer, Conventions, Episode, Observation, Scalar, Sensor
from vlnbench.training.family.sources import opened

SYSTEM = (
    "You are a visual language navigation model, and your should go to the locations to complete the given task. "
    "Compare the observation and instruction to infer your current progress, and then select the correct "
    "direction from the candidates to go to the target location and finish the task."
)


class Prompts:
    """Writes prompts and reads answers with one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, wording: Wording = "evaluation") -> None:
        self.tokenizer = tokenizer
        self.published = wording == "published"

    def question(self, instruction: str, images: int) -> list[int]:
        """Token ids that ask for the next action, with one placeholder for each of `images` images.

        The instruction goes in as it is, not stripped. Raises ValueError where it holds a placeholder itself.
        """
        text = (lesson_text if self.published else question_text)(instruction, images)
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        (image,) = self.tokenizer.encode(IMAGE, add_special_tokens=False)
        if ids.count(image) != images:
            raise ValueError(f"the instruction holds {IMAGE}, which stands for an image")
        return ids

    def answer(self, label: str) -> list[int]:
        """Token ids of an answer with the end of its block and the line break behind it."""
        return self.tokenizer.encode(f"{label}{BLOCK_END}\n", add_special_tokens=False)

    def text(self, answer: Sequence[int]) -> str:
        return self.tokenizer.decode(answer, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def read(self, answer: Sequence[int]) -> list[Action] | None:
        """The action that an answer says: one of `NAMES`, to the letter, None for anything else."""
        text = self.text(answer)
        return [NAMES[text]] if text in NAMES else None


def lesson_text(instruction: str, images: int) -> str:
    """The chat of the published training up to where the model answers, which is not that of its evaluation.

    Its code drops the line break behind an image.
    """
    earlier = SHOWN * (images - 1) or "\n"
    told = (
        f"{SYSTEM}\n This is your historical observation:{earlier}"
        f" This is your current observation:{SHOWN} Your task is to {instruction}\n"
        " You should take one of the following actions:\n MOVE_FORWARD\n TURN_LEFT\n TURN_RIGHT\n STOP."
    )
    return chat(("system", "You are a helpful assistant."), ("user", told))


def question_text(instruction: str, images: int) -> str:
    """The chat up to where the model answers: images from the oldest to the current one, then the text."""
    task = (
        "These images are your historical observations and your current observation.\n"
        f" Your task is to {instruction} \n You should take one of the following actions:\n"
        " MOVE_FORWARD\n TURN_LEFT\n TURN_RIGHT\n STOP."
    )
    return chat(("system", SYSTEM), ("user", SHOWN * images + task))


def fixed_texts() -> list[str]:
    """What every question says alike. One token each: a small model's time goes into the sequence's length."""
    pieces = []
    for written in (question_text("\0", 2), lesson_text("\0", 2)):
        for part in written.split("\0"):
            between = part.split(IMAGE)
            pieces += [piece.removesuffix("<|vision_start|>").removeprefix("<|vision_end|>") for piece in between]
    return [piece for piece in dict.fromkeys(pieces) if len(piece) > 1]


def shown_steps(current: int, num_history: int) -> list[int]:
    """Which frames a question shows, the current one last: all where there are few, else `num_history` + 1 evenly
    spaced ones from the first to the current."""
    if current <= num_history:
        return list(range(current + 1))
    steps: list[int] = np.linspace(0, current, num_history + 1, dtype=int).tolist()
    return steps


EXPECTS = Conventions(width=640, height=480, hfov=79.0, camera_height_m=1.25, forward_m=0.25, turn_deg=15.0)
"""What released checkpoints were trained with."""


class Answers(Protocol):
    """The part of `Decoder` that the loop needs."""

    def begin(self, slot: int) -> None: ...

    def memory(self, slot: int) -> Memory: ...

    def see(self, frames: Mapping[int, NDArray[np.uint8]]) -> None: ...

    def run(self, questions: Sequence[Question]) -> list[list[int]]: ...


class EpisodeLoop:
    """Drives many episodes; frames are scaled to `width` pixels. From step `max_steps` on every action is STOP, as
    in the published evaluation, by which an agent that stands near the goal then succeeds.

    `unreadable` counts answers that were none of the four labels, which stop the episode; `forced_stops` counts
    episodes that were ended at `max_steps`.
    """

    def __init__(
        self, prompts: Prompts, decoder: Answers, num_history: int, max_steps: int, width: int = WIDTH
    ) -> None:
        self._prompts = prompts
        self._model: Answers | None = decoder
        self._num_history = num_history
        self._max_steps = max_steps
        self._width = width
        self._instructions: dict[int, str] = {}
        self._seen: dict[int, int] = {}  # the last step whose frame a slot has seen
        self._told: dict[int, tuple[Question, list[int]]] = {}  # what was answered and is not told yet
        self.unreadable = 0
        self.forced_stops = 0

    @property
    def _decoder(self) -> Answers:
        if self._model is None:
            raise RuntimeError("the agent is closed")
        return self._model

    def reset(self, slot: int, episode: Episode, seed: int) -> None:
        """Begin an episode, which forgets all frames. Nothing is drawn, so `seed` decides nothing."""
        self._decoder.begin(slot)
        self._instructions[slot] = episode.instruction
        self._seen.pop(slot, None)
        self._told.pop(slot, None)

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        """The next action of each slot; the model is asked for all of them together."""
        self.watch(observations)
        actions: dict[int, Action] = {}
        questions = []
        for slot, observation in observations.items():
            if observation.step >= self._max_steps:
                self.forced_stops += 1
                actions[slot] = Action.STOP
            else:
                questions.append(self._question(slot))
        answers = self._decoder.run(questions) if questions else []
        for question, answer in zip(questions, answers, strict=True):
            actions[question.slot] = self._action(answer)
            self._told[question.slot] = question, answer
        return actions

    def answered(self, slot: int) -> list[Answer]:
        """What the model answered, if it was asked."""
        if slot not in self._told:
            return []
        question, answer = self._told.pop(slot)
        words = self._prompts.text(answer)
        return [told(self._model, slot, words, answer, self._prompts.read(answer), len(question.steps))]

    def watch(self, observations: Mapping[int, Observation]) -> None:
        """See frames, also those on which somebody else acts and those after a STOP; a frame that was seen already
        changes nothing."""
        frames = {}
        for slot, observation in observations.items():
            if observation.rgb is None:
                raise ValueError("the environment reported no RGB frame")
            if self._seen.get(slot) != observation.step:
                frames[slot] = resize(observation.rgb, self._width)
        if frames:
            self._decoder.see(frames)
        self._seen |= {slot: observations[slot].step for slot in frames}

    def close(self) -> None:
        """Forget all episodes and let go of the model."""
        self._instructions.clear()
        self._seen.clear()
        self._told.clear()
        self._model = None

    def _question(self, slot: int) -> Question:
        steps = shown_steps(len(self._decoder.memory(slot).images) - 1, self._num_history)
        return Question(slot, self._prompts.question(self._instructions[slot], len(steps)), steps)

    def _action(self, answer: Sequence[int]) -> Action:
        found = self._prompts.read(answer)
        self.unreadable += found is None
        return found[0] if found else Action.STOP


class JanusVLNAgent(EpisodeLoop):
    """A trained checkpoint in `EpisodeLoop`. It looks at RGB; the published code renders depth and ignores it."""

    sensors: frozenset[Sensor] = frozenset({"rgb"})
    privileged = False
    options_type = JanusVLNOptions
    expects = EXPECTS

    def __init__(self, options: JanusVLNOptions) -> None:
        """Load the checkpoint of `options`. Raises UsageError if that cannot be done as they say."""
        folder = opened(options, FAMILY)
        check_transformers(transformers.__version__)
        config = read_config(folder)
        inputs = inputs_of(config, folder, options)
        attn = "sdpa" if options.attn == "auto" else options.attn
        placement = place(options.device, options.dtype, attn, config.dtype, options.deterministic)
        tokenizer = checkpoint.load_tokenizer(folder, config, options.tokenizer)
        settings = generation_settings(folder, tokenizer)
        model = load(folder, **placement.loading(options))
        decoder = Decoder(
            model,
            settings,
            max_new_tokens=options.max_new_tokens,
            max_batch=options.batch,
            window=(options.first_frames, options.recent_frames),
            graphs=options.cuda_graphs,
        )
        self.fullest_step = max(options.first_frames + options.recent_frames, inputs.history)
        self.episode_bytes = _geometry_bytes(model, inputs.image_width, options)
        prompts = Prompts(tokenizer, inputs.wording)
        super().__init__(prompts, decoder, inputs.history, options.max_steps, inputs.image_width)
        self.identity = _identity(options, folder, placement, inputs)
        self.description = "\n".join(
            (
                placement.describe(folder, model, part_of),
                _memory(model, inputs.image_width, options),
                described(inputs, folder),
            )
        )

    @property
    def remarks(self) -> str:
        """What a reader of the results should know about the answers so far; empty if nothing."""
        found = []
        if self.unreadable:
            found.append(f"{self.unreadable} answers were none of the four actions and counted as STOP")
        if self.forced_stops:
            found.append(f"{self.forced_stops} episodes were stopped at --max-steps {self._max_steps}")
        return "; ".join(found)


def _identity(
    options: JanusVLNOptions, folder: Path, placement: Placement, inputs: JanusVLNInputs
) -> dict[str, Scalar]:
    """What decides the answers."""
    return {
        "checkpoint": content_hash(checkpoint.read_files(folder, options.tokenizer, options.trust_pickle)),
        **placement.identity(options),
        **options.added_identity,
        "max_new_tokens": options.max_new_tokens,
        "num_history": inputs.history,
        "first_frames": options.first_frames,
        "recent_frames": options.recent_frames,
        "image_width": inputs.image_width,
        "max_steps": options.max_steps,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        # what came later: runs that are asked as they always were keep their identity
        **({} if inputs.wording == "evaluation" else {"wording": inputs.wording}),
    }


def _geometry_bytes(model: JanusVLN, width: int, options: JanusVLNOptions) -> int:
    """What VGGT keeps of an episode, with frames of 640 x 480."""
    frame = model.vggt.aggregator.frame_bytes(resized_height(640, 480, width), width, model.dtype)
    return (options.first_frames + options.recent_frames + 1) * frame


def _memory(model: JanusVLN, width: int, options: JanusVLNOptions) -> str:
    """One line about the memory that an episode takes, with frames of 640 x 480."""
    height = resized_height(640, 480, width)
    frame = model.vggt.aggregator.frame_bytes(height, width, model.dtype)
    kept = options.max_steps * grid_of(height, width).cells * model.config.hidden_size * model.dtype.itemsize
    most = _geometry_bytes(model, width, options)
    return (
        f"memory per episode: geometry {frame / 1e6:,.1f} MB per frame, at most {most / 1e9:.2g} GB; "
        f"images {kept / 1e9:.2g} GB of the host's after {options.max_steps} steps"
    )
