"""The identity of a run: everything that decides its rows, as typed fields, and how older manifests are read."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from vlnbench.errors import UsageError
from vlnbench.interfaces import Scalar

IDENTITY_VERSION = 2
UNKNOWN = "unknown"
"""Value of a field that is not known: of versions of data, and of much in results of other programs."""
MARK = " (imported)"
"""What the name of an imported agent ends with, in every table."""
TOLD = "told"
"""Name in `Identity.agent_identity` of what is told, where it is not the episode's own."""
TOLD_MARK = " (told other instructions)"
"""What the name of an agent ends with, in every table, that was told instructions of other episodes."""
IMPORTED_AS = "imported_as"
"""Name in `Identity.agent_identity` of the format in which results of another program were imported."""
_AGENT = "agent_identity"

SHARED = (
    "benchmark",
    "fingerprint",
    "split",
    "dataset_version",
    "dataset_sha256",
    "episodes_sha256",
    "simulator",
    "repeats",
)
"""Identity fields that runs in one table have in common; what else differs is what is compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a run was of. Execution settings and paths stay out; two runs with equal identities give equal rows.

    episodes: how many of the `split_size` episodes were planned, each `repeats` times; episodes_sha256 tells
    which, and `choice` what it was chosen by, if it was (`choice.Choice.label`). partial: the split itself was not
    whole. agent_code: digest of the code that defines the agent, None
    where there is no file of it. agent_identity: what the agent says of itself (`Agent.identity`).
    """

    identity_version: int = IDENTITY_VERSION
    benchmark: str
    fingerprint: str
    split: str
    dataset_sha256: str
    dataset_version: str
    partial: bool
    episodes: int
    split_size: int
    episodes_sha256: str
    agent: str
    agent_code: str | None
    agent_identity: Mapping[str, Scalar]
    simulator: str
    seed: int
    repeats: int
    choice: str = ""

    @property
    def imported(self) -> str:
        """Format of the files of another program that these results come from; empty for runs of vlnbench."""
        return str(self.agent_identity.get(IMPORTED_AS) or "")

    @property
    def told_others(self) -> bool:
        """Whether the agent was told instructions of other episodes, not their own."""
        return self.agent_identity.get(TOLD) == "other"

    @property
    def called(self) -> str:
        """The agent, for people, with `TOLD_MARK` where it was told other instructions."""
        return self.agent + TOLD_MARK * self.told_others

    @property
    def not_known(self) -> tuple[str, ...]:
        """Fields of `SHARED` that imported results do not tell."""
        flat = self.flat()
        return tuple(name for name in SHARED if flat[name] == UNKNOWN) if self.imported else ()

    @property
    def ran_in(self) -> str:
        """The simulator, for people."""
        return "simulator unknown" if self.simulator == UNKNOWN else self.simulator

    @property
    def planned(self) -> int:
        """Rows of the run when it is complete."""
        return self.episodes * self.repeats

    @property
    def episodes_of(self) -> str:
        """How much of the split was planned, for people."""
        return f"{self.episodes} of {self.split_size}" + (f" ({self.choice})" if self.choice else "")

    def flat(self) -> dict[str, Scalar]:
        """Fields by name, those of the agent as `agent_identity.<name>`."""
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name != _AGENT}
        return own | {f"{_AGENT}.{name}": value for name, value in self.agent_identity.items()}

    def differences(self, other: Identity) -> dict[str, tuple[Scalar, Scalar]]:
        """Names of the fields in which two identities differ: (this one's value, the other's)."""
        ours, theirs = self.flat(), other.flat()
        names = {**ours, **theirs}
        return {n: (ours.get(n), theirs.get(n)) for n in names if not _same(ours.get(n), theirs.get(n))}

    def digest(self) -> str:
        """Eight characters that name it in folders."""
        plain = asdict(self)
        if not self.choice:  # identities of before there were choices keep their name
            del plain["choice"]
        return _digest(plain)

    def as_version_1(self) -> dict[str, Any]:
        """What vlnbench wrote before `IDENTITY_VERSION` 2: counts as a phrase, an agent's values as text."""
        plain = asdict(self)
        for name, value in plain.pop(_AGENT).items():
            plain[f"agent_{name}"] = str(value)
        del plain["split_size"]
        if not self.choice:
            del plain["choice"]
        return plain | {"identity_version": 1, "episodes": f"{self.episodes} of {self.split_size}"}

    def digest_version_1(self) -> str:
        """The `digest` of this run before version 2, by which its default folder was named."""
        return _digest(self.as_version_1())


def read_identity(found: object, where: str) -> Identity:
    """The identity in a manifest of this version or an older one.

    where: named in errors. Raises UsageError naming the field that is missing or of a wrong type.
    """
    if not isinstance(found, dict):
        raise UsageError(f"{where}: field 'identity': expected an object")
    version = found.get("identity_version")
    if version == 1 and not isinstance(version, bool):
        found = _upgraded(found, where)
    elif version != IDENTITY_VERSION:
        raise UsageError(
            f"{where}: field 'identity.identity_version': expected 1 or {IDENTITY_VERSION}, found "
            f"{_short(version)}; read the run with the version of vlnbench that wrote it"
        )
    found = {"choice": "", **found}
    known = {field.name: field for field in fields(Identity)}
    unknown = sorted(found.keys() - known.keys())
    if unknown:
        raise UsageError(f"{where}: field 'identity.{unknown[0]}': unknown field")
    for name in known:
        _check(name, found.get(name), where)
    values: dict[str, Any] = {name: found.get(name) for name in known}
    return Identity(**values)


_TYPES: dict[str, type] = {
    **dict.fromkeys(("identity_version", "episodes", "split_size", "seed", "repeats"), int),
    "partial": bool,
    _AGENT: dict,
}
"""Types of the fields that are no text."""


def _check(name: str, value: object, where: str) -> None:
    wanted = _TYPES.get(name, str)
    fits = isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool))
    if name in ("episodes", "split_size", "repeats"):
        fits = fits and 1 <= value <= 10**9  # type: ignore[operator]
    if name == _AGENT and isinstance(value, dict):
        fits = all(map(_is_scalar, value.values()))
    if not fits and not (name == "agent_code" and value is None):
        raise UsageError(f"{where}: field 'identity.{name}': expected {wanted.__name__}, found {_short(value)}")


def _upgraded(found: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A version 1 identity as one of version 2.

    That version wrote an agent's values as text; `True`, `False` and numbers of up to nine digits become what they
    were, everything else stays text.
    """
    counts = found.get("episodes")
    match = re.fullmatch(r"(\d{1,9}) of (\d{1,9})", counts) if isinstance(counts, str) else None
    if match is None:
        raise UsageError(f"{where}: field 'identity.episodes': expected 'N of M', found {_short(counts)}")
    own = {field.name for field in fields(Identity)} - {_AGENT, "split_size"}
    said = {name: value for name, value in found.items() if name not in own and name.startswith("agent_")}
    rest = {name: value for name, value in found.items() if name not in said}
    return {
        "dataset_version": "unknown",
        "partial": False,
        **rest,
        "identity_version": IDENTITY_VERSION,
        "episodes": int(match[1]),
        "split_size": int(match[2]),
        _AGENT: {name.removeprefix("agent_"): _typed(value) for name, value in said.items()},
    }


def _typed(value: object) -> object:
    if value in ("True", "False"):
        return value == "True"
    if isinstance(value, str) and re.fullmatch(r"-?[1-9]\d{0,8}|0", value):
        return int(value)
    return value


def _is_scalar(value: object) -> bool:
    return value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


def _same(a: Scalar, b: Scalar) -> bool:
    """Whether two values are the same in JSON, where 1 and true are not."""
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _digest(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]
