"""Options of the agent that asks a model behind an OpenAI-compatible server. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vlnbench.errors import UsageError
from vlnbench.rollout.agent_options import AgentOptions


@dataclass(frozen=True, kw_only=True)
class OpenAIOptions(AgentOptions):
    """How to ask a served vision-language model (--agent openai). The key comes from OPENAI_API_KEY."""

    base_url: str = ""
    """Where the model is served, e.g. http://127.0.0.1:8000/v1."""
    model: str = ""
    """Name of the model there."""
    prompt: Path | None = None
    """File with the prompt; fields in braces: instruction, step, history, actions, max_actions,
    forward_m, turn_deg and format; default agents/common/prompts/navigation.txt."""
    history: int = 4
    """Earlier frames shown beside the current one, spread evenly over the episode so far."""
    image_width: int | None = None
    """Width of the frames sent in pixels, the height follows; default the camera's."""
    image_quality: int = 90
    """JPEG quality of the frames sent, 1 to 95."""
    actions_per_answer: int = 4
    """Actions in one answer at most; they are done before the model is asked again."""
    answer_format: Literal["auto", "schema", "text"] = "auto"
    """schema: ask for JSON by a schema (response_format); text: by the prompt alone; auto: schema where the server
    does not refuse it, which is tried before the run."""
    temperature: float = 0.0
    """Sampling temperature; above 0, each request has a seed derived from the episode's."""
    max_answer_tokens: int = 64
    """Tokens of one answer at most."""
    turn_deg: float = 15.0
    """Degrees of a turn that the prompt speaks of; a benchmark with another is refused."""
    retries: int = 3
    """How often a failed request is sent again, and how often an answer that cannot be read is asked for again."""
    request_timeout: float = 60.0
    """Seconds for one request."""
    turn_timeout: float = 240.0
    """Seconds for one turn with all that is sent again; keep it below --episode-timeout."""
    concurrency: int = 8
    """Requests at a time, at most."""

    def check(self) -> None:
        super().check()
        for flag, value in (("--base-url", self.base_url), ("--model", self.model)):
            if not value:
                raise UsageError(f"agent 'openai' needs {flag}")
        self.at_least(history=0, image_width=1, image_quality=1, actions_per_answer=1, temperature=0)
        self.at_least(max_answer_tokens=1, turn_deg=1, retries=0, request_timeout=0.001, turn_timeout=0.001)
        self.at_least(concurrency=1)
        if self.image_quality > 95:
            raise UsageError(f"--image-quality {self.image_quality}: expected 1 to 95")
