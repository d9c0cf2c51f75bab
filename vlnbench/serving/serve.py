"""Serves an agent to evaluations in other processes, environments or machines (`--agent remote://host:port`).

The agent acts in the thread that calls `AgentServer.run`, on the episodes of whatever clients are ready; each
connection has a thread that only passes on. The protocol is in `vlnbench.serving.wire`.
"""

from __future__ import annotations

import functools
import logging
import platform
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from types import ModuleType
from typing import Any

from vlnbench.errors import UsageError, require
from vlnbench.interfaces import Action, Agent, Episode, Observation, Pose
from vlnbench.rollout import said
from vlnbench.rollout.agents import facts_of, load_agent, remarks_of
from vlnbench.rollout.answers import tells, told
from vlnbench.rollout.engine import LINGER, POLL_S
from vlnbench.rollout.episode import reported
from vlnbench.rollout.executor import close
from vlnbench.serving.options import TOKEN, ServeOptions
from vlnbench.util.gpu_memory import halved, is_gpu_memory, make_room
from vlnbench.util.loading import describe, stack
from vlnbench.util.machine import LOOPBACK
from vlnbench.util.processes.watchdog import Watchdog
from vlnbench.util.progress import say
from vlnbench.version import __version__

Reply = dict[str, Any]


def run_serve(options: ServeOptions) -> None:
    """Serve an agent until Ctrl-C. Raises UsageError if that cannot be done as asked."""
    options.check()
    wire = require("vlnbench.serving.wire", "remote")
    try:
        token = wire.token_for(options.host)
    except OSError as error:
        raise UsageError(
            f"{error.filename}: {error.strerror}; or set a token in the environment as {TOKEN}"
        ) from error
    agent = load_agent(options.agent, options.agent_options)
    try:
        with AgentServer(agent, options, token) as server:
            for line in server.agent.description.splitlines():
                say(line)
            say(f"serving {options.agent} at {server.address}; Ctrl-C ends it")
            with Watchdog(options.answer_timeout, lambda: None) as watchdog:
                server.run(watchdog.beat)
    except KeyboardInterrupt:
        say(remarks_of(agent) or "the server has ended")
    finally:
        close(agent)


@dataclass(eq=False)
class _Turn:
    """Observations of one request, by slot, and where its answer goes. alone: not in a batch with others'.
    answers: whoever asks wants to know what the model said."""

    observations: dict[int, Observation]
    alone: bool
    answers: bool
    reply: Future[Reply] = field(default_factory=Future)


@dataclass(eq=False)
class _Beginning:
    """An episode to begin in a slot, and where the answer goes."""

    slot: int
    episode: Episode
    seed: int
    reply: Future[Reply] = field(default_factory=Future)


class AgentServer:
    """A served agent. Use as a context manager: connections are taken from its beginning to its end.

    Raises UsageError for an agent that cannot be served and for an address that cannot be used.
    """

    def __init__(self, agent: Agent, options: ServeOptions, token: str = "") -> None:
        self.agent = facts_of(agent, options.agent)
        if self.agent.privileged:
            raise UsageError(
                f"agent {options.agent!r} is shown goals and paths, and those stay in the evaluation: run it there"
            )
        if not token and options.host not in LOOPBACK:
            raise UsageError(f"--host {options.host}: others can reach it; give the server a token")
        self._agent, self._options, self._token = agent, options, token
        self._wire: ModuleType = require("vlnbench.serving.wire", "remote")
        # Not a SimpleQueue: in C, its `get` can wait for ever where its time is over before the wait begins.
        self._asked: queue.Queue[_Turn | _Beginning | None] = queue.Queue()
        self._waiting: list[_Turn] = []
        self._owed: set[Future[Reply]] = set()
        self._free = list(range(options.max_slots))
        self._connections: set[Any] = set()
        self._thought_s = 0.0
        self._most = options.agent_options.batch
        self._ended = False
        self._lock = threading.Lock()

    def __enter__(self) -> AgentServer:
        handler = functools.partial(
            self._answer, about=self._about(), token=self._token, free=self._free, perform=self._perform
        )
        # Who speaks another protocol is no error of this end, and before websockets 17 made a traceback here.
        logging.getLogger("websockets.server").setLevel(logging.CRITICAL)
        place = f"--host {self._options.host} --port {self._options.port}"
        try:
            self._server = self._wire.listen(handler, self._options.host, self._options.port)
        except (OSError, OverflowError) as error:
            raise UsageError(f"{place}: cannot listen there ({error})") from error
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._server.shutdown()
        for connection in self._open():  # which websockets leaves open before version 17
            connection.close()

    @property
    def address(self) -> str:
        """What `--agent` calls it."""
        host, port = self._server.socket.getsockname()[:2]
        return f"remote://[{host}]:{port}" if ":" in host else f"remote://{host}:{port}"

    def run(self, beat: Callable[[], None] = lambda: None) -> None:
        """Act until `stop`. beat: called now and then; if it is not, the agent hangs."""
        try:
            while batch := self._next_batch(beat):
                beat()
                self._act(batch)
        finally:
            self._end()

    def stop(self) -> None:
        """Make `run` return when the agent has acted; may be called in another thread."""
        self._asked.put(None)

    def _end(self) -> None:
        with self._lock:
            self._ended = True
            for reply in self._owed:
                if not reply.done():
                    reply.set_result(_ENDED)

    def _answer(self, connection: Any, **settings: Any) -> None:
        with self._lock:
            if self._ended:  # it hangs up: who comes back waits for the next server
                return
            self._connections.add(connection)
        try:
            self._wire.answer(connection, **settings)
        finally:
            with self._lock:
                self._connections.discard(connection)

    def _open(self) -> list[Any]:
        with self._lock:
            return list(self._connections)

    def _about(self) -> Reply:
        place = {"vlnbench": __version__, "python": platform.python_version(), "machine": platform.machine()}
        facts = self.agent
        return {
            "name": facts.name,
            "code": facts.code,
            "sensors": sorted(facts.sensors),
            "expects": asdict(facts.expects),
            "identity": dict(facts.identity),
            "description": facts.description,
            "max_batch": self._options.agent_options.batch,
            "max_bytes": self._options.max_message_mb * 2**20,
            "place": place,
        }

    def _perform(self, request: Mapping[str, Any]) -> Reply:
        """Have a request answered, in the thread of its connection. Raises for one that is malformed."""
        asked: _Turn | _Beginning
        if request["type"] == "reset":
            asked = _Beginning(request["slot"], _episode(request["episode"]), int(request["seed"]))
        elif request["type"] == "act":
            seen = {entry["slot"]: _observation(entry) for entry in request["observations"]}
            if not 1 <= len(seen) <= self._options.agent_options.batch:
                raise ValueError(
                    f"{len(seen)} episodes at once; 1 to {self._options.agent_options.batch} are allowed"
                )
            asked = _Turn(seen, bool(request.get("alone")), bool(request.get("answers")))
        else:
            raise ValueError(f"unknown type {request['type']!r}")
        with self._lock:
            if self._ended:
                return _ENDED
            self._owed.add(asked.reply)
            self._asked.put(asked)
        reply = asked.reply.result()
        with self._lock:
            self._owed.discard(asked.reply)
        return reply

    def _next_batch(self, beat: Callable[[], None]) -> list[_Turn]:
        """Turns to act on together, the longest waiting first; none at the end.

        Episodes begin meanwhile. Waits a little for clients that are about to ask.
        """
        until = time.monotonic() + LINGER * self._thought_s
        while True:
            batch = self._fitting()
            left = until - time.monotonic()
            if batch and (left <= 0 or self._is_full(batch)):
                self._waiting = [turn for turn in self._waiting if turn not in batch]
                return batch
            try:
                asked = self._asked.get(timeout=left if batch else POLL_S)
            except queue.Empty:
                beat()
                continue
            if asked is None:
                return []
            if isinstance(asked, _Turn):
                until = until if batch else time.monotonic() + LINGER * self._thought_s
                self._waiting.append(asked)
            else:
                beat()
                asked.reply.set_result(self._begin(asked))

    def _fitting(self) -> list[_Turn]:
        if self._waiting and self._waiting[0].alone:
            return self._waiting[:1]
        batch: list[_Turn] = []
        for turn in self._waiting:
            size = sum(len(each.observations) for each in (*batch, turn))
            if not turn.alone and (size <= self._most or not batch):
                batch.append(turn)
        return batch

    def _is_full(self, batch: list[_Turn]) -> bool:
        """Whether waiting longer adds nothing: no room is left, or every client already waits for its answer."""
        size = sum(len(turn.observations) for turn in batch)
        return batch[0].alone or size >= self._most or len(self._waiting) >= len(self._connections)

    def _begin(self, asked: _Beginning) -> Reply:
        try:
            self._agent.reset(asked.slot, asked.episode, asked.seed)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return _failed(error)
        return {}

    def _act(self, batch: list[_Turn]) -> None:
        start, no_room = time.monotonic(), False
        try:
            observations = {slot: each for turn in batch for slot, each in turn.observations.items()}
            answers = said.answers(self._agent, observations)
            taken = {slot: int(said.action(answers[slot])) for slot in observations}
            reports = {slot: reported(self._agent, slot) for slot in observations}
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            no_room = is_gpu_memory(error)
            for turn in batch:
                turn.reply.set_result({**_failed(error), "shared": len(batch) > 1})
        else:
            for turn in batch:
                slots = list(turn.observations)
                answer: Reply = {"actions": [taken[slot] for slot in slots]}
                answer["reports"] = [reports[slot] for slot in slots]
                if tells(self._agent, turn.answers):
                    heard = {slot: told(self._agent, slot, (Action(taken[slot]),)) for slot in slots}
                    answer["answers"] = [list(map(asdict, heard[slot])) for slot in slots]
                turn.reply.set_result(answer)
        if no_room and len(batch) > 1:
            self._most = halved(sum(len(turn.observations) for turn in batch), "episodes")
        elif no_room:
            make_room()
        self._thought_s = time.monotonic() - start


_ENDED = {"error": "the server has ended", "ended": True}


def _failed(error: BaseException) -> Reply:
    if isinstance(error, UsageError):
        return {"error": str(error), "usage": True}
    say(stack(error))
    return {"error": describe(error)}


def _episode(sent: Mapping[str, Any]) -> Episode:
    """What a client tells of an episode; a client without a dataset may know no more than an instruction."""
    return Episode(
        episode_id=str(sent["episode_id"]),
        trajectory_id=str(sent.get("trajectory_id", "")),
        scene_id=str(sent.get("scene_id", "")),
        start_position=tuple(sent.get("start_position", (0.0, 0.0, 0.0))),
        start_rotation=tuple(sent.get("start_rotation", (0.0, 0.0, 0.0, 1.0))),
        instruction=str(sent["instruction"]),
        instruction_tokens=tuple(sent.get("instruction_tokens", ())),
        language=str(sent.get("language", "en")),
        goal_radius=float(sent.get("goal_radius", 3.0)),
        instruction_id=sent.get("instruction_id"),
    )


def _observation(sent: Mapping[str, Any]) -> Observation:
    pose, action = sent.get("pose"), sent.get("oracle_action")
    return Observation(
        instruction=str(sent["instruction"]),
        step=int(sent["step"]),
        rgb=sent.get("rgb"),
        depth=sent.get("depth"),
        pose=None if pose is None else Pose(tuple(pose[0]), tuple(pose[1])),
        oracle_action=None if action is None else Action(action),
    )
