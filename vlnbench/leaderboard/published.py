"""Published results: the file, its schema and what may be compared with them."""

from __future__ import annotations

import json
from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from vlnbench.errors import UsageError
from vlnbench.util.durable.files import write_bytes
from vlnbench.util.durable.limits import read_bounded
from vlnbench.util.progress import say
from vlnbench.version import __version__

Dataset = Literal["R2R-CE", "RxR-CE"]
Split = Literal["val_seen", "val_unseen", "test", "test_challenge"]
Percent = Annotated[float, Field(ge=0, le=100)]
Meters = Annotated[float, Field(ge=0, le=100)]
Text = Annotated[str, Field(min_length=1)]
Language = Literal["en-US", "en-IN", "hi-IN", "te-IN"]
LANGUAGES: tuple[Language, ...] = get_args(Language)
"""All of RxR."""
Sensors = Literal["RGB", "stereo RGB", "multi-view RGB", "RGB-D", "panoramic RGB-D"]
_LONGEST = 200
"""Characters of what an error line quotes."""
Evidence = Literal["authors", "authors' log", "quoted", "third party"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Metrics(_Model):
    """What was published; null where it was not. Percent, but TL (path length) and NE in meters."""

    SR: Percent | None = None
    SPL: Percent | None = None
    OS: Percent | None = None
    NE: Meters | None = None
    nDTW: Percent | None = None  # noqa: N815 -- the name of the metric
    SDTW: Percent | None = None
    TL: Meters | None = None

    @model_validator(mode="after")
    def _not_empty(self) -> Metrics:
        if not self.model_dump(exclude_none=True):
            raise ValueError("expected at least one metric")
        return self


class Source(_Model):
    """Where the numbers come from: title of the paper or name of the work; arXiv id, address, or both."""

    work: Text
    arxiv: Annotated[str, Field(pattern=r"^\d{2}(0[1-9]|1[0-2])\.\d{4,5}$")] | None = None
    url: Annotated[str, Field(pattern=r"^https://")] | None = None

    @model_validator(mode="after")
    def _can_be_found(self) -> Source:
        if self.arxiv is None and self.url is None:
            raise ValueError("expected 'arxiv' or 'url'")
        return self

    @property
    def posted(self) -> float | None:
        """When the work came out, from its arXiv id: year and fraction of it, e.g. 2025.5 for July 2025."""
        if self.arxiv is None:
            return None
        return 2000 + int(self.arxiv[:2]) + (int(self.arxiv[2:4]) - 1) / 12


class Checked(_Model):
    """When sources of a row were last looked for, and which were found. What was not read there is named."""

    date: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]
    where: Text


class GpuHours(_Model):
    """Cost of the training, as stated: GPUs times hours, on which card, and where that is said."""

    hours: Annotated[float, Field(gt=0, le=10_000_000)]
    gpu: Text
    where: Text


class Protocol(_Model):
    """How a family of methods is evaluated. benchmarks: name of the same protocol here, by dataset."""

    description: Text
    benchmarks: dict[Dataset, Text] = Field(default_factory=dict)


class Released(_Model):
    """Weights that anybody can have and that load here, as docs/reference/checkpoints.md has them."""

    checkpoint: Text
    family: Text


class Published(_Model):
    """One method on one split. Null means unknown: nothing here is guessed.

    sensors: class of sensors; if null, the note says why. backbone: the model that it was made of. extra: what it
    uses beyond instruction and sensors. privileged: whether that would be missing outside a simulator, such as the
    goal's place. protocol: key of `protocols`. languages: of RxR-CE. n: number of episodes; partial: whether they
    are fewer than the split has in these languages. evidence: the authors' value, read at theirs ("authors",
    "authors' log") or where others repeat it ("quoted"), or measured by somebody else ("third party").
    released: the weights that have the value.
    """

    id: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    method: Text
    dataset: Dataset
    split: Split
    metrics: Metrics
    sensors: Sensors | None = None
    backbone: Text | None = None
    extra: tuple[Text, ...] = ()
    privileged: bool = False
    protocol: Text | None = None
    dataset_version: Text | None = None
    languages: Annotated[tuple[Language, ...], Field(min_length=1)] | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    partial: bool = False
    evidence: Evidence
    source: Source
    checked: Checked
    gpu_hours: GpuHours | None = None
    released: Released | None = None
    note: Text | None = None

    @model_validator(mode="after")
    def _says_why(self) -> Published:
        if self.sensors is None and self.note is None:
            raise ValueError("'sensors' is null: expected a 'note' that says why")
        if self.languages is not None and self.dataset != "RxR-CE":
            raise ValueError("'languages': expected null outside RxR-CE")
        return self


class Literature(_Model):
    """The file `published.json`."""

    protocols: dict[str, Protocol]
    rows: tuple[Published, ...]

    @model_validator(mode="after")
    def _consistent(self) -> Literature:
        seen: set[str] = set()
        for row in self.rows:
            if row.id in seen:
                raise ValueError(f"id {row.id!r} appears twice")
            if row.protocol is not None and row.protocol not in self.protocols:
                raise ValueError(f"row {row.id!r}: protocol {row.protocol!r} is not among 'protocols'")
            seen.add(row.id)
        return self

    def benchmark(self, row: Published) -> str | None:
        """Name of the benchmark here that has the row's protocol, if any."""
        protocol = self.protocols.get(row.protocol) if row.protocol else None
        return protocol.benchmarks.get(row.dataset) if protocol else None

    def find(self, row_id: str) -> Published:
        """Row of an id. Raises UsageError naming the nearest ones."""
        for row in self.rows:
            if row.id == row_id:
                return row
        nearest = get_close_matches(row_id, [row.id for row in self.rows], n=3)
        hint = f"did you mean {' or '.join(map(repr, nearest))}? " if nearest else ""
        raise UsageError(f"unknown published row {row_id!r}: {hint}ids are in published.json")


def spoken(dataset: str, chosen: Collection[str]) -> tuple[str, ...]:
    """Languages of a dataset's instructions, of which a benchmark takes the chosen ones (none chosen: all)."""
    return (tuple(chosen) or LANGUAGES) if dataset == "RxR-CE" else ()


def read_published(path: Path) -> Literature:
    """Read and check `published.json`. Raises UsageError naming the first bad field."""
    try:
        return Literature.model_validate_json(read_bounded(path), strict=True)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    except ValidationError as error:
        raise UsageError(f"{path}: {invalid(error)}") from error


def invalid(error: ValidationError) -> str:
    """The first field that is wrong, and why, in few words."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ascii(".".join(map(str, first["loc"])) or "the file")[1:-1]
    return f"field '{where[:_LONGEST]}': {ascii(first['msg'])[1:-1][:_LONGEST]}"


def shipped() -> Path:
    """The published rows that come with vlnbench."""
    beside = Path(__file__).with_name("published.json")
    # In a checkout they lie in results/.
    return beside if beside.is_file() else Path(__file__).parents[2] / "results" / beside.name


def begin(results: Path) -> None:
    """Make the folder of a leaderboard, with the published rows that come with vlnbench."""
    made = "" if results.exists() else f"{results} is not there: made, "
    try:
        results.mkdir(parents=True, exist_ok=True)
        write_bytes(results / shipped().name, shipped().read_bytes())
    except OSError as error:
        raise UsageError(f"{results}: cannot be written ({error.strerror}); choose another --results") from error
    say(f"{made or f'{results}: begun '}with the published rows of vlnbench {__version__}")


def schema() -> str:
    """The JSON Schema of `published.json`, as committed beside it."""
    made: dict[str, Any] = Literature.model_json_schema()
    made = {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}
    return json.dumps(made, indent=2, ensure_ascii=False) + "\n"
