"""A plain Qwen2.5-VL (arXiv 2502.13923), or a fine-tune of it, as an agent that is asked in words."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from agents.common.answers.names import AS_TEXT, NAMES, read_answer
from agents.common.checkpoints.hashes import content_hash
from agents.common.checkpoints.placement import place
from agents.common.checkpoints.tokenizer import Tokenizer
from agents.common.decoders.questions import QuestionLoop, Running
from agents.common.inputs import described
from agents.common.prompts.navigation import FORWARD_M, Template, spread
from agents.common.qwen2_5_vl import checkpoint
from agents.common.qwen2_5_vl.image import resize
from agents.common.qwen2_5_vl.tokens import BLOCK_END, IMAGE, SHOWN, chat, generation_settings
from agents.qwen_vl import network
from agents.qwen_vl.network import Answerer, Question, inputs_of, read_config
from agents.qwen_vl.options import FAMILY, MOST_CONSTRAINED, QwenVLInputs, QwenVLOptions
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Conventions, Scalar
from vlnbench.training.family.sources import opened

SYSTEM = "You are a helpful assistant."
TAGGED = (
    "First think between <think> and </think>, then give the names of the actions "
    f"({', '.join(NAMES)}), separated by spaces, between <answer> and </answer>."
)
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def _sequences(longest: int) -> Iterator[tuple[Action, ...]]:
    """All answers of up to so many actions; nothing follows a STOP."""
    moves = [action for action in NAMES.values() if action is not Action.STOP]
    for length in range(longest):
        for before in product(moves, repeat=length):
            for last in NAMES.values():
                yield (*before, last)


class Prompts:
    """Writes questions and reads answers with one tokenizer, as `inputs` say."""

    def __init__(self, tokenizer: Tokenizer, inputs: QwenVLInputs) -> None:
        self._tokenizer, self.inputs = tokenizer, inputs
        self.template = Template(inputs.prompt, inputs.actions_per_answer, inputs.turn_deg)

    def question(self, instruction: str, done: Sequence[Action], earlier: int) -> list[int]:
        """Token ids that ask for the next actions, a placeholder for each of `earlier` frames and the current.

        Raises ValueError where the instruction holds a placeholder itself.
        """
        tagged = self.inputs.answers == "tagged"
        text = self.template.question(instruction, done, earlier, TAGGED if tagged else AS_TEXT)
        ids = self._encode(chat(("system", SYSTEM), ("user", text + SHOWN * (earlier + 1))))
        (image,) = self._encode(IMAGE)
        if ids.count(image) != earlier + 1:
            raise ValueError(f"the instruction holds {IMAGE}, which stands for an image")
        return ids

    def answer(self, actions: Sequence[Action]) -> list[int]:
        """Token ids of an answer with these actions and its end."""
        names = " ".join(action.name for action in actions)
        tagged = self.inputs.answers == "tagged"
        return self._encode((f"<answer>{names}</answer>" if tagged else names) + BLOCK_END)

    def read(self, answer: Sequence[int]) -> list[Action] | None:
        """The actions of an answer, None where it cannot be read. What is before <answer> tags does not count."""
        text = self.text(answer)
        if self.inputs.answers == "tagged":
            found = _ANSWER.findall(text)
            if not found:
                return None
            text = found[-1]
        try:
            return read_answer(text, self.inputs.actions_per_answer)
        except ValueError:
            return None

    def text(self, answer: Sequence[int]) -> str:
        """An answer in words."""
        return self._tokenizer.decode(answer, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def allowed(self) -> Callable[[Sequence[int]], Sequence[int]]:
        """Tokens that may follow the beginning of an answer, if it is to be one of those that can be read."""
        following: dict[tuple[int, ...], set[int]] = {}
        for ids in map(self.answer, _sequences(self.inputs.actions_per_answer)):
            for i, id_ in enumerate(ids):
                following.setdefault(tuple(ids[:i]), set()).add(id_)
        found = {before: sorted(after) for before, after in following.items()}
        return lambda answer: found.get(tuple(answer), [])

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


class EpisodeLoop(QuestionLoop[Question]):
    """Drives many episodes. An answer that cannot be read is a STOP."""

    def __init__(self, prompts: Prompts, answers: Any) -> None:
        super().__init__(prompts, answers)
        self._inputs = prompts.inputs

    def frame(self, rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return resize(Image.fromarray(rgb), self._inputs.max_pixels)

    def images(self, question: Question) -> int:
        return len(question.frames)

    def question(self, slot: int, running: Running) -> Question:
        step = len(running.frames) - 1
        earlier = spread(step, self._inputs.history)
        ids = self._prompts.question(running.instruction, running.done, len(earlier))
        frames = torch.from_numpy(np.stack([running.frames[each] for each in (*earlier, step)]))
        return Question(slot, ids, frames)


class QwenVLAgent(EpisodeLoop):
    """A checkpoint in `EpisodeLoop`."""

    options_type = QwenVLOptions

    def __init__(self, options: QwenVLOptions) -> None:
        """Load the checkpoint of `options`. Raises UsageError if that cannot be done as they say."""
        folder = opened(options, FAMILY)
        config, inputs = read_config(folder), inputs_of(folder, options)
        if options.constrained and inputs.actions_per_answer > MOST_CONSTRAINED:
            raise UsageError(
                f"--constrained: all answers there are are written down, which {MOST_CONSTRAINED} actions per "
                f"answer allow at most; found {inputs.actions_per_answer}: give --actions-per-answer"
            )
        attn = "sdpa" if options.attn == "auto" else options.attn
        placement = place(options.device, options.dtype, attn, config.dtype, options.deterministic)
        tokenizer = checkpoint.load_tokenizer(folder, config, options.tokenizer)
        prompts = Prompts(tokenizer, inputs)
        model = network.load(folder, **placement.loading(options))
        answerer = Answerer(
            model,
            generation_settings(folder, tokenizer),
            max_new_tokens=options.max_new_tokens,
            max_batch=options.batch,
            allowed=prompts.allowed() if options.constrained else None,
            graphs=options.cuda_graphs,
        )
        super().__init__(prompts, answerer)
        self.expects = Conventions(forward_m=FORWARD_M, turn_deg=inputs.turn_deg)
        self.fullest_step = inputs.history
        self.identity: Mapping[str, Scalar] = {
            "checkpoint": content_hash(checkpoint.read_files(folder, options.tokenizer, options.trust_pickle)),
            **placement.identity(options),
            **options.added_identity,
            "prompt": hashlib.sha256(inputs.prompt.encode()).hexdigest()[:12],
            "answers": inputs.answers,
            "constrained": options.constrained,
            "history": inputs.history,
            "actions_per_answer": inputs.actions_per_answer,
            "max_pixels": inputs.max_pixels,
            "max_new_tokens": options.max_new_tokens,
            "torch": torch.__version__,
        }
        self.description = "\n".join(
            (
                placement.describe(folder, model),
                described(inputs, folder),
            )
        )
