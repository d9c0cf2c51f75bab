"""Benchmarks in files that users write, and in the manifests of runs on them."""

from __future__ import annotations

import re
import runpy
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from vlnbench.data.protocol import Benchmark
from vlnbench.errors import UsageError, unknown
from vlnbench.interfaces import Camera, Embodiment
from vlnbench.util.durable.yaml_file import read_yaml

NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,99}")
"""Of a benchmark; folders of runs are called so."""

_Pixels = Annotated[int, Field(ge=1, le=8192)]
_Meters = Annotated[float, Field(gt=0, le=100)]
_Degrees = Annotated[float, Field(gt=0, lt=180)]
_Words = Annotated[list[Annotated[str, Field(pattern=r"^[\w.-]+$")]], Field(max_length=100)]
_Split = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w-]*$")]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Camera(_Model):
    width: _Pixels
    height: _Pixels
    hfov: _Degrees
    height_m: Annotated[float, Field(ge=0, le=100)]
    pitch_deg: Annotated[float, Field(ge=-90, le=90)] = 0.0


class _Body(_Model):
    camera: _Camera
    depth_camera: _Camera | None = None
    depth_range_m: tuple[Annotated[float, Field(ge=0)], _Meters] = (0.0, 10.0)
    agent_height_m: _Meters = 1.5
    agent_radius_m: _Meters = 0.1
    forward_m: _Meters = 0.25
    turn_deg: _Degrees = 15.0
    tilt_deg: _Degrees | None = None
    allow_sliding: bool = True

    @field_validator("depth_range_m")
    @classmethod
    def _near_comes_first(cls, found: tuple[float, float]) -> tuple[float, float]:
        if found[0] >= found[1]:
            raise PydanticCustomError("range", "expected the near end first, below the far one")
        return found


class _Metrics(_Model):
    success_distance_m: _Meters = 3.0
    max_steps: Annotated[int, Field(ge=1, le=1_000_000)] = 500


class _File(_Model):
    name: Annotated[str, Field(pattern=f"^{NAME.pattern}$")]
    version: Annotated[int, Field(ge=1)]
    summary: Annotated[str, Field(max_length=200)] = ""
    reader: Annotated[str, Field(pattern=r"^(r2r|rxr|\w+(\.\w+)*:\w+)$")]
    dataset_folders: Annotated[_Words, Field(min_length=1)]
    splits: Annotated[dict[_Split, Annotated[int, Field(ge=1)] | None], Field(min_length=1)]
    body: _Body
    roles: _Words = []
    languages: _Words = []
    metrics: _Metrics = _Metrics()


def read_benchmark(path: Path, known: Mapping[str, Benchmark]) -> Benchmark:
    """The benchmark of a YAML file. known: benchmarks whose bodies it may name, `body: {like: NAME}`.

    Raises UsageError naming the first field that cannot be.
    """
    found = read_yaml(path, "benchmark", list(_File.model_fields))
    if isinstance(found.get("body"), dict):
        found["body"] = _body(found["body"], path, known)
    try:
        read = _File.model_validate(found)
    except ValidationError as error:
        raise UsageError(f"{path}: {_first(error)}") from None
    plain = read.model_dump(exclude={"metrics"}) | read.metrics.model_dump()
    return Benchmark(**_tuples(plain) | {"body": _embodiment(plain["body"])})


def run_benchmark(path: Path) -> Any:
    """What a Python file calls BENCHMARK. Raises UsageError for a file that is not there or has none."""
    if not path.is_file():
        raise UsageError(f"benchmark {str(path)!r}: there is no such file")
    found = runpy.run_path(str(path))
    if "BENCHMARK" not in found:
        raise UsageError(f"{path}: expected BENCHMARK = Benchmark(...), found nothing of that name")
    return found["BENCHMARK"]


def problem(found: object) -> str:
    """What is wrong with something that should be a benchmark: its first field of another type; "" for nothing."""
    if not isinstance(found, Benchmark):
        return "expected a vlnbench.data.benchmarks.Benchmark"
    try:
        TypeAdapter(Benchmark).validate_python(asdict(found))
    except ValidationError as error:
        return _first(error)
    return "" if NAME.fullmatch(found.name) else f"name {found.name[:60]!r}: expected letters, digits and . _ -"


def unfit(body: Embodiment) -> str:
    """What is wrong with a body that is none of a file: its first field that cannot be; "" for nothing."""
    try:
        _Body.model_validate(asdict(body))
    except ValidationError as error:
        return _first(error)
    return ""


def recorded_benchmark(protocol: object, fingerprint: str, where: str) -> Benchmark:
    """The benchmark that a manifest holds, for runs on one that is at hand no more.

    where: named in errors. Raises UsageError unless it is whole and has the fingerprint of the run.
    """
    try:
        TypeAdapter(Benchmark).validate_python(protocol)
        plain = {each.name: protocol[each.name] for each in fields(Benchmark)}  # type: ignore[index]
        made = Benchmark(**_tuples(plain) | {"body": _embodiment(plain["body"]), "generator": None})
    except (ValidationError, KeyError, TypeError) as error:
        raise UsageError(f"{where}: field 'protocol': expected the benchmark of the run") from error
    if made.fingerprint != fingerprint:
        raise UsageError(
            f"{where}: field 'protocol': its fingerprint is {made.fingerprint}, that of the run {fingerprint}"
        )
    return made


def _body(given: Mapping[str, Any], path: Path, known: Mapping[str, Benchmark]) -> dict[str, Any]:
    """A body as the file describes it, over that of the benchmark that it names."""
    given = dict(given)
    like = given.pop("like", None)
    if like is None:
        return given
    if not isinstance(like, str) or like not in known:
        raise UsageError(f"{path}: body.like: {unknown('benchmark', str(like)[:60], known)}")
    base = asdict(known[like].body)
    if isinstance(given.get("camera"), dict):
        given["camera"] = base["camera"] | given["camera"]
    return base | given


def _embodiment(plain: Mapping[str, Any]) -> Embodiment:
    cameras = {name: plain[name] and Camera(**plain[name]) for name in ("camera", "depth_camera")}
    return Embodiment(**_tuples(plain) | cameras)


def _tuples(plain: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}


def _first(error: ValidationError) -> str:
    """Field and reason of the first of several errors."""
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))[:100]
    message = first["msg"][0].lower() + first["msg"][1:]
    found = "" if first["type"] == "missing" else f", found {str(first['input'])[:60]!r}"
    return f"{place}: {message}{found}"
