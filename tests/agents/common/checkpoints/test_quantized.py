"""Weights in few bits: every family's small agent loads, acts and says so; a plan counts what is kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from agents.common.checkpoints import quantized
from agents.streamvln.options import StreamVLNInference
from agents.vlnce.options import FAMILY as VLNCE
from tests.cuda.test_agents import PRESETS, make, walk
from vlnbench.cli import main
from vlnbench.errors import UsageError
from vlnbench.rollout.agents import load_agent
from vlnbench.training.memory.inference import plan_inference

FAMILIES = [name for name in PRESETS if name not in ("cma-tiny", "seq2seq-tiny")]
LIMITS = {"int8": 0.03, "nf4": 0.2}
"""Relative error of a product with random weights; what the formats allow is about a fifth of each."""

needs_library = pytest.mark.needs("bitsandbytes")


class Blocks(nn.Module):
    """Named as language models are."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.layers = nn.ModuleList([nn.ModuleDict({"up": nn.Linear(256, 128)})])
        self.lm_head = nn.Linear(128, 32)


@needs_library
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", LIMITS)
def test_layers_compute_about_as_well_in_less_memory(kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    plain, x = nn.Linear(256, 128).to(dtype), torch.randn(3, 5, 256, dtype=dtype)
    made = quantized.quantize(plain, plain.weight.detach(), kind, torch.device("cpu")).eval()
    with torch.inference_mode():
        wanted, found = plain(x), made(x)
    assert found.shape == wanted.shape
    assert found.dtype == dtype
    assert 0 < float((found - wanted).norm() / wanted.norm()) < LIMITS[kind]
    assert made.weight.nbytes == {"int8": 1, "nf4": 0.5}[kind] * 256 * 128
    assert quantized.elements(made.weight) == 256 * 128
    assert quantized.is_quantized(made)
    assert not quantized.is_quantized(plain)


def test_only_blocks_of_language_models_are_taken() -> None:
    network = Blocks()
    taken = [name for name, each in network.named_modules() if quantized.is_taken(name, each)]
    assert taken == ["model.layers.0.up"]


@needs_library
@pytest.mark.parametrize("kind", LIMITS)
def test_a_plan_counts_what_is_kept(kind: str) -> None:
    network = Blocks().to(torch.bfloat16)
    up: Any = network.get_submodule("model.layers.0.up")
    made: Any = quantized.quantize(up, up.weight.detach(), kind, torch.device("cpu"))
    held = [made.weight, made.bias, made.weight.SCB if kind == "int8" else made.weight.quant_state.absmax]
    code = 0 if kind == "int8" else made.weight.quant_state.code.nbytes
    quantized.plan(network, kind)
    planned = network.get_submodule("model.layers.0.up")
    assert sum(each.nbytes for each in planned.parameters()) == sum(each.nbytes for each in held) + code


@needs_library
@pytest.mark.slow
@pytest.mark.parametrize("kind", LIMITS)
@pytest.mark.parametrize("name", FAMILIES)
def test_agents_act_with_weights_in_few_bits(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def counted(*arguments: Any) -> Any:
        made.append(quantize(*arguments))
        return made[-1]

    quantize = quantized.quantize
    monkeypatch.setattr(quantized, "quantize", counted)
    plain = make(name, tmp_path, "cpu")
    options = replace(plain.options_type(), device="cpu", max_batch=3, dtype="float32", max_new_tokens=6)
    if PRESETS[name]:
        options = replace(options, checkpoint=tmp_path / "base")
    agent = load_agent(name, replace(options, quantize=kind))
    assert {**agent.identity, "quantize": kind} == agent.identity
    assert "quantize" not in plain.identity
    assert {each: agent.identity[each] for each in plain.identity} == plain.identity
    parameters = [each.description.split(" M parameters")[0] for each in (plain, agent)]
    assert parameters[0] == parameters[1]
    assert made
    assert len(made) % 7 == 0  # four projections of attention, three of the gated network in every block
    assert walk(agent)
    assert not any(each.training for each in made)


def test_without_the_library_it_is_refused_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("vlnbench.errors.find_spec", lambda name: None)
    monkeypatch.chdir(tmp_path)
    assert main(["eval", "--agent", "streamvln-tiny", "--quantize", "nf4", "--episodes", "1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "bitsandbytes is not installed: run `pip install 'vlnbench[gpu]'`" in line
    assert not (tmp_path / "runs").exists()


def test_few_bits_leave_the_published_size_room_on_24_gb() -> None:
    one = StreamVLNInference(model="streamvln-8b")
    plain, eight, four = (plan_inference(replace(one, quantize=kind)) for kind in (None, "int8", "nf4"))
    assert plain.parameters == eight.parameters == four.parameters
    blocks = 2 * (plain.weights - eight.weights)  # of two bytes each, one is saved, but for scales
    assert 0.8 * plain.weights < blocks < plain.weights
    assert four.weights == pytest.approx(plain.weights - blocks * (1 - 4.5 / 16), rel=0.01)
    assert four.peak < eight.peak < plain.peak
    with pytest.raises(UsageError, match="agents of this family do not keep weights in fewer bits"):
        VLNCE.load_plans().quantized(None, "int8")
