"""An agent that is served elsewhere, by `vlnbench serve` or by `vlnbench/serving/wire.py` elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn
from urllib.parse import urlsplit

from agents.remote_options import RemoteOptions
from vlnbench.errors import LostBatchError, RunError, UsageError, require
from vlnbench.interfaces import Action, Answer, Episode, Observation, Scalar, Sensor
from vlnbench.serving.options import TOKEN
from vlnbench.serving.replies import About, read_about, read_answer
from vlnbench.util.progress import say
from vlnbench.util.visible import one_line

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.2, 2.0

_SHOWN = (
    "episode_id",
    "trajectory_id",
    "scene_id",
    "start_position",
    "start_rotation",
    "instruction",
    "instruction_tokens",
    "language",
    "goal_radius",
    "instruction_id",
)
"""Fields of an episode that travel: those that `Episode.for_agent` leaves."""


class RemoteError(Exception):
    """The served agent raised an exception, which the message repeats."""


class RemoteAgent:
    """Passes on to a served agent, and is recorded as that one.

    When the connection ends or an answer does not come in time, it connects again, and episodes that the server
    knew begin anew (`LostBatchError`). Raises UsageError where there is no such server, the token or the version
    is wrong, or another agent has taken its place, and RunError when the server does not come back.
    """

    privileged = False
    options_type = RemoteOptions

    def __init__(self, address: str, options: RemoteOptions) -> None:
        self._address, self._host, self._port = address, *_parsed(address)
        options.check()
        self._options = options
        self._wire = require("vlnbench.serving.wire", "remote")
        self._failures = (OSError, EOFError, ValueError, self._wire.WebSocketException)
        self._known: dict[int, tuple[str, int]] = {}  # by slot: the episode that the server knows, and its seed
        # Episodes of requests that failed: sent alone from then on, so that one that is bad costs no other.
        self._alone: set[tuple[str, int]] = set()
        self._reports: dict[int, dict[str, float]] = {}
        self._answers: dict[int, list[Answer]] = {}
        try:
            self._client = self._connect()
        except self._failures as error:
            raise UsageError(
                f"{address}: no agent is served there ({_said(error)}); start one with `vlnbench serve`"
            ) from error
        self._about: About = read_about(self._client.about, address)
        self.sensors: frozenset[Sensor] = self._about.sensors
        self.expects = self._about.expects
        self.identity: Mapping[str, Scalar] = self._about.identity
        self.stands_for = self._about.stands_for
        self.description = self._about.description

    @classmethod
    def at(cls, address: str, options: RemoteOptions) -> RemoteAgent:
        """The agent that is served at an address."""
        return cls(address, options)

    def reset(self, slot: int, episode: Episode, seed: int) -> None:
        begun = {name: getattr(episode, name) for name in _SHOWN}
        for attempt in (1, 2):
            if self._client is None:
                self._reconnect()
            try:
                self._client.reset(slot, begun, seed)
            except self._wire.RemoteError as error:
                if attempt == 2 or not error.args[1].get("ended"):
                    self._refuse(error)
                self._lose()
            except self._failures as error:
                self._lose()
                if attempt == 2:
                    raise RemoteError(f"{self._address}: the episode cannot begin ({_said(error)})") from error
            else:
                self._known[slot], self._reports[slot] = (episode.episode_id, seed), {}
                return

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        if not observations.keys() <= self._known.keys():
            raise LostBatchError(f"{self._address}: the connection ended in the middle of the episode")
        actions: dict[int, Action] = {}
        for part in self._parts(observations):
            actions.update(self._ask(part))
        return actions

    def report(self, slot: int) -> dict[str, float]:
        """What the served agent counted about the episode in a slot."""
        return self._reports[slot]

    def answered(self, slot: int) -> list[Answer]:
        """What the model of the served agent said of the action just given."""
        return self._answers.pop(slot, [])

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def _ask(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        alone = any(self._known[slot] in self._alone for slot in observations)
        entries = [{**_sent(observation), "slot": slot} for slot, observation in observations.items()]
        try:
            reply = self._client.ask(type="act", observations=entries, alone=alone, answers=True)
        except self._wire.RemoteError as error:
            self._alone.update(self._known[slot] for slot in observations)
            self._refuse(error)
        except self._failures as error:
            self._alone.update(self._known[slot] for slot in observations)
            self._lose()
            raise LostBatchError(f"{self._address}: the agent gave no answer ({_said(error)})") from error
        try:
            actions, reports, answers = read_answer(reply, len(observations))
        except UsageError as error:
            raise RemoteError(f"{self._address}: {error}") from error
        self._reports.update(zip(observations, reports, strict=True))
        self._answers.update(zip(observations, answers, strict=True))
        return dict(zip(observations, actions, strict=True))

    def _parts(self, observations: Mapping[int, Observation]) -> Iterator[dict[int, Observation]]:
        """As many at once as the server takes, in number and size."""
        part: dict[int, Observation] = {}
        size = 0
        for slot, observation in observations.items():
            needed = _size(observation)
            if needed > self._about.max_bytes:
                limit = self._about.max_bytes / 2**20
                raise UsageError(
                    f"{self._address}: takes messages of at most {limit:.0f} MiB, and one observation has "
                    f"{needed / 2**20:.1f}; serve with a larger --max-message-mb"
                )
            if part and (len(part) == self._about.max_batch or size + needed > self._about.max_bytes):
                yield part
                part, size = {}, 0
            part[slot] = observation
            size += needed
        yield part

    def _connect(self) -> Any:
        try:
            token = self._wire.token_for(self._host)
        except OSError as error:
            advice = f"or set the token of the server in the environment as {TOKEN}"
            raise UsageError(f"{error.filename}: {error.strerror}; {advice}") from error
        try:
            return self._wire.Client(self._host, self._port, token, self._options.remote_timeout)
        except self._wire.RemoteError as error:
            said = one_line(error.args[0])
            hint = f"; set the same one in the environment of both ends as {TOKEN}" if "token" in said else ""
            raise UsageError(f"{self._address}: {said}{hint}") from error

    def _reconnect(self) -> None:
        deadline, wait = time.monotonic() + self._options.reconnect, _FIRST_WAIT_S
        said = False
        while True:
            try:
                self._client = self._connect()
                break
            except self._failures as error:
                if time.monotonic() + wait > deadline:
                    raise RunError(
                        f"{self._address}: the served agent is gone ({_said(error)}) and did not come back within "
                        f"{self._options.reconnect:g} s; serve it again and run the same command to go on"
                    ) from error
                if not said:
                    say(
                        f"{self._address}: the served agent is gone ({_said(error)}); waiting for it for up to "
                        f"{self._options.reconnect:g} s (--reconnect)"
                    )
                    said = True
            time.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT_S)
        now, was = read_about(self._client.about, self._address), self._about
        pairs = {
            "name": (now.stands_for.name, was.stands_for.name),
            "code": (now.stands_for.code, was.stands_for.code),
            "identity": (now.identity, was.identity),
        }
        changed = [name for name, (there, known) in pairs.items() if there != known]
        if changed:
            raise UsageError(f"{self._address}: another agent is served there now (other {', '.join(changed)})")
        self._about = now

    def _lose(self) -> None:
        """Forget the connection and what the server knew through it."""
        self.close()
        self._client = None
        self._known.clear()

    def _refuse(self, error: Exception) -> NoReturn:
        """Raise what the server answered instead of an answer."""
        text, reply = one_line(error.args[0]), error.args[1]
        if reply.get("ended"):
            self._lose()
            raise LostBatchError(f"{self._address}: {text}") from error
        if reply.get("shared"):
            raise LostBatchError(f"{self._address}: in a batch with episodes of others: {text}") from error
        if reply.get("usage"):
            raise UsageError(f"{self._address}: {text}") from error
        raise RemoteError(text) from error


def _parsed(address: str) -> tuple[str, int]:
    try:
        parts = urlsplit(address)
        if parts.scheme == "remote" and parts.hostname and parts.port and address.endswith(f":{parts.port}"):
            return parts.hostname, parts.port
    except ValueError:
        pass
    raise UsageError(f"--agent {address}: expected remote://HOST:PORT, the address that `vlnbench serve` prints")


def _sent(observation: Observation) -> dict[str, Any]:
    sent: dict[str, Any] = {"instruction": observation.instruction, "step": observation.step}
    for name in ("rgb", "depth"):
        if getattr(observation, name) is not None:
            sent[name] = getattr(observation, name)
    if observation.pose is not None:
        sent["pose"] = [observation.pose.position, observation.pose.rotation]
    if observation.oracle_action is not None:
        sent["oracle_action"] = int(observation.oracle_action)
    return sent


def _size(observation: Observation) -> int:
    """Bytes of an observation in a message, and a little more."""
    frames = sum(frame.nbytes for frame in (observation.rgb, observation.depth) if frame is not None)
    return frames + len(observation.instruction.encode()) + 1024


def _said(error: BaseException) -> str:
    """An exception in few words."""
    return one_line(str(error) or type(error).__name__)
