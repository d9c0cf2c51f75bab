"""How far a GPU's logits and tokens lie from the recordings of the original programs, and from the CPU's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agents.common.checkpoints.files import generation_settings
from agents.common.decoders import generate as decode
from agents.common.decoders.generate import Row
from agents.common.decoders.turns import Decoder, Turn
from agents.common.qwen2_5_vl.checkpoint import load_tokenizer
from agents.common.towers.siglip import network_input, resize
from agents.janusvln import network as janusvln
from agents.janusvln.agent import Prompts as JanusPrompts
from agents.janusvln.network import resize as resize_janusvln
from agents.navila import network as navila
from agents.navila.agent import BLACK
from agents.streamvln import network as checkpoint
from agents.streamvln.agent import PHRASES, Prompts
from agents.streamvln.network import StreamVLN
from agents.vlnce.network import Steps
from benchmarks.gpu_evidence.pieces import CannotRunError, Job
from tests.agents import recorded as records
from tests.agents.janusvln import test_decode as janusvln_replays
from tests.agents.navila import recordings as of_navila
from tests.agents.recorded import traces
from tests.agents.streamvln.frames import frame
from tests.agents.streamvln.recordings import RUNS
from tests.agents.streamvln.test_decode import replays
from tests.agents.uninavid import recordings as of_uninavid
from tests.agents.uninavid import test_recordings as uninavid_replays
from tests.agents.vlnce import formula
from tests.agents.vlnce.recordings import Recordings
from tests.cuda import test_agents as walks
from vlnbench.training.family.sources import shipped

ROOT = Path(__file__).parents[2]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
GRAPHS = ("streamvln-tiny", "navila", "uninavid")
POLICIES = ("cma_tiny", "seq2seq_tiny", "cma")
STEPS = 12
"""Steps of an episode of JanusVLN that are compared."""


def goldens(name: str) -> Path:
    """A folder of recordings, in the checkout or beside it. Raises CannotRunError where there is none."""
    for base in (ROOT, ROOT.parent):
        if (found := base / "shared" / "goldens" / name).is_dir():
            return found
    raise CannotRunError(f"no recordings: expected shared/goldens/{name} in the checkout or beside it")


@dataclass
class Differences:
    """Logits against what they should be, answer by answer."""

    largest: float = 0.0
    sizes: list[float] = field(default_factory=list)
    compared: int = 0
    same: int = 0

    def logits(self, found: Tensor, known: Any) -> None:
        """Two rows of logits."""
        wanted = torch.as_tensor(np.asarray(known), dtype=torch.float32)
        off = (found.detach().float().cpu() - wanted).abs()
        self.largest = max(self.largest, float(off.max()))
        self.sizes.append(float((off.square().mean() / wanted.square().mean()).sqrt()))

    def tokens(self, found: Sequence[int], known: Sequence[int]) -> None:
        """Chosen tokens, or actions."""
        self.compared += len(known)
        self.same += sum(a == b for a, b in zip(found, known, strict=False))

    def to_json(self) -> dict[str, float]:
        """largest: of all logits. relative: largest ‖found − known‖ / ‖known‖ of one answer's logits. Neither
        where actions alone were compared."""
        sizes = {"largest": self.largest, "relative": max(self.sizes)} if self.sizes else {}
        return {**sizes, "tokens": self.compared, "same": self.same}


class Told(Decoder):
    """Answers what it is told to, so that one wrong token does not spoil all after it; keeps what it would say."""

    told: Mapping[int, Sequence[int]] | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.logits: list[Tensor] = []
        self.chosen: list[int] = []

    def _choose(self, rows: Sequence[Row], logits: Tensor) -> list[list[int]]:
        (row,) = rows
        best = super()._choose(rows, logits)
        self.logits.append(logits[0, 0].float().cpu())
        self.chosen.append(best[0][0])
        return best if self.told is None else [[self.told[row.turn.slot][len(row.output)]]]

    def answer(self, turn: Turn, known: Sequence[int] | None = None) -> list[int]:
        """The answer to one turn; what is known of it is said, whatever would be."""
        self.logits, self.chosen = [], []
        self.told = None if known is None else {turn.slot: known}
        return self.run([turn])[0]


def run(job: Job) -> Mapping[str, Any]:
    """Compare, in float32 without TF32 and in bfloat16."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    found: dict[str, Any] = {}
    if job.case == "agents":
        for name in walks.PRESETS:
            found[f"{name}, float32"] = _acted(name, job).to_json()
            job.save(found)
        for name in GRAPHS if not job.toy else ():
            found[f"{name} with graphs, float32"] = _acted(name, job, cuda_graphs=True).to_json()
            job.save(found)
        return found
    decode.DRAFT = 0  # a pass for every token
    for name, dtype in DTYPES.items():
        if job.case != "vlnce" or name == "float32":  # these policies compute in float32 only
            found[name] = COMPARED[job.case](job, dtype).to_json()
            job.save(found)
    return found


def _acted(name: str, job: Job, **more: Any) -> Differences:
    """Actions of a small agent on the GPU, against those on the CPU."""
    found = Differences()
    with TemporaryDirectory() as folder:
        made = [walks.make(name, Path(folder), "cpu"), walks.make(name, Path(folder), job.device, **more)]
        known, there = (walks.walk(agent) for agent in made)
    for before, after in zip(known, there, strict=False):
        found.tokens(
            [int(after[slot]) if slot in after else -1 for slot in before], list(map(int, before.values()))
        )
    return found


def _shipped(job: Job, dtype: torch.dtype) -> Differences:
    """The model that comes with vlnbench, against itself on the CPU in float32."""
    folder = shipped()["streamvln-tiny"]
    settings, prompts = generation_settings(folder), Prompts(checkpoint.load_tokenizer(folder))
    here = Told(checkpoint.load(folder), settings, max_new_tokens=24)
    there = Told(checkpoint.load(folder, device=job.device, dtype=dtype), settings, max_new_tokens=24)
    found = Differences()
    answer: list[int] = []
    for number in range(16):
        size = here.model.config.vision.image_size
        memory = number == 8
        images = network_input([resize(frame(3, 0, number - k), size) for k in range(8 * memory, -1, -1)])
        opens, phrase = number % 8 == 0, PHRASES[number % len(PHRASES)]
        ids = (
            prompts.opening("Go to the red chair.", phrase, memory=memory)
            if opens
            else prompts.following(answer, phrase)
        )
        turn = Turn(0, ids, images, opens)
        answer = here.answer(turn)
        there.answer(turn, answer)
        for ours, known in zip(there.logits, here.logits, strict=True):
            found.logits(ours, known)
        found.tokens(there.chosen, answer)
    return found


def _streamvln(job: Job, dtype: torch.dtype) -> Differences:
    """Recorded turns of the original StreamVLN."""
    folder = goldens("streamvln")
    model = checkpoint.load(
        folder / "checkpoint", vision_tower=folder / "vision_tower", device=job.device, dtype=dtype
    )
    found = Differences()
    with np.load(folder / "traces.npz") as arrays:
        for run in RUNS[:2] if job.toy else RUNS:
            first, fourth = arrays[f"{run}/logits_first"], arrays[f"{run}/logits_pos3"]
            for told, turn in _recorded_turns(folder, run, model):
                found.logits(told.logits[0], first[turn["npz_row"]])
                found.logits(told.logits[min(3, len(told.logits) - 1)], fourth[turn["npz_row"]])
                found.tokens(told.chosen, turn["output_ids"])
    return found


def _recorded_turns(folder: Path, run: str, model: StreamVLN) -> Iterator[tuple[Told, dict[str, Any]]]:
    (known,) = (entry for entry in traces(folder)["runs"] if entry["name"] == run)
    told = Told(
        model, generation_settings(folder / "checkpoint"), max_new_tokens=known["settings"]["max_new_tokens"]
    )
    for replay in replays(folder, run):
        for turn in replay.turns:
            replay.answers.append(told.answer(replay.next(0), turn["output_ids"]))
            yield told, turn


def _janusvln(job: Job, dtype: torch.dtype) -> Differences:
    """Recorded steps of the original JanusVLN."""
    folder = goldens("janusvln")
    model = janusvln.load(folder / "checkpoint", device=job.device, dtype=dtype)
    prompts = JanusPrompts(load_tokenizer(folder / "checkpoint", model.config))
    found = Differences()
    for run in records.recorded(folder, "main"):
        decoder = janusvln_replays.make(folder, model, prompts, run)
        replay = janusvln_replays.Replay(folder, "main", run, decoder, prompts)
        decoder.begin(0)
        for step in run.steps[: 2 if job.toy else STEPS]:
            decoder.logits = {}
            decoder.see({0: resize_janusvln(run.rgb(step["step"]))})
            (answer,) = decoder.run([replay.question(0, step)])
            found.logits(decoder.logits[0][0], replay.first[step["npz_row"]])
            found.tokens(answer, step["generated_ids"])
    return found


def _navila(job: Job, dtype: torch.dtype) -> Differences:
    """Recorded answers of the original NaVILA, read in one pass each."""
    folder = goldens("navila")
    model = navila.load(folder / "checkpoint", device=job.device, dtype=dtype)
    recorded, arrays = records.run(folder, "main"), records.arrays(folder)
    found = Differences()
    for step in recorded["steps"][:: 6 if job.toy else 1]:
        each, answer = recorded["episodes"][step["episode"]], step["generated_ids"]
        frames = [
            np.zeros((384, 384, 3), np.uint8)
            if index == BLACK
            else resize(of_navila.frame(each["frame_seed"], each["frame_episode"], index), 384)
            for index in step["frame_indices"]
        ]
        ids, labels = [*records.whole(step["input_ids_rle"]), *answer], [-100] * step["input_len"] + answer
        with torch.no_grad():
            logits = model([ids], [network_input(frames)], [labels], at_labels=True).logits
        for place, name in ((0, "first"), (-1, "last")):
            found.logits(logits[place], arrays[f"main/logits_{name}"][step["npz_row"]])
        found.tokens(logits.argmax(-1).tolist(), answer)
    return found


def _uninavid(job: Job, dtype: torch.dtype) -> Differences:
    """Recorded answers of the original Uni-NaVid, whose walks are repeated."""
    folder = goldens("uninavid")
    recorded, arrays = records.run(folder, "main"), records.arrays(folder)
    if job.toy:
        recorded = {**recorded, "episodes": recorded["episodes"][:1]}
    with TemporaryDirectory() as made:
        checkpoint_folder = of_uninavid.tiny_folder(folder, Path(made) / "folder")
        device = {"device": job.device, "dtype": str(dtype).removeprefix("torch.")}
        agent = uninavid_replays.agent_of(folder, checkpoint_folder, **device)
        asked = agent._answers = uninavid_replays.Asked(agent._answers)
        uninavid_replays.follow(agent, recorded)
    calls = [call for slot in sorted(asked.calls) for call in asked.calls[slot]]
    found = Differences()
    for row, (step, call) in enumerate(zip(recorded["calls"], calls, strict=False)):
        found.logits(call["logits"][0], arrays["main/logits_first"][row])
        found.tokens(call["answer"], step["generated_ids"])
    return found


def _vlnce(job: Job, dtype: torch.dtype) -> Differences:
    """Recorded steps of VLN-CE's policies; actions in the place of tokens."""
    recorded, device = Recordings(goldens("vlnce_cma")), torch.device(job.device)
    found = Differences()
    for name in POLICIES[: 2 if job.toy else None]:
        policy = recorded.model(name).to(device)
        states = policy.new_states(2).to(device)
        for step in recorded.steps(name):
            seen = [_stacked(of, step["frames"], device) for of in (formula.rgb, formula.depth)]
            with torch.no_grad():
                encoded = policy.read(recorded.words(name, step["instructions"]).to(device))
                before = torch.tensor(step["prev_action_in"], device=device)
                masks = torch.tensor(step["mask"], dtype=torch.bool, device=device)
                decided = policy(Steps(encoded, *policy.see(*seen), before, masks), states)
            states = decided.states
            found.logits(decided.logits, step["logits"])
            found.tokens(decided.logits.argmax(1).tolist(), step["greedy_action"])
    return found


def _stacked(of: Any, frames: Sequence[str], device: torch.device) -> Tensor:
    arrays: list[NDArray[Any]] = [of(name) for name in frames]
    return torch.from_numpy(np.stack(arrays)).to(device)


COMPARED: Mapping[str, Callable[[Job, torch.dtype], Differences]] = {
    "streamvln-tiny": _shipped,
    "streamvln": _streamvln,
    "janusvln": _janusvln,
    "navila": _navila,
    "uninavid": _uninavid,
    "vlnce": _vlnce,
}
