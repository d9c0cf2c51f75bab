"""The agents: one recurrent state per slot, whatever the batch; R2R's tokens and RxR's features."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agents.common.prompts.words import TextFeatures
from agents.common.sight.options import Views
from agents.common.sight.rgbd import frames
from agents.vlnce.agent import CMAAgent, Seq2SeqAgent, VLNCEAgent
from agents.vlnce.options import VLNCEOptions
from tests.agents.vlnce import formula, released
from tests.agents.vlnce.test_policy import CMA, SEQ2SEQ
from vlnbench.conformance import AgentConformance
from vlnbench.data.benchmarks import BENCHMARKS
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Agent, Episode, Observation
from vlnbench.traits import MadeOf, TimesBatches

AGENTS: dict[str, type[VLNCEAgent]] = {"cma": CMAAgent, "seq2seq": Seq2SeqAgent}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small checkpoints, and the features of two RxR instructions."""
    folder = tmp_path_factory.mktemp("vlnce")
    released.write_tiny(folder / "cma.pth")
    released.write_tiny(folder / "seq2seq.pth", "seq2seq")
    released.write_tiny(folder / "rxr.pth", rxr=True)
    (folder / "features/rxr_val_unseen").mkdir(parents=True)
    for number, (name, rows) in enumerate({"r0": 23, "r1": 61}.items()):
        path = folder / f"features/rxr_val_unseen/{number:06}_en_text_features.npz"
        np.savez(path, tokens=np.ones((rows, 1)), features=formula.rxr_features(name, rows)[:rows])
    return folder


def make(folder: Path, name: str, **options: Any) -> VLNCEAgent:
    agent = AGENTS["seq2seq" if name == "seq2seq" else "cma"]
    return agent(VLNCEOptions(checkpoint=folder / f"{name}.pth", device="cpu", **options))


def told(i: int, length: int) -> Episode:
    """An episode with the made tokens of the recordings."""
    numbers = (1 + formula.draw(f"tokens/tiny{i}", length) % 39).tolist()
    tokens = (*numbers, *([0] * (200 - length)))
    return Episode(str(i), "1", "scene.glb", (0, 0, 0), (0, 0, 0, 1), "Walk.", instruction_tokens=tokens)


def seen(name: str, step: int) -> Observation:
    """A made frame of the recordings, depth in meters."""
    frame = f"{name}/{step}"
    return Observation("Walk.", step, rgb=formula.rgb(frame), depth=formula.depth(frame) * 10)


class Conformance(AgentConformance):
    name: str

    @pytest.fixture(autouse=True)
    def _files(self, folder: Path) -> None:
        self.folder = folder

    def make_agent(self) -> Agent:
        return make(self.folder, self.name)

    def make_episode(self) -> Episode:
        return told(0, 17)

    def observe(self, agent: Agent, step: int) -> Observation:
        return seen("ep0", step)


class TestCMA(Conformance):
    name = "cma"


class TestSeq2Seq(Conformance):
    name = "seq2seq"


@pytest.mark.parametrize(("name", "recorded"), [("cma", CMA), ("seq2seq", SEQ2SEQ)])
@pytest.mark.parametrize("slots", [(0, 1), (5, 2)])
@pytest.mark.parametrize("max_batch", [1, 2])
def test_the_recorded_actions_whatever_the_batch(
    folder: Path, name: str, recorded: list[Any], slots: Sequence[int], max_batch: int
) -> None:
    expected = np.argmax(recorded, axis=2)
    with closing(make(folder, name, max_batch=max_batch)) as agent:
        for i, length in enumerate((17, 30)):
            agent.reset(slots[i], told(i, length), seed=i)
        for step in range(6):
            order = [0, 1] if step % 2 else [1, 0]
            actions = agent.act({slots[i]: seen(f"ep{i}", step) for i in order})
            assert [actions[slots[i]] for i in (0, 1)] == expected[step].tolist()


def test_a_slot_that_joins_late_is_a_slot_of_its_own(folder: Path) -> None:
    with closing(make(folder, "cma")) as agent:
        agent.reset(0, told(0, 17), 0)
        first = [agent.act({0: seen("ep0", step)})[0] for step in range(2)]
        agent.reset(1, told(1, 30), 0)
        both = [agent.act({1: seen("ep1", step), 0: seen("ep0", step + 2)}) for step in range(3)]
        expected = np.argmax(CMA, axis=2)
        assert [*first, *(actions[0] for actions in both)] == expected[:5, 0].tolist()
        assert [actions[1] for actions in both] == expected[:3, 1].tolist()
        agent.reset(0, told(1, 30), 0)
        assert agent.act({0: seen("ep1", 0)})[0] == expected[0, 1]


def test_it_fits_the_benchmark_it_was_trained_for_and_no_other(folder: Path) -> None:
    for name, fitting in (("cma", "r2r-vlnce"), ("seq2seq", "r2r-vlnce"), ("rxr", "rxr-habitat")):
        options = {"text_features": folder / "features"} if name == "rxr" else {}
        with closing(make(folder, name, **options)) as agent:
            bodies = {benchmark.name: benchmark.body for benchmark in BENCHMARKS.values()}
            assert [key for key, body in bodies.items() if not agent.expects.conflicts(body)] == [fitting]


def test_what_decides_answers_is_in_the_identity(folder: Path) -> None:
    with closing(make(folder, "cma")) as one, closing(make(folder, "cma", max_batch=1)) as other:
        assert one.identity == other.identity
        assert one.identity["actions"] == "greedy"
        assert "0.2 M parameters, 4 actions, greedy; float32 on cpu" in one.description
    with closing(make(folder, "seq2seq")) as other:
        assert one.identity["checkpoint"] != other.identity["checkpoint"]


@pytest.mark.parametrize(
    ("kind", "options", "line"),
    [
        ("cma", {"checkpoint": None}, "agent 'vlnce-cma' needs a trained model"),
        ("cma", {"checkpoint": "seq2seq.pth"}, "use --agent vlnce-seq2seq"),
        ("seq2seq", {"checkpoint": "cma.pth"}, "use --agent vlnce-cma"),
        ("cma", {"device": "tpu"}, "--device tpu: expected auto, cpu, cuda or cuda:N"),
        ("cma", {"text_features": "features"}, "reads tokens of R2R; leave the option out"),
        ("cma", {"checkpoint": "rxr.pth"}, "reads the BERT features of RxR's instructions: name their folder"),
        ("cma", {"checkpoint": "rxr.pth", "text_features": "none"}, "none: no such folder; expected RxR_VLNCE_v0"),
    ],
)
def test_options_that_do_not_fit(folder: Path, kind: str, options: dict[str, Any], line: str) -> None:
    paths = {
        name: folder / value if value is not None else None
        for name, value in ({"checkpoint": f"{kind}.pth"} | options).items()
        if name in ("checkpoint", "text_features")
    }
    with pytest.raises(UsageError, match=line):
        AGENTS[kind](VLNCEOptions(**{"device": "cpu", **options, **paths}))


@pytest.mark.parametrize("tokens", [(), (1, 2, 3), (*([1] * 199), 40)])
def test_words_of_another_vocabulary(folder: Path, tokens: tuple[int, ...]) -> None:
    with closing(make(folder, "cma")) as agent, pytest.raises(UsageError, match="others number words"):
        agent.reset(0, replace(told(0, 17), instruction_tokens=tokens), 0)


def test_frames_of_another_size(folder: Path) -> None:
    with closing(make(folder, "cma")) as agent:
        agent.reset(0, told(0, 17), 0)
        good = seen("ep0", 0)
        with pytest.raises(UsageError, match="depth frames are 224x224, the checkpoint was trained with 256x256"):
            agent.act({0: replace(good, depth=np.zeros((224, 224), np.float32))})
        with pytest.raises(UsageError, match="RGB frames are 640x480"):
            agent.act({0: replace(good, rgb=np.zeros((480, 640, 3), np.uint8))})


def test_depth_is_a_part_of_the_range() -> None:
    """Checked by itself, for a wrong unit hardly shows in the actions: a norm follows the first convolution."""
    views = Views((2, 2), (1, 4), (0.5, 5.0))
    rgb = np.zeros((2, 2, 3), np.uint8)
    _, depth = frames(Observation("", 0, rgb=rgb, depth=np.array([[0.0, 0.5, 2.75, 9.0]], np.float32)), views)
    np.testing.assert_allclose(depth, [[0.0, 0.0, 0.5, 1.0]])
    assert depth.dtype == torch.float32


def test_frames_of_rxr_are_scaled_and_cut() -> None:
    """640x480 to a shorter side of 256 is 341x256; the middle 224x224 of RGB and 256x256 of depth go in."""
    views = Views((480, 640), (480, 640), (0.5, 5.0), shortest_edge=256)
    y, x = np.mgrid[:480, :640].astype(np.float32)
    rgb = np.stack([x / 640 * 255, y / 480 * 255, np.full_like(x, 9.9)], axis=2).astype(np.uint8)
    image, depth = frames(Observation("", 0, rgb=rgb, depth=0.5 + 4.5 * x / 640), views)
    assert (image.shape, image.dtype) == ((224, 224, 3), torch.uint8)
    assert depth.shape == (256, 256)
    columns = (np.arange(341) + 0.5) / 341
    np.testing.assert_allclose(depth[0], columns[42 : 42 + 256], atol=3e-3)
    np.testing.assert_allclose(image[0, :, 0], columns[58 : 58 + 224] * 255, atol=2)
    np.testing.assert_allclose(image[:, 0, 1], (np.arange(16, 240) + 0.5) / 256 * 255, atol=2)
    assert (image[..., 2] == 9).all()


def rxr_episode(number: int) -> Episode:
    return replace(told(0, 17), instruction_tokens=(), instruction_id=str(number), language="en-IN")


def rxr_seen(step: int) -> Observation:
    rgb = np.kron(formula.rgb(f"ep0/{step}")[:160, :213], np.ones((3, 3, 1), np.uint8))
    depth = np.kron(formula.depth(f"ep0/{step}")[:160, :213], np.ones((3, 3), np.float32)) * 5
    wide = ((0, 0), (0, 1))
    return Observation("Walk.", step, rgb=np.pad(rgb, (*wide, (0, 0))), depth=np.pad(depth, wide))


def test_rxr_samples_with_the_episodes_seed(folder: Path) -> None:
    with closing(make(folder, "rxr", text_features=folder / "features")) as agent:
        assert agent.identity["actions"] == "sampled"
        assert "6 actions" in agent.description
        runs = []
        for slots, seed in (((0,), 1), ((0, 1), 1), ((1,), 2)):
            for slot in slots:
                agent.reset(slot, rxr_episode(slot % 2 if len(slots) > 1 else 0), seed)
            actions = [agent.act({slot: rxr_seen(step) for slot in slots})[slots[0]] for step in range(6)]
            runs.append(actions)
        assert runs[0] == runs[1] != runs[2]
        assert set(runs[0]) <= set(Action)


def test_features_are_read_from_the_split_or_from_all(folder: Path) -> None:
    expected = formula.rxr_features("r1", 61)[:61]
    for place in (folder / "features", folder / "features/rxr_val_unseen"):
        np.testing.assert_array_equal(TextFeatures(place).of(rxr_episode(1)), expected)
    with pytest.raises(UsageError, match=r"000007_en_text_features\.npz is missing there"):
        TextFeatures(folder / "features").of(rxr_episode(7))
    with pytest.raises(UsageError, match="has no instruction_id"):
        TextFeatures(folder / "features").of(told(0, 17))


def claimed(path: Path) -> None:
    """A header that promises more than any instruction has."""
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776, 768), }"
    header += b" " * (118 - 1 - len(header)) + b"\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("features.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)


@pytest.mark.parametrize(
    ("write", "line"),
    [
        (lambda path: path.write_bytes(b"nothing"), "cannot be read"),
        (lambda path: np.savez(path, tokens=np.ones(3)), "features.npy"),
        (lambda path: np.savez(path, features=np.ones((3, 700), np.float32)), r"found \[3, 700\]"),
        (lambda path: np.savez(path, features=np.ones((513, 768), np.float32)), r"found \[513, 768\]"),
        (lambda path: np.savez(path, features=np.ones((3, 768), np.int64)), "floating-point"),
        (lambda path: np.savez(path, features=np.full((3, 768), np.nan, np.float32)), "not finite"),
        (lambda path: np.savez(path, features=np.array([[None]])), "cannot be read"),
        (claimed, r"found \[1099511627776, 768\]"),
    ],
)
def test_damaged_features(tmp_path: Path, write: Any, line: str) -> None:
    write(tmp_path / "000003_en_text_features.npz")
    with pytest.raises(UsageError, match=line):
        TextFeatures(tmp_path).of(rxr_episode(3))


@pytest.mark.parametrize("name", ["cma", "seq2seq", "rxr"])
def test_an_agent_is_timed_and_names_its_files(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(rehearse: Callable[[int], object]) -> dict[int, float]:
        rehearse(4)
        return {1: 0.1, 4: 0.2}

    monkeypatch.setattr("agents.vlnce.agent.measured", timed)
    features = {"text_features": folder / "features"} if name == "rxr" else {}
    with closing(make(folder, name, **features)) as agent:
        assert isinstance(agent, MadeOf)
        assert isinstance(agent, TimesBatches)
        assert (agent.files, agent.batch_seconds) == ((folder / f"{name}.pth",), {1: 0.1, 4: 0.2})
    with closing(make(folder, name, max_batch=4, **features)) as agent:
        assert agent.batch_seconds == {}
