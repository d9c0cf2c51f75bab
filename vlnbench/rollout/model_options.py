"""Options of agents that load a trained model. Imports nothing heavy: the command line is made from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

TOKEN = "VLNBENCH_TOKEN"
"""Environment variable with the token that a served agent and its clients share."""


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """How to wait for an agent that is served elsewhere (--agent remote://HOST:PORT)."""

    remote_timeout: float = 120.0
    """Seconds that a served agent may take for one answer; then its episodes begin anew, once, one by one."""
    reconnect: float = 60.0
    """Seconds to wait for a server that has gone before the run stops, to be resumed."""


@dataclass(frozen=True, slots=True)
class ServedOptions:
    """How to ask a served vision-language model (--agent openai). The key comes from OPENAI_API_KEY."""

    base_url: str = ""
    """Where the model is served, e.g. http://127.0.0.1:8000/v1."""
    model: str = ""
    """Name of the model there."""
    prompt: Path | None = None
    """File with the prompt; fields in braces: instruction, step, history, actions, max_actions,
    forward_m, turn_deg and format; default agents/openai/prompt.txt."""
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


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How an agent loads and runs a trained model.

    Passed to agents whose constructor has a parameter `options`, and its parts to those with parameters `served`
    and `remote`; the others refuse what is set here.
    """

    checkpoint: Path | None = None
    """Folder of a trained checkpoint, or the name of one that comes with vlnbench, for agents that load one."""
    tokenizer: Path | None = None
    """Folder with the tokenizer's files, where the checkpoint has none."""
    vision_tower: Path | None = None
    """Folder with the config.json of the vision tower, where the checkpoint names one of another size."""
    device: str = "auto"
    """auto (the first CUDA device, else the CPU), cpu, cuda or cuda:N."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Precision of weights and activations; auto is the checkpoint's on CUDA and float32 on the CPU."""
    attn: Literal["auto", "eager", "sdpa", "flash_attention_2"] = "auto"
    """Attention of the language model; auto takes flash attention where it is installed, else SDPA."""
    max_batch: int = 8
    """Episodes in one forward pass at most."""
    max_new_tokens: int = 512
    """Tokens of one answer at most."""
    compile: bool = False
    """Compile the model with torch.compile."""
    trust_pickle: bool = False
    """Read weights from pickle files too (tensors only)."""
    served: ServedOptions = field(default_factory=ServedOptions)
    """A model that is served elsewhere."""
    remote: RemoteOptions = field(default_factory=RemoteOptions)
    """An agent that is served elsewhere."""
