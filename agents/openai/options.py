"""Options of the agent that asks a model behind an OpenAI-compatible server. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Interval

from vlnbench.errors import UsageError
from vlnbench.rollout.agent_options import AgentOptions
from vlnbench.util.bounds import Count, Natural, Positive


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
    history: Natural = 4
    """Earlier frames shown beside the current one, spread evenly over the episode so far."""
    image_width: Count | None = None
    """Width of the frames sent in pixels, the height follows; default the camera's."""
    image_quality: Annotated[int, Interval(ge=1, le=95)] = 90
    """JPEG quality of the frames sent, 1 to 95."""
    actions_per_answer: Count = 4
    """Actions in one answer at most; they are done before the model is asked again."""
    answer_format: Literal["auto", "schema", "text"] = "auto"
    """schema: ask for JSON by a schema (response_format); text: by the prompt alone; auto: schema where the server
    does not refuse it, which is tried before the run."""
    temperature: Annotated[float, Ge(0)] = 0.0
    """Sampling temperature; above 0, each request has a seed derived from the episode's."""
    max_answer_tokens: Count = 64
    """Tokens of one answer at most."""
    turn_deg: Annotated[float, Ge(1)] = 15.0
    """Degrees of a turn that the prompt speaks of; a benchmark with another is refused."""
    retries: Natural = 3
    """How often a failed request is sent again, and how often an answer that cannot be read is asked for again."""
    request_timeout: Positive = 60.0
    """Seconds for one request."""
    turn_timeout: Positive = 240.0
    """Seconds for one turn with all that is sent again; keep it below --episode-timeout."""
    concurrency: Count = 8
    """Requests at a time, at most."""

    def check(self) -> None:
        super().check()
        for flag, value in (("--base-url", self.base_url), ("--model", self.model)):
            if not value:
                raise UsageError(f"agent 'openai' needs {flag}")
