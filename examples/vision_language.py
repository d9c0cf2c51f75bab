"""Any vision-language model of Hugging Face's transformers as an agent, as it is: SmolVLM, LLaVA and so on.

cd examples
vlnbench eval --agent vision_language:VisionLanguageAgent --checkpoint hf:HuggingFaceTB/SmolVLM-Instruct
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import transformers
from annotated_types import Ge
from PIL import Image

from agents.base import EpisodeAgent
from agents.common.answers.names import AS_TEXT, read_answer
from agents.common.checkpoints.hashes import content_hash
from agents.common.checkpoints.placement import place
from agents.common.prompts.navigation import FORWARD_M, Template, read_template, spread
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Conventions, Episode, Observation, Sensor
from vlnbench.rollout.agent_options import CheckpointOptions
from vlnbench.util import hub
from vlnbench.util.bounds import Count, Natural

SETTINGS = ("history", "actions_per_answer", "side", "max_new_tokens", "turn_deg")


def read(kind: Any, folder: Path, **settings: Any) -> Any:
    """What a class of transformers reads of a folder, whose code is not run. Raises UsageError where it cannot."""
    transformers.utils.logging.disable_progress_bar()
    try:
        return kind.from_pretrained(folder, trust_remote_code=False, **settings)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise UsageError(f"--checkpoint {folder}: {' '.join(str(error).split())[:300]}") from error


def shown(frame: Image.Image, side: int) -> Image.Image:
    """A frame as the model is given it, the longer side of at most so many pixels."""
    frame.thumbnail((side, side))
    return frame


def question(processor: Any, template: Template, instruction: str, done: Sequence[Action], images: int) -> str:
    """A question about so many images, the last one current, as the model's own template for chats writes it."""
    text = template.question(instruction, done, images - 1, AS_TEXT)
    content = [*({"type": "image"} for _ in range(images)), {"type": "text", "text": text}]
    asked: str = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    return asked


@dataclass(frozen=True, kw_only=True)
class VisionLanguageOptions(CheckpointOptions):
    """What the command line offers for this agent; a field's comment is its help."""

    history: Natural = 4
    """Earlier frames in a question, evenly spread over the episode so far."""
    actions_per_answer: Count = 4
    """Actions that the model is asked for at once, at most."""
    side: Annotated[int, Ge(16)] = 384
    """Pixels of the longer side of a frame in a question."""
    max_new_tokens: Count = 48
    """Tokens of an answer, at most."""
    turn_deg: Annotated[float, Ge(1)] = 15.0
    """Degrees of a turn, which the question names; the benchmark has to have the same."""
    prompt: Path | None = None
    """File with the question, fields in braces; default the one that comes with vlnbench."""


class VisionLanguageAgent(EpisodeAgent):
    """Shows frames, asks for the next actions in words, does what the answer says; STOP if that is unreadable."""

    sensors: frozenset[Sensor] = frozenset({"rgb"})
    options_type = VisionLanguageOptions
    shared = ("model", "processor", "unreadable")

    def __init__(self, options: VisionLanguageOptions, prompt: str = "") -> None:
        """Load the model; `prompt` stands in the place of the options' file. Raises UsageError as `read`."""
        super().__init__()
        if options.checkpoint is None:
            raise UsageError("name a vision-language model with --checkpoint: a folder, or hf:ORG/NAME")
        options.check()
        name = str(options.checkpoint)
        folder = hub.fetch(name, trust_pickle=options.trust_pickle).folder if hub.is_hub(name) else Path(name)
        placement = place(options.device, options.dtype, "sdpa", torch.bfloat16, options.deterministic)
        self.processor = read(transformers.AutoProcessor, folder)
        settings = {"dtype": placement.dtype, "use_safetensors": None if options.trust_pickle else True}
        self.model = read(transformers.AutoModelForImageTextToText, folder, **settings).to(placement.device)
        self.model.eval()
        text = prompt or read_template(options.prompt)
        self.options, self.template = options, Template(text, options.actions_per_answer, options.turn_deg)
        self.unreadable = [0]  # a list, so that the copies of this agent that drive the episodes count together
        self.files = tuple(sorted(path for path in folder.iterdir() if path.is_file()))
        self.expects = Conventions(forward_m=FORWARD_M, turn_deg=options.turn_deg)
        self.identity = {  # whatever can change a result: runs that differ in it are kept apart
            "checkpoint": content_hash(self.files),
            "prompt": hashlib.sha256(text.encode()).hexdigest()[:12],
            **{name: getattr(options, name) for name in SETTINGS},
            "device": placement.device.type,
            "dtype": placement.dtype_name,
            **placement.on_gpu(options),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }
        self.description = f"{type(self.model).__name__} from {folder}: {self.model.num_parameters():,} parameters"

    @property
    def remarks(self) -> str:
        """What a reader of the results should know; empty if nothing."""
        count = self.unreadable[0]
        return f"{count} answers could not be read and counted as STOP" if count else ""

    def begin(self, episode: Episode, seed: int) -> None:
        """State of one episode. What is set here cannot leak into the next."""
        self.instruction = episode.instruction
        self.frames: list[Image.Image] = []
        self.done: list[Action] = []
        self.planned: deque[Action] = deque()

    def act_one(self, observation: Observation) -> Action:
        """The next action of an answer, or where all have been done, of the answer to the next question."""
        self.frames.append(shown(Image.fromarray(observation.rgb), self.options.side))
        if not self.planned:
            self.planned.extend(self._answered())
        self.done.append(self.planned.popleft())
        return self.done[-1]

    def _answered(self) -> list[Action]:
        step = len(self.done)
        images = [self.frames[i] for i in (*spread(step, self.options.history), step)]
        asked = question(self.processor, self.template, self.instruction, self.done, len(images))
        inputs = self.processor(text=asked, images=images, return_tensors="pt").to(
            self.model.device, self.model.dtype
        )
        with torch.inference_mode():
            ids = self.model.generate(**inputs, max_new_tokens=self.options.max_new_tokens, do_sample=False)
        answer = self.processor.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        try:
            return read_answer(answer, self.options.actions_per_answer)
        except ValueError:
            self.unreadable[0] += 1
            return [Action.STOP]
