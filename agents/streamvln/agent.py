"""StreamVLN, a video-language navigation model (arXiv 2507.05240), as an agent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from agents.common.batch_times import measured
from agents.common.checkpoints.files import generation_settings
from agents.common.checkpoints.hashes import content_hash
from agents.common.checkpoints.new_tokenizer import BLOCK_END, BLOCK_START
from agents.common.checkpoints.placement import Placement, place
from agents.common.checkpoints.tokenizer import Tokenizer
from agents.common.decoders.loop import EpisodeLoop, FeelingLoop
from agents.common.decoders.placeholders import IGNORED, IMAGE, MEMORY
from agents.common.decoders.policy import SampledActing
from agents.common.decoders.turns import Decoder, Turn
from agents.common.decoders.windows import Windows
from agents.common.inputs import Wording
from agents.common.prompts.chat import Chat, Content
from agents.common.sets.conversations import SYMBOLS, TAG
from agents.common.sight.instead import Instead
from agents.common.threads import Threads
from agents.streamvln import network
from agents.streamvln.network import StreamVLNConfig, read_config
from agents.streamvln.options import FAMILY, StreamVLNOptions, part_of
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Conventions, Scalar, Sensor
from vlnbench.training.family.sources import opened, shipped
from vlnbench.util.machine import installed_version

EPISODE_STEPS = 500  # what memory per episode is stated for

EXPECTS = Conventions(width=640, height=480, hfov=79.0, camera_height_m=1.25, forward_m=0.25, turn_deg=15.0)
"""What the published model was trained for."""

SMALL_IMAGE = 120
"""Networks that see images of up to this many pixels, a quarter of a published frame's height, take frames of any
size: they were trained on smaller ones of the same view, and 640 x 480 pixels show them nothing more."""


def expects(image_size: int) -> Conventions:
    """What a network has to be shown that sees images of `image_size` pixels."""
    return replace(EXPECTS, width=None, height=None) if image_size <= SMALL_IMAGE else EXPECTS


Labeled = tuple[list[int], list[int]]
"""Token ids and as many labels, `IGNORED` where the loss does not look."""

_NAMES = {action: symbol for symbol, action in SYMBOLS.items()}

SYSTEM = "You are a helpful assistant."
PHRASES = (
    "you can see ",
    "in front of you is ",
    "there is ",
    "you can spot ",
    "you are toward the ",
    "ahead of you is ",
    "in your sight is ",
)
"""What may introduce a frame; one is drawn for every turn."""


def task_text(instruction: str) -> str:
    """The task as the first user block of a window states it; the instruction goes in as it is."""
    return (
        f"You are an autonomous navigation assistant. Your task is to {instruction} Devise an action sequence to "
        "follow the instruction using the four actions: TURN LEFT (←) or TURN RIGHT (→) by 15 degrees, MOVE "
        "FORWARD (↑) by 25 centimeters, or STOP."
    )


def named(actions: Iterable[Action]) -> str:
    """How an answer writes actions."""
    return "".join(_NAMES[action] for action in actions)


def view(phrase: str) -> Content:
    """How a turn shows its frame."""
    return (phrase, IMAGE, ".")


class Prompts(Chat):
    """Writes what a window says.

    The strings are part of the trained weights' format (arXiv 2507.05240; chat blocks of Qwen2) and must not be
    improved. The model writes the header of its answer itself: a prompt ends with an empty assistant block,
    and the next turn continues after the tokens of the answer with no newline between them.
    """

    phrases: Sequence[str] = PHRASES

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self._known: dict[str, list[int]] = {}

    def opening(self, instruction: str, phrase: str, *, memory: bool) -> list[int]:
        """Token ids of the first turn of a window: system block, task, memory if there is any, current frame."""
        sentence: Content = (" These are your historical observations ", MEMORY, ".") if memory else ()
        user = self.block("user", task_text(instruction), *sentence, " ", *view(phrase))
        return self.block("system", SYSTEM) + user + self.block("assistant")

    def following(self, answer: Sequence[int], phrase: str) -> list[int]:
        """Token ids of a later turn: the answer before it exactly as generated, then the current frame."""
        if phrase not in self._known:  # there are a few phrases, and a turn for every fourth step
            self._known[phrase] = [*self.block("user", *view(phrase)), *self.block("assistant")]
        return [*answer, *self._known[phrase]]

    def turns(
        self, instruction: str, answers: Sequence[Sequence[Action]], phrases: Sequence[str], *, memory: bool
    ) -> list[tuple[list[int], list[int]]]:
        """What the agent is asked in a window, turn by turn, and what it answers."""
        asked = [self.opening(instruction, phrases[0], memory=memory)]
        asked += [self.following((), phrase) for phrase in phrases[1:]]
        told = [
            self.block("assistant", named(each))[:-1] for each in answers
        ]  # generation ends before the newline
        return list(zip(asked, told, strict=True))

    def lesson(
        self, instruction: str, answers: Sequence[Sequence[Action]], phrases: Sequence[str], *, memory: bool
    ) -> Labeled:
        """A window as the published training writes it, whose memory sentence has a colon."""
        sentence: Content = (" These are your historical observations: ", MEMORY, ".") if memory else ()
        first = (task_text(instruction), *sentence, " ", *view(phrases[0]))
        return self._published([first, *map(view, phrases[1:])], list(map(named, answers)))

    def talk(self, turns: Sequence[tuple[str, str]], wording: Wording) -> Labeled:
        """Questions about images, and their answers, beside the windows of either wording."""
        parts = [re.split(f"({TAG})", text) for text, _ in turns]
        asked = [tuple(IMAGE if part == TAG else part for part in each if part) for each in parts]
        if wording == "published":
            return self._published(asked, [told for _, told in turns])
        pairs, before = [], self.block("system", SYSTEM)
        for question, (_, answer) in zip(asked, turns, strict=True):
            told = self.block("assistant", answer)
            pairs.append((before + self.block("user", *question) + self.block("assistant"), told[:-1]))
            before = told[-1:]  # generation ends before the newline
        return labeled(pairs)

    def header(self) -> list[int]:
        """Ids before the first action of every answer's block. Raises UsageError where there are no such."""
        symbols = self.action_ids()
        blocks = [self.block("assistant", symbol) for symbol in SYMBOLS]
        header = blocks[0][: next(i for i, id_ in enumerate(blocks[0]) if id_ in symbols)]
        if any(block[: len(header)] != header for block in blocks):
            raise UsageError("the tokenizer joins actions with what stands before them; rewards cannot be learned")
        return header

    def _published(self, asked: Sequence[Content], answers: Sequence[str]) -> Labeled:
        """A conversation with labels on answers and on the marks of all blocks."""
        ids = self.block("system", SYSTEM)
        told = [False] * len(ids)
        for question, answer in zip(asked, answers, strict=True):
            blocks = self.block("user", *question), self.block("assistant", answer)
            ids += blocks[0] + blocks[1]
            told += [False] * len(blocks[0]) + [True] * len(blocks[1])
        marks = self.block_marks()
        return ids, [id_ if own or id_ in marks else IGNORED for id_, own in zip(ids, told, strict=True)]


def labeled(pairs: Sequence[tuple[list[int], list[int]]]) -> Labeled:
    """Questions, each with its answer behind it, and labels on the answers alone."""
    ids = [id_ for asked, told in pairs for id_ in (*asked, *told)]
    return ids, [id_ for asked, told in pairs for id_ in (*[IGNORED] * len(asked), *told)]


class StreamVLNAgent(FeelingLoop):
    """A trained checkpoint in `EpisodeLoop`. It looks at RGB; the published code renders depth and ignores it."""

    sensors: frozenset[Sensor] = frozenset({"rgb"})
    privileged = False
    options_type = StreamVLNOptions
    expects = EXPECTS

    def __init__(self, options: StreamVLNOptions) -> None:
        """Load the checkpoint of `options`. Raises UsageError if that cannot be done as they say."""
        folder = opened(options, FAMILY)
        config = read_config(folder, options.vision_tower)
        windows = Windows.of(config, folder)
        placement = place(options.device, options.dtype, options.attn, config.dtype, options.deterministic)
        prompts = Prompts(network.load_tokenizer(folder, options.tokenizer))
        shown = Instead(options)
        settings = generation_settings(folder)
        model = network.load(
            folder,
            **placement.loading(options),
            vision_tower=options.vision_tower,
            fast=not options.compile,
        )
        decoder = Decoder(
            model,
            settings,
            max_new_tokens=options.max_new_tokens,
            max_batch=options.batch,
            compile=options.compile,
            graphs=options.cuda_graphs,
        )
        self._max_new_tokens, self.episode_bytes = options.max_new_tokens, decoder.cache_bytes_per_slot
        self.fullest_step = windows.num_frames  # where the second window begins, with the memory of the first
        prompt = prompts.opening("", PHRASES[0], memory=False)
        fixed = options.compile  # what is compiled is so for a number of threads
        rehearse = partial(decoder.rehearse, prompt)
        self._threads = Threads(placement.device, None if fixed else rehearse)
        on_cpu = placement.device.type == "cpu" and not fixed
        self.batch_seconds: Mapping[int, float] = (
            measured(rehearse) if on_cpu and options.max_batch is None else {}
        )
        timed = _Timed(decoder, self._threads)
        super().__init__(prompts, timed, windows, config.vision.image_size, shown)
        self.expects = expects(config.vision.image_size)
        trust = options.trust_pickle
        files = tuple(network.read_files(folder, options.tokenizer, options.vision_tower, trust))
        self.files = (*files, *shown.files)
        self.identity: Mapping[str, Scalar] = {
            **_identity(options, files, placement, windows),
            **_unusual(config),
            **shown.identity,
        }
        self.description = "\n".join(
            (
                placement.describe(folder, model, part_of),
                decoder.describe(),
                f"frames: {self.frame_bytes(EPISODE_STEPS) / 1e6:.0f} MB per episode of {EPISODE_STEPS} steps",
                *self._threads.description,
            )
        )

    @property
    def remarks(self) -> str:
        """What a reader of the results should know about the answers so far; empty if nothing."""
        count, limit = self.truncated_turns, self._max_new_tokens
        cut = [f"{count} answers were cut at --max-new-tokens {limit}"] if count else []
        return "; ".join([*cut, *self._threads.remarks])

    def close(self) -> None:
        super().close()
        self._threads.close()


class PolicyAgent(SampledActing, EpisodeLoop):
    """StreamVLN in simulators, acting by chance and remembered by its policy."""

    def __init__(self, prompts: Prompts, policy: Any, windows: Windows, image_size: int) -> None:
        self._recorder = policy
        super().__init__(prompts, policy, windows, image_size)
        self.expects: Conventions = expects(image_size)


class _Timed:
    """A decoder whose answers are given with as many threads as are fastest at present."""

    def __init__(self, decoder: Decoder, threads: Threads) -> None:
        self.max_new_tokens = decoder.max_new_tokens
        self.drop, self.unsay, self.noted = decoder.drop, decoder.unsay, decoder.noted
        self._decoder, self._threads = decoder, threads

    def run(self, turns: Sequence[Turn]) -> list[list[int]]:
        """As `Decoder.run`."""
        with self._threads.acting(sum(len(turn.images) for turn in turns)):
            return self._decoder.run(turns)


class StreamVLNTinyAgent(StreamVLNAgent):
    """The small checkpoint that comes with vlnbench."""

    def __init__(self, options: StreamVLNOptions) -> None:
        if options.checkpoint is not None:
            raise UsageError("agent 'streamvln-tiny' has its own checkpoint: use --agent streamvln for another")
        super().__init__(replace(options, checkpoint=shipped()["streamvln-tiny"]))


def _identity(
    options: StreamVLNOptions, files: Sequence[Path], placement: Placement, windows: Windows
) -> dict[str, Scalar]:
    """What decides the answers."""
    return {
        "checkpoint": content_hash(files),
        **placement.identity(options),
        **options.added_identity,
        "compile": options.compile,
        "max_new_tokens": options.max_new_tokens,
        "num_frames": windows.num_frames,
        "num_history": windows.num_history,
        "torch": torch.__version__,
        "transformers": installed_version("transformers"),
    }


def _unusual(config: StreamVLNConfig) -> dict[str, Scalar]:
    """What it was trained to see that others are not; of these, runs of before have no such fields."""
    usual = re.search(r"-(\d+)$", str(config.raw.get("mm_vision_tower")))  # as in siglip-so400m-patch14-384
    found = {"num_future_steps": config.num_future_steps, "image_size": config.vision.image_size}
    known = {"num_future_steps": Windows().num_future_steps, "image_size": int(usual[1]) if usual else None}
    return {name: value for name, value in found.items() if known[name] not in (None, value)}


def fixed_texts() -> list[str]:
    """What every prompt says alike. One token each: a small model's time goes into the sequence's length."""
    before, after = task_text("\0").split("\0")
    memory = [" These are your historical observations", " These are your historical observations:"]
    starts = [f"{BLOCK_START}{role}\n" for role in ("system", "user", "assistant")]
    unanswered = f"{starts[-1]}{BLOCK_END}\n"
    seen = f".{BLOCK_END}\n"
    return [SYSTEM, before.rstrip(), after, *memory, *PHRASES, *starts, unanswered, seen]
