"""Plans of agents at work: against the real tensors of small networks, and what would make a large one fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agents.common.decoders import cache as cache_of_turns
from agents.common.qwen2_5_vl.decode import reading
from agents.common.qwen2_5_vl.image import fitting, grid_of
from agents.common.qwen2_5_vl.language import expand
from agents.common.towers.vggt import FrameCache
from agents.janusvln.network import look
from agents.janusvln.options import JanusVLNInference
from agents.qwen_vl.family import PRESETS
from agents.qwen_vl.network import QwenVL, parse_config
from agents.qwen_vl.options import QwenVLInference
from agents.streamvln.options import StreamVLNInference
from tests.agents.janusvln.tiny import tiny_frames, write_tiny
from tests.docs.pages import document
from tests.training.memory.cards import AGENTS, acting_table
from vlnbench.cli import main
from vlnbench.errors import UsageError
from vlnbench.training.family.find import find_family
from vlnbench.training.memory.inference import SIMULATOR_BYTES, format_inference, plan_inference, remedies
from vlnbench.training.memory.plan import GB, parse_gpus
from vlnbench.training.memory.tracker import LiveMemory

SMALL = JanusVLNInference(
    model="preset:janusvln-tiny", dtype="fp32", text_tokens=40, first_frames=2, recent_frames=3, simulators=0
)


def test_caches_and_passes_are_those_of_the_real_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The small network runs for real on the CPU, an episode that is long enough for frames to be let go."""
    monkeypatch.setattr(cache_of_turns, "GPU_STEP", cache_of_turns.STEP)
    model = write_tiny(tmp_path / "tiny")
    options = replace(SMALL, model=str(tmp_path / "tiny"), image_width=140)
    planned = plan_inference(options)
    assert planned.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert planned.weights == 4 * planned.parameters
    cache = FrameCache(2, 3)
    with torch.no_grad():
        for number in range(8):
            frame = tiny_frames(1, 112, 140, seed=number)
            with LiveMemory() as memory:
                look(model, frame, [cache])
    assert sum(planned.caches.values()) == cache.bytes
    assert planned.passes["looking at a frame"] == pytest.approx(memory.peak, rel=0.1)
    grid, images = grid_of(112, 140), 9
    rows = [expand([0] * 40 + [model.config.image_token] * images, [grid] * images, model.config.image_token)]
    with torch.no_grad(), LiveMemory() as memory:
        reading(model, rows, torch.zeros(images * grid.cells, 16))
    assert planned.passes["reading a question"] == pytest.approx(memory.peak, rel=0.1)


def test_a_question_of_qwen_is_that_of_the_real_network() -> None:
    """Nothing is kept between questions; their frames are looked at anew."""
    options = QwenVLInference(model="preset:qwen-vl-tiny", dtype="fp32", text_tokens=40, max_pixels=50_000)
    planned = plan_inference(options)
    model = QwenVL(parse_config(PRESETS["qwen-vl-tiny"], "preset")).eval()
    assert planned.weights == sum(4 * parameter.numel() for parameter in model.parameters())
    assert not planned.caches
    height, width = fitting(480, 640, 50_000)
    rows = [
        expand([0] * 40 + [model.config.image_token] * 5, [grid_of(height, width)] * 5, model.config.image_token)
    ]
    frames = tiny_frames(5, height, width)
    with torch.no_grad(), LiveMemory() as memory:
        reading(model, rows, model.images(frames))
    assert planned.activations == pytest.approx(memory.peak, rel=0.1)
    assert plan_inference(replace(options, history=2)).activations < 0.7 * planned.activations
    with pytest.raises(UsageError, match="--history -1: expected 0 or more"):
        plan_inference(replace(options, history=-1))


def test_episodes_and_simulators_add_up() -> None:
    one = plan_inference(SMALL)
    three = plan_inference(replace(SMALL, max_batch=3, simulators=2))
    assert sum(three.caches.values()) == 3 * sum(one.caches.values())
    assert three.passes["looking at a frame"] > 2 * one.passes["looking at a frame"]
    assert three.weights == one.weights
    assert three.simulators == 2 * SIMULATOR_BYTES


def test_what_is_wrong_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="--max-batch 0: expected 1 or more"):
        plan_inference(replace(SMALL, max_batch=0))
    with pytest.raises(UsageError, match="--image-width 100: expected a multiple of 28"):
        plan_inference(replace(SMALL, image_width=100))
    with pytest.raises(UsageError, match="is of the family janusvln, the options are not"):
        plan_inference(StreamVLNInference(model="preset:janusvln-tiny"))
    assert main(["plan", "--inference", "--agent", "blind"]) == 2
    assert main(["plan", "--inference", "--family", "vlnce"]) == 2
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "vlnbench: error: --agent blind: loads no checkpoint of a family; give --family or --model"
    assert told[1] == "vlnbench: error: family 'vlnce': what acting needs cannot be planned"


def test_the_command_plans_an_agent(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--inference", "--agent", "streamvln", "--model", "streamvln-tiny"]) == 0
    told = capsys.readouterr().out
    assert "streamvln-tiny: 1.4 M parameters acting in bf16, 1 episode at once" in told
    assert "fits" in told
    assert "has not been compared with a GPU yet" in told
    assert main(["plan", "--inference", "--agent", "qwen_vl", "--model", "preset:qwen-vl-tiny"]) == 0
    assert "reading a question with its frames" in capsys.readouterr().out


@pytest.mark.slow
def test_the_published_janusvln_needs_less_of_its_memory_for_24_gb() -> None:
    """Beside the figure that a reproduction of the published code reports: 27.3 GB, without context."""
    planned = plan_inference(JanusVLNInference(gpus="1x24GB"))
    assert planned.weights == 2 * 9_314_832_390
    assert planned.allocated / GB == pytest.approx(27.3, rel=0.05)
    assert planned.fits == "no"
    found = remedies(planned, find_family("", planned.request.model, "--model"))
    assert all(each.plan.fits == "yes" for each in found)
    assert "--recent-frames" in format_inference(planned, found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "parameters"), [("qwen2.5-vl-3b", 3_754_622_976), ("qwen2.5-vl-7b", 8_292_166_656)]
)
def test_the_published_qwen_fits_on_24_gb(model: str, parameters: int) -> None:
    planned = plan_inference(QwenVLInference(model=model))
    assert planned.weights == 2 * parameters
    assert planned.fits == "yes"
    assert planned.copies == {"qwen2.5-vl-3b": 2, "qwen2.5-vl-7b": 1}[model]
    two = format_inference(replace(planned, gpus=parse_gpus("2x80GB")))
    expected = {"qwen2.5-vl-3b": "up to 7 on every GPU", "qwen2.5-vl-7b": "up to 4 on every GPU"}[model]
    assert expected in two


@pytest.mark.slow
def test_the_page_on_memory_shows_how_many_episodes_fit() -> None:
    page = document("planned_memory.md").read_text(encoding="utf-8")
    lines = acting_table().splitlines()[2:]
    assert len(lines) == len(AGENTS)
    for line in lines:
        cells = (cell.strip() for cell in line.strip("|").split("|"))
        assert f"| {' | '.join(cells)} |\n" in page
