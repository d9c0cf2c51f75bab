"""What a turn asks of a GPU, in numbers: a regression shows as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from agents.common.decoders import cache
from agents.common.decoders.cache import TurnCache
from agents.common.decoders.generate import Generator
from agents.common.decoders.turns import Decoder
from agents.janusvln.network import Decoder as OfFrames
from agents.janusvln.network import Question as OfJanusVLN
from agents.qwen_vl.family import PRESETS
from agents.qwen_vl.network import Answerer, QwenVL, parse_config
from agents.qwen_vl.network import Question as OfQwen
from tests.agents.common.decoders.test_generate import LENGTHS, Ending, rounds
from tests.agents.janusvln import tiny as janusvln
from tests.agents.streamvln.test_decode import SETTINGS, play
from tests.agents.streamvln.tiny import tiny_model
from tests.cuda.pretended import CUDA, Device, pretended
from vlnbench.errors import UsageError

Asked = Callable[[], list[list[int]]]


def test_mixed_devices_are_refused_as_on_a_gpu() -> None:
    with pretended(), pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.zeros(3, device="cuda") + torch.zeros(3)


class Counted(Decoder):
    """Counts its passes, and what those that generate ask for."""

    passes = 0

    def __init__(self, device: Device, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._device, self.replayed = device, list[int]()

    def _replay(self, *passed: Any) -> Tensor:
        before = self._device.launches.total()
        scores = super()._replay(*passed)
        self.replayed.append(self._device.launches.total() - before)
        return scores

    def _keep(self, *passed: Any) -> None:
        self.passes += 1
        super()._keep(*passed)


def counted(layers: int, device: Device, graphs: bool = False) -> tuple[dict[str, float], list[list[list[int]]]]:
    """Per pass of the language model, in turns that feed and generate; and the answers."""
    model = tiny_model(num_hidden_layers=layers).to(CUDA)
    decoder = Counted(device, model, SETTINGS, max_new_tokens=8, graphs=graphs)
    for _ in range(1 + graphs):  # graphs are captured
        play(decoder, range(3))
    decoder.passes = 0
    decoder.replayed.clear()
    device.reset()
    answers = play(decoder, range(3))
    found = {
        "launches": device.launches,
        "down": device.down,
        "up": device.up,
        "waits": device.waits,
        "blocking": device.blocking,
    }
    totals = {name: counter.total() / decoder.passes for name, counter in found.items()}
    return {**totals, "replayed": max(decoder.replayed, default=0)}, answers


def test_layers_add_kernels_and_nothing_to_wait_for() -> None:
    with pretended() as device:
        (few, _), (many, _) = counted(2, device), counted(6, device)
    for kind in ("down", "up", "waits", "blocking"):
        assert abs(many[kind] - few[kind]) < 1, kind
    assert (many["launches"] - few["launches"]) / 4 <= 55  # SDPA is taken apart here
    assert max(few["down"], few["waits"], few["blocking"]) <= 1
    assert few["up"] <= 6


def test_a_pass_that_generates_is_one_launch_whatever_the_layers() -> None:
    """And what chooses the token: of it a graph knows nothing."""
    layers = (2, 3)
    plain = [play(Decoder(tiny_model(num_hidden_layers=n), SETTINGS, max_new_tokens=8), range(3)) for n in layers]
    with pretended() as device:
        found = [counted(n, device, graphs=True) for n in layers]
    for (asked, answers), expected in zip(found, plain, strict=True):
        assert answers == expected
        assert asked["replayed"] == 1
        assert asked["blocking"] <= 1
        assert asked["waits"] < 1


@pytest.mark.slow
def test_long_answers_have_room_and_rows_of_all_numbers_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """The room grows within a turn, which lets go of all graphs and keeps what was cached."""
    grown, grow = [], TurnCache._grow
    monkeypatch.setattr(cache, "SPARE", 1)
    monkeypatch.setattr(cache, "GPU_STEP", 16)
    monkeypatch.setattr(TurnCache, "_grow", lambda own, more: (grown.append(more), grow(own, more)))
    turns = (range(1), range(3), range(2))
    plain = Decoder(tiny_model(), SETTINGS, max_new_tokens=24)
    expected = [play(plain, slots, turns=2) for slots in turns]
    with pretended():
        decoder = Decoder(tiny_model().to(CUDA), SETTINGS, max_new_tokens=24, graphs=True)
        graphs = decoder._graphs
        assert graphs is not None
        assert [play(decoder, slots, turns=2) for slots in turns] == expected
        assert graphs._room is not None
        size = graphs._room.numel()
        assert [play(decoder, slots, turns=2) for slots in turns] == expected
        assert graphs._room.numel() == size
    assert grown


@pytest.mark.parametrize("graphs", [False, True])
def test_passes_are_made_only_for_answers_that_are_not_whole(graphs: bool) -> None:
    """Eight turns, four at once, of which one is long: chunks of four took 14 passes."""
    lengths = dict(enumerate(LENGTHS))
    plain = Ending(tiny_model(), SETTINGS, lengths=lengths, max_batch=4)
    expected = rounds(plain, range(len(LENGTHS)))
    with pretended() as device:
        decoder = Ending(tiny_model().to(CUDA), SETTINGS, lengths=lengths, max_batch=4, graphs=graphs)
        device.reset()
        assert rounds(decoder, range(len(LENGTHS))) == expected
        assert device.launches["graph"] == (len(decoder.passed) if graphs else 0)
        assert device.blocking.total() <= len(decoder.joined) + len(decoder.passed)
    assert (decoder.joined, decoder.passed) == (plain.joined, plain.passed)
    assert len(decoder.passed) <= max(LENGTHS) - 1 + 2, "turns that go on guess right"


def of_qwen(device: torch.device, layers: int, graphs: bool) -> Asked:
    """Answers every question of three episodes."""
    torch.manual_seed(1)
    model = QwenVL(parse_config({**PRESETS["qwen-vl-tiny"], "num_hidden_layers": layers}, "preset")).to(device)
    decoder = Answerer(model, SETTINGS, max_new_tokens=5, graphs=graphs)
    image = model.config.image_token
    frames = torch.arange(3 * 56 * 56 * 3).view(3, 56, 56, 3).remainder(251).to(torch.uint8)

    def asked() -> list[list[int]]:
        return decoder.run([OfQwen(i, [5, *[image] * (i + 1), 9], frames[: i + 1]) for i in range(3)])

    return asked


def of_janusvln(device: torch.device, layers: int, graphs: bool) -> Asked:
    """Looks at a frame of three episodes, and answers; episodes begin anew with every call."""
    model = janusvln.tiny_model(num_hidden_layers=layers).to(device)
    decoder = OfFrames(model, SETTINGS, max_new_tokens=5, graphs=graphs)
    frames = [janusvln.tiny_frames(1, seed=slot)[0].numpy() for slot in range(3)]

    def asked() -> list[list[int]]:
        for slot in range(3):
            decoder.begin(slot)
        decoder.see(dict(enumerate(frames)))
        return decoder.run([OfJanusVLN(slot, [7, janusvln.IMAGE, *range(slot), 9], [0]) for slot in range(3)])

    return asked


@pytest.mark.parametrize(("family", "looks"), [(of_qwen, 0), (of_janusvln, 1)])
def test_questions_ask_as_little_of_a_gpu(family: Any, looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of networks on Qwen2.5-VL: at most one blocking copy a pass, and with graphs one launch for each that
    generates. looks: further passes, over frames."""
    passes = 0
    keep = Generator._keep

    def counting(own: Generator, *passed: Any) -> None:
        nonlocal passes
        passes += 1
        keep(own, *passed)

    monkeypatch.setattr(Generator, "_keep", counting)
    found = {}
    for layers in (2, 4):
        expected = family(torch.device("cpu"), layers, False)()
        for graphs in (False, True):
            with pretended() as device:
                asked = family(CUDA, layers, graphs)
                assert asked() == expected
                device.reset()
                passes = 0
                assert asked() == expected
                assert device.blocking.total() <= passes + looks, device.blocking
                assert device.waits.total() == 0, device.waits
                assert device.launches["graph"] == (passes - 1 if graphs else 0)
                found[layers, graphs] = device.launches.total(), device.up.total(), passes
    (few, up, passes), (many, more_up, _) = found[2, False], found[4, False]
    assert up == more_up
    assert (many - few) / 2 / passes <= 60  # SDPA is taken apart here
    assert found[4, True][0] < many - (passes - 1) * 2 * 20, "passes that generate are single launches"


def test_graphs_are_refused_where_they_cannot_be() -> None:
    with pytest.raises(UsageError, match="--cuda-graphs cannot be used here: they need a CUDA device"):
        Decoder(tiny_model(), SETTINGS, graphs=True)
    with pretended(), pytest.raises(UsageError, match="they need --attn sdpa, not eager"):
        Decoder(tiny_model("eager").to(CUDA), SETTINGS, graphs=True)
