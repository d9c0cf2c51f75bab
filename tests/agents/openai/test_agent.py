from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from agents.common.prompts.navigation import spread
from agents.openai import api
from agents.openai.agent import OpenAIAgent
from agents.openai.api import ApiError
from agents.openai.options import OpenAIOptions
from tests.agents.openai.stub import Stub, says, stub
from tests.fakes import make_set
from tests.faulty import PictureEnv
from tests.served import connected, serving
from vlnbench.conformance import AgentConformance
from vlnbench.data.benchmarks import get_benchmark
from vlnbench.errors import UsageError
from vlnbench.evaluation.evaluate import evaluate, make_plan
from vlnbench.evaluation.records import read_rows
from vlnbench.evaluation.summary import Summary, format_summary
from vlnbench.interfaces import Action, Agent, Answer, Conventions, Episode, Observation
from vlnbench.rollout.answers import told
from vlnbench.rollout.inline import Inline

RGB = np.full((48, 64, 3), 90, np.uint8)
FORWARD, LEFT, STOP = Action.MOVE_FORWARD, Action.TURN_LEFT, Action.STOP


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr(api, "_FIRST_WAIT_S", 0.01)
    with stub() as found:
        yield found


def make(server: Stub, **options: Any) -> OpenAIAgent:
    """An agent whose question before the run is forgotten."""
    options = {"base_url": server.url, "model": "tiny", "retries": 2, **options}
    agent = OpenAIAgent(OpenAIOptions(**options))
    server.requests.clear()
    return agent


def walk(agent: OpenAIAgent, steps: int, slot: int = 0) -> list[Action]:
    agent.reset(slot, episode(), 7)
    return [agent.act({slot: Observation("Go.", step, rgb=RGB + step)})[slot] for step in range(steps)]


def episode() -> Episode:
    return make_set("set", 1).episodes[0]


class TestConformance(AgentConformance):
    @pytest.fixture(autouse=True)
    def _server(self, server: Stub) -> None:
        self.server = server

    def make_agent(self) -> OpenAIAgent:
        return make(self.server)

    def begin(self, agent: Agent, slot: int, number: int = 0, seed: int = 7) -> None:
        super().begin(agent, slot, number, seed)
        self.server.requests.clear()  # it lies in this process, and has the frames of what was asked


def test_a_request_holds_prompt_frames_and_options(server: Stub) -> None:
    agent = make(server, history=2, image_width=32, max_answer_tokens=9, actions_per_answer=1)
    walk(agent, 4)
    headers, body = server.requests[-1]
    assert "Authorization" not in headers
    assert {name: body[name] for name in ("model", "temperature", "max_tokens")} == {
        "model": "tiny",
        "temperature": 0.0,
        "max_tokens": 9,
    }
    assert "seed" not in body
    assert body["response_format"]["json_schema"]["schema"]["properties"]["actions"]["maxItems"] == 1
    text, *images = body["messages"][0]["content"]
    assert episode().instruction in text["text"]
    assert "done 3 actions so far; the last of them: MOVE_FORWARD, MOVE_FORWARD, MOVE_FORWARD." in text["text"]
    assert "2 earlier views" in text["text"]
    shown = [base64.b64decode(image["image_url"]["url"].partition("base64,")[2]) for image in images]
    pictures = [np.asarray(Image.open(io.BytesIO(jpeg))) for jpeg in shown]
    assert {picture.shape for picture in pictures} == {(24, 32, 3)}
    assert [round(float(picture.mean())) for picture in pictures] == [90, 92, 93]


def test_several_actions_are_done_before_the_next_question(server: Stub) -> None:
    agent = make(server)
    server.replies.extend([says('{"actions": ["TURN_LEFT", "MOVE_FORWARD"]}'), says("TURN_LEFT STOP")])
    assert walk(agent, 4) == [LEFT, FORWARD, LEFT, STOP]
    assert agent.report(0) == {
        "requests": 2,
        "prompt_tokens": 200,
        "completion_tokens": 14,
        "unreadable_answers": 0,
        "unread_stops": 0,
    }


UNREADABLE = [
    says("I would go ahead."),
    says(None, message={"refusal": "I cannot help with that."}),
    says(""),
    says("MOVE_FORWARD MOVE_FORWARD", finish_reason="length"),
    says('{"actions": ["MOVE_FOR', finish_reason="length"),
]


@pytest.mark.parametrize("reply", UNREADABLE)
def test_an_answer_that_cannot_be_read_is_asked_for_again(server: Stub, reply: Any) -> None:
    agent = make(server)
    server.replies.append(reply)
    assert walk(agent, 1) == [FORWARD]
    assert agent.report(0)["unreadable_answers"] == 1
    assert server.texts()[1].startswith("This answer cannot be read: ")
    first, second = told(agent, 0, [FORWARD])
    assert (first.unparsable, first.actions, bool(first.note)) == (True, (), True)
    assert second == Answer("MOVE_FORWARD", (FORWARD,), prompt_tokens=100, images=1, answer_tokens=7)
    assert [message["role"] for message in server.requests[1][1]["messages"]] == ["user", "assistant", "user"]


def test_who_never_answers_readably_stops_and_it_is_recorded(server: Stub, tmp_path: Path) -> None:
    agent = make(server, retries=1)
    server.default = lambda body: says("Certainly!")
    summary = run(agent, tmp_path)
    for row in read_rows(tmp_path):
        assert row.scores["steps"] == 1
        assert row.report == {
            "requests": 2,
            "prompt_tokens": 200,
            "completion_tokens": 14,
            "unreadable_answers": 2,
            "unread_stops": 1,
        }
    assert summary.report["unread_stops"] == 3
    assert "prompt_tokens 600" in format_summary(summary)


@pytest.mark.parametrize(
    "reply",
    [
        (429, {"error": {"message": "slow down"}, "headers": {"Retry-After": "0.01"}}),
        (503, {"headers": {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}}),
        (500, "<html>oops</html>"),
        (200, "not JSON"),
        (200, {"choices": []}),
        (200, {"error": "out of memory"}),
        (200, [1]),
        (200, {"choices": [{"message": "text"}]}),
    ],
)
def test_a_request_that_fails_in_passing_is_sent_again(server: Stub, reply: Any) -> None:
    agent = make(server)
    server.replies.append(reply)
    assert walk(agent, 1) == [FORWARD]
    assert len(server.requests) == 2
    assert agent.report(0)["requests"] == 1


def test_a_request_that_keeps_failing_is_an_error_row_with_what_the_server_says(
    server: Stub, tmp_path: Path
) -> None:
    agent = make(server)
    server.default = lambda body: (500, {"error": {"message": "the model has crashed"}})
    run(agent, tmp_path)
    for row in read_rows(tmp_path):
        assert row.status == "error"
        assert "HTTP 500 Internal Server Error: the model has crashed (sent 3 times)" in str(row.reason)


def test_a_wait_beyond_the_turn_is_not_begun(server: Stub) -> None:
    agent = make(server, turn_timeout=5.0)
    server.replies.append((429, {"headers": {"Retry-After": "30"}}))
    with pytest.raises(ApiError, match="HTTP 429"):
        walk(agent, 1)
    assert len(server.requests) == 1


def test_a_server_that_does_not_answer_in_time(server: Stub) -> None:
    agent = make(server, request_timeout=0.2, retries=1)
    server.delay_s = 0.6
    with pytest.raises(ApiError, match=r"timed out \(sent 2 times\)"):
        walk(agent, 1)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, r"HTTP 401 Unauthorized: bad key ...; the key comes from the environment variable OPENAI_API_KEY"),
        (403, "HTTP 403 Forbidden"),
        (404, r"HTTP 404 Not Found: bad key ...; check --base-url and --model"),
        (302, r"HTTP 302 Found.*check --base-url"),
    ],
)
def test_wrong_keys_models_and_addresses_end_the_run(
    server: Stub, status: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    headers = {"Location": "http://127.0.0.1:1/"} if status == 302 else {}
    server.default = lambda body: (status, {"error": {"message": "bad key sk-secret"}, "headers": dict(headers)})
    with pytest.raises(UsageError, match=message) as caught:
        make(server)
    assert "sk-secret" not in str(caught.value)
    assert server.requests[0][0]["Authorization"] == "Bearer sk-secret"


def test_the_key_is_not_recorded(server: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    server.default = lambda body: (418, {"error": {"message": "key sk-secret is no teapot"}})
    server.replies.append(says("STOP"))
    run(make(server), tmp_path)
    assert "is no teapot" in str(read_rows(tmp_path)[0].reason)
    for file in tmp_path.iterdir():
        assert "sk-secret" not in file.read_text()


def test_auto_takes_text_where_a_schema_is_refused(server: Stub) -> None:
    server.default = lambda body: (
        (400, {"error": {"message": "response_format"}}) if "response_format" in body else says("STOP")
    )
    agent = make(server)
    assert agent.identity["answer_format"] == "text"
    assert walk(agent, 1) == [STOP]
    assert "separated by spaces, and nothing else" in server.texts()[0]
    with pytest.raises(UsageError, match=r"nobody answers: .*HTTP 400 Bad Request: response_format"):
        make(server, answer_format="schema")


def test_nobody_there_is_a_user_mistake() -> None:
    with pytest.raises(UsageError, match=r"nobody answers: http://127.0.0.1:1/v1/chat/completions: .*refused"):
        OpenAIAgent(OpenAIOptions(base_url="http://127.0.0.1:1/v1", model="tiny", retries=0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base_url": ""}, "agent 'openai' needs --base-url"),
        ({"model": ""}, "agent 'openai' needs --model"),
        ({"base_url": "127.0.0.1:8000/v1"}, "expected a URL, e.g. http"),
        ({"base_url": "file:///etc/passwd"}, "expected a URL, e.g. http"),
        ({"base_url": "http://me:sk-secret@host/v1"}, r"--base-url: expected no user, password or query"),
        ({"base_url": "http://host/v1?key=sk-secret"}, r"--base-url: expected no user, password or query"),
        ({"history": -1}, "--history -1: expected 0 or more"),
        ({"temperature": float("nan")}, "--temperature nan: expected 0 or more"),
        ({"image_quality": 96}, "--image-quality 96: expected 1 to 95"),
        ({"concurrency": 0}, "--concurrency 0: expected 1 or more"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        OpenAIAgent(OpenAIOptions(**{"base_url": "http://127.0.0.1:1/v1", "model": "tiny", **options}))
    assert "sk-secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{instructions}", r"unknown field \{instructions\}; known: instruction, step"),
        ("{instruction.__class__}", r"unknown field \{instruction.__class__\}"),
        ("{}", r"unknown field \{\}"),
        ("{step:03}", r"unknown field \{step\}"),
        ('{"actions": []}', "unknown field"),
        ("{instruction", "write {{ and }} for braces"),
    ],
)
def test_prompts_with_unknown_fields_are_refused(
    server: Stub, tmp_path: Path, template: str, message: str
) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text(template)
    with pytest.raises(UsageError, match=message):
        make(server, prompt=path)


def test_a_prompt_of_ones_own(server: Stub, tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text("{{{instruction}}} {max_actions} {turn_deg}")
    agent = make(server, prompt=path, turn_deg=30.0)
    walk(agent, 1)
    assert server.texts() == ["{Walk 4.0 meters ahead.} 4 30"]
    assert agent.expects == Conventions(forward_m=0.25, turn_deg=30.0)
    assert agent.identity["prompt"] != make(server).identity["prompt"]
    with pytest.raises(UsageError, match="cannot be read"):
        make(server, prompt=tmp_path / "none.txt")


def test_slots_are_asked_side_by_side_up_to_a_limit(server: Stub) -> None:
    agent = make(server, concurrency=3)
    server.delay_s = 0.1
    for slot in range(7):
        agent.reset(slot, episode(), slot)
    agent.act({slot: Observation("Go.", 0, rgb=RGB) for slot in range(7)})
    assert (len(server.requests), server.most) == (7, 3)


def test_sampling_has_seeds_that_follow_the_episodes(server: Stub) -> None:
    agent = make(server, temperature=0.7, actions_per_answer=1)
    walk(agent, 2)
    walk(agent, 2, slot=3)
    seeds = [body["seed"] for _, body in server.requests]
    assert seeds[:2] == seeds[2:]
    assert seeds[0] != seeds[1]


def test_history_is_spread_over_the_episode() -> None:
    assert spread(0, 4) == []
    assert spread(3, 4) == [0, 1, 2]
    assert spread(10, 4) == [0, 3, 6, 9]
    assert spread(10, 1) == [9]
    assert spread(10, 0) == []


def test_rows_are_the_same_behind_the_wire(server: Stub, tmp_path: Path) -> None:
    server.default = lambda body: says(
        "MOVE_FORWARD TURN_LEFT" if len(body["messages"][0]["content"]) < 5 else "STOP"
    )
    run(make(server), tmp_path / "local")
    with serving(make(server), "openai") as address:  # type: ignore[arg-type]
        client = connected(address)
        run(client, tmp_path / "remote")
        client.close()
    rows = [[replace(row, seconds={}) for row in read_rows(tmp_path / place)] for place in ("local", "remote")]
    assert rows[0] == rows[1]
    assert rows[0][0].report["requests"] > 1
    texts = [json.loads((tmp_path / place / "manifest.json").read_text()) for place in ("local", "remote")]
    assert texts[0]["identity"] == texts[1]["identity"]


def run(agent: Any, folder: Path) -> Summary:
    planned = make_plan(get_benchmark("houses-r2r"), make_set("set", 3), "openai", count=None, seed=0, repeats=1)
    return evaluate(planned, Inline(agent, PictureEnv()), folder)
