"""Any vision-language model behind an OpenAI-compatible server, as an agent."""

from __future__ import annotations

import base64
import hashlib
import io
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image

from agents.common.answers.names import AS_SCHEMA, AS_TEXT, read_answer, schema
from agents.common.prompts.navigation import FORWARD_M, Template, read_template, spread
from agents.openai.api import Api, ApiError
from agents.openai.options import OpenAIOptions
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Answer, Conventions, Episode, Observation, Scalar, Sensor


@dataclass
class _Run:
    """A running episode: its frames as JPEG, what was done, what is still to do, what was said last, counts."""

    episode: Episode
    seed: int
    frames: list[bytes] = field(default_factory=list)
    done: list[Action] = field(default_factory=list)
    queue: deque[Action] = field(default_factory=deque)
    told: list[Answer] = field(default_factory=list)
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    unreadable_answers: int = 0
    unread_stops: int = 0


class OpenAIAgent:
    """Shows a model the instruction, earlier frames and the current one, and does the actions it answers.

    An answer that cannot be read (`answers.read_answer`; also refusals and cut ones) is asked for again with the
    reason; after the last try the agent stops, which `unread_stops` counts. Raises UsageError where the options
    are wrong or nobody answers; a request that keeps failing is an exception in its episode.
    """

    sensors: frozenset[Sensor] = frozenset({"rgb"})
    privileged = False
    options_type = OpenAIOptions

    def __init__(self, options: OpenAIOptions) -> None:
        options.check()
        self._options = options
        template = read_template(options.prompt)
        self._template = Template(template, options.actions_per_answer, options.turn_deg)
        self._api = Api(options.base_url, options.retries, options.request_timeout)
        self._runs: dict[int, _Run] = {}
        self._format = self._answer_format()
        self.expects = Conventions(forward_m=FORWARD_M, turn_deg=options.turn_deg)
        self.identity: Mapping[str, Scalar] = {
            "model": options.model,
            "host": self._api.host,  # not the port: it changes when the same model is served again
            "prompt": hashlib.sha256(template.encode()).hexdigest()[:12],
            "answer_format": self._format,
            "history": options.history,
            "image_width": options.image_width,  # None: the camera's
            "image_quality": options.image_quality,
            "actions_per_answer": options.actions_per_answer,
            "temperature": options.temperature,
            "max_answer_tokens": options.max_answer_tokens,
            "retries": options.retries,
            "pillow": PIL.__version__,
        }
        self.description = f"{options.model} at {options.base_url}, answers as {self._format}"

    def reset(self, slot: int, episode: Episode, seed: int) -> None:
        self._runs[slot] = _Run(episode, seed)

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        asking: list[Callable[[], None]] = []
        for slot, observation in observations.items():
            run = self._runs[slot]
            run.frames.append(self._jpeg(observation.rgb))
            if not run.queue:
                asking.append(lambda run=run: self._ask(run))  # type: ignore[misc]
        _in_parallel(asking, self._options.concurrency)
        actions = {slot: self._runs[slot].queue.popleft() for slot in observations}
        for slot, action in actions.items():
            self._runs[slot].done.append(action)
        return actions

    def report(self, slot: int) -> dict[str, float]:
        """Requests that were answered, their tokens, and answers that could not be read, in a slot's episode."""
        run = self._runs[slot]
        names = ("requests", "prompt_tokens", "completion_tokens", "unreadable_answers", "unread_stops")
        return {name: getattr(run, name) for name in names}

    def answered(self, slot: int) -> list[Answer]:
        """What the model answered, if it was asked for the action just given."""
        found, self._runs[slot].told = self._runs[slot].told, []
        return found

    def close(self) -> None:
        self._runs.clear()

    def _ask(self, run: _Run) -> None:
        """Have the next actions of an episode queued."""
        deadline = time.monotonic() + self._options.turn_timeout
        messages = [self._message(run)]
        run.told = []
        for _ in range(self._options.retries + 1):
            completion = self._api.complete(self._body(messages, run), deadline)
            run.requests += 1
            run.prompt_tokens += completion.prompt_tokens
            run.completion_tokens += completion.completion_tokens
            said = Answer(
                completion.text,
                prompt_tokens=completion.prompt_tokens or None,
                answer_tokens=completion.completion_tokens or None,
                images=len(spread(len(run.frames) - 1, self._options.history)) + 1,
            )
            try:
                if completion.cut:
                    raise ValueError("it is too long and was cut.")
                actions = read_answer(completion.text, self._options.actions_per_answer)
                run.queue.extend(actions)
                run.told.append(replace(said, actions=actions))
                return
            except ValueError as error:
                run.unreadable_answers += 1
                run.told.append(replace(said, unparsable=True, note=str(error)))
                again = f"This answer cannot be read: {error} {self._wording}"
                messages += [_text("assistant", completion.text or "(nothing)"), _text("user", again)]
        run.unread_stops += 1
        run.queue.append(Action.STOP)

    def _body(self, messages: list[dict[str, Any]], run: _Run | None = None) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._options.model,
            "messages": messages,
            "temperature": self._options.temperature,
            "max_tokens": self._options.max_answer_tokens,
        }
        if self._format == "schema":
            body["response_format"] = schema(self._options.actions_per_answer)
        if run is not None and self._options.temperature > 0:
            body["seed"] = (run.seed + run.requests) % 2**31
        return body

    def _message(self, run: _Run) -> dict[str, Any]:
        step = len(run.frames) - 1
        shown = spread(step, self._options.history)
        text = self._template.question(run.episode.instruction, run.done, len(shown), self._wording)
        content: list[dict[str, Any]] = [{"type": "text", "text": text}]
        for i in (*shown, step):
            url = f"data:image/jpeg;base64,{base64.b64encode(run.frames[i]).decode()}"
            content.append({"type": "image_url", "image_url": {"url": url}})
        return {"role": "user", "content": content}

    @property
    def _wording(self) -> str:
        return AS_SCHEMA if self._format == "schema" else AS_TEXT

    def _answer_format(self) -> str:
        """Ask something short before the run: does anyone answer, and do they take a schema?"""
        wanted = self._options.answer_format
        deadline = time.monotonic() + self._options.turn_timeout
        for form in ("schema", "text") if wanted == "auto" else (wanted,):
            self._format = form
            try:
                self._api.complete(self._body([_text("user", f"Your action is STOP. {self._wording}")]), deadline)
            except ApiError as error:
                if wanted == "auto" and form == "schema" and error.status in (400, 422, 501):
                    continue
                raise UsageError(f"agent 'openai': nobody answers: {error}") from error
            return form
        raise AssertionError

    def _jpeg(self, rgb: NDArray[np.uint8] | None) -> bytes:
        if rgb is None:
            raise ValueError("the environment shows no RGB frame")
        image, width = Image.fromarray(rgb), self._options.image_width
        if width is not None and width != image.width:
            height = max(1, round(image.height * width / image.width))
            image = image.resize((width, height), Image.Resampling.BICUBIC)
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=self._options.image_quality)
        return buffer.getvalue()


def _text(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def _in_parallel(jobs: list[Callable[[], None]], limit: int) -> None:
    """Do all jobs, at most `limit` at a time; then raise the first exception, if there was one.

    Threads that do not outlive an interrupted program, unlike those of an executor.
    """
    waiting, errors = deque(jobs), list[Exception]()

    def work() -> None:
        while waiting:
            try:
                job = waiting.popleft()
            except IndexError:
                return
            try:
                job()
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(limit, len(jobs)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise next((error for error in errors if isinstance(error, UsageError)), errors[0])
