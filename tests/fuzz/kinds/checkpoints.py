"""Checkpoints: configs, weights in safetensors and pickles, tokenizers, and VLN-CE's `.pth` files."""

from __future__ import annotations

import io
import json
import os
import pickle
import pickletools
import struct
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import save_file

from agents.common.checkpoints import weights
from agents.common.checkpoints.files import generation_settings
from agents.common.decoders.windows import Windows
from agents.common.qwen2_5_vl.checkpoint import load_tokenizer
from agents.common.qwen2_5_vl.tokens import generation_settings as qwen_settings
from agents.common.sight.options import Views
from agents.janusvln import network as janusvln
from agents.janusvln.network import read_config as janusvln_config
from agents.navila import family as navila_family
from agents.navila import options as navila_options
from agents.navila.agent import NaVILAAgent
from agents.qwen_vl import family as qwen_family
from agents.qwen_vl.agent import QwenVLAgent
from agents.qwen_vl.options import QwenVLOptions
from agents.streamvln import network as streamvln
from agents.streamvln.network import read_config as streamvln_config
from agents.streamvln.options import recognizes
from agents.uninavid import family as uninavid_family
from agents.uninavid import options as uninavid_options
from agents.uninavid.agent import UniNaVidAgent
from agents.vlnce.checkpoint import load, save_folder
from agents.vlnce.network import Policy
from agents.vlnce.options import Config, NetworkConfig
from agents.vlnce.options import recognizes as recognizes_vlnce
from tests.agents.janusvln import tiny as tiny_janusvln
from tests.agents.streamvln import tiny as tiny_streamvln
from tests.agents.vlnce.released import write_tiny
from tests.fuzz.judge import Builder
from tests.fuzz.values import change_bytes, changed_bytes, changed_json
from vlnbench.interfaces import Conventions

CONFIG, SINGLE, PICKLED = "config.json", "model.safetensors", "pytorch_model.bin"
RELEASED = "cma.pth"


@cache
def honest() -> Mapping[str, Mapping[str, bytes]]:
    """Files of a checkpoint of every kind, by name."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for name, make in MADE.items():
            (Path(folder) / name).mkdir()
            make(Path(folder) / name)
        return {
            name: {
                str(path.relative_to(root)): path.read_bytes()
                for path in sorted(root.rglob("*"))
                if path.is_file()
            }
            for name in MADE
            for root in [Path(folder) / name]
        }


def _streamvln(folder: Path) -> None:
    tiny_streamvln.write_tiny(folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": [49], "repetition_penalty": 1.05}')


def _sharded(folder: Path) -> None:
    model = tiny_streamvln.write_tiny(folder)
    (folder / SINGLE).unlink()
    weights.write(model, folder, "60KB")


def _pickled(folder: Path) -> None:
    model = tiny_streamvln.write_tiny(folder)
    (folder / SINGLE).unlink()
    torch.save(model.state_dict(), folder / PICKLED)


def _vlnce(folder: Path) -> None:
    network = NetworkConfig(
        encoders="small",
        vocab_size=4,
        embedding_size=6,
        text_size=8,
        rgb_size=12,
        depth_size=10,
        state_size=32,
        rgb_width=8,
        depth_planes=4,
    )
    views = Views((96, 128), (96, 128), (0.0, 10.0), halved=True)
    body = Conventions(hfov=79.0, camera_height_m=1.25, forward_m=0.25, turn_deg=15.0)
    torch.manual_seed(0)
    folder.rmdir()
    save_folder(Policy(network), Config(network, views, body, samples=False, vocabulary=("left", "stop")), folder)


_TEXTS = ("Walk past the table and stop at the door.", "Turn left, then wait by the chair.")


def _qwen(folder: Path) -> None:
    folder.rmdir()
    qwen_family.QwenVLCheckpoints().create("qwen-vl-tiny", folder, (), 0)


def _navila(folder: Path) -> None:
    folder.rmdir()
    navila_family.NaVILACheckpoints().create("navila-tiny", folder, _TEXTS, 0)


def _uninavid(folder: Path) -> None:
    folder.rmdir()
    uninavid_family.UniNaVidCheckpoints().create("uninavid-tiny", folder, _TEXTS, 0)


MADE: Mapping[str, Callable[[Path], Any]] = {
    "streamvln": _streamvln,
    "sharded": _sharded,
    "pickled": _pickled,
    "janusvln": tiny_janusvln.write_tiny,
    "vlnce": _vlnce,
    "released": lambda folder: write_tiny(folder / RELEASED),
    "qwen": _qwen,
    "navila": _navila,
    "uninavid": _uninavid,
}


def _read_streamvln(folder: Path) -> None:
    recognizes(folder)
    Windows.of(streamvln_config(folder), folder)
    generation_settings(folder)
    streamvln.load(folder, trust_pickle=True)


def _read_janusvln(folder: Path) -> None:
    tokenizer = load_tokenizer(folder, janusvln_config(folder))
    qwen_settings(folder, tokenizer)
    janusvln.load(folder)


def _read_vlnce(folder: Path) -> None:
    recognizes_vlnce(folder)
    load(folder)


ALONE = ("qwen", "navila", "uninavid")
"""Families that are kinds of files of their own."""


READERS: Mapping[str, Callable[[Path], None]] = {
    **dict.fromkeys(("streamvln", "sharded", "pickled"), _read_streamvln),
    "janusvln": _read_janusvln,
    "vlnce": _read_vlnce,
    "released": lambda folder: load(folder / RELEASED) and None,
    "qwen": lambda folder: QwenVLAgent(QwenVLOptions(checkpoint=str(folder))) and None,
    "navila": lambda folder: NaVILAAgent(navila_options.NaVILAOptions(checkpoint=str(folder))) and None,
    "uninavid": lambda folder: UniNaVidAgent(uninavid_options.UniNaVidOptions(checkpoint=str(folder))) and None,
}


def read(folder: Path) -> None:
    (found,) = folder.iterdir()
    READERS[found.name](found)


def put(folder: Path, kind: str, changed: Mapping[str, bytes]) -> None:
    (folder / kind).mkdir()
    for name, content in {**honest()[kind], **changed}.items():
        (folder / kind / name).parent.mkdir(exist_ok=True)
        (folder / kind / name).write_bytes(content)


def write(folder: Path, random: Random) -> None:
    write_one(random.choice([name for name in MADE if name not in ALONE]), folder, random)


def write_one(kind: str, folder: Path, random: Random) -> None:
    """A checkpoint of a family, one of whose files is changed."""
    files = honest()[kind]
    name = random.choice([*files, *(name for name in files if name.endswith(CONFIG))])
    if random.random() < 0.1:
        content = changed_bytes(files[name], random)
    elif name.endswith(".json"):
        content = changed_json(files[name], random)
    elif name.endswith(".safetensors"):
        content = changed_header(files[name], random)
    else:
        content = changed_archive(files[name], random)
    put(folder, kind, {name: content})


def changed_header(content: bytes, random: Random) -> bytes:
    """A safetensors file with another header, padded as before."""
    (length,) = struct.unpack_from("<Q", content)
    header = changed_json(content[8 : 8 + length], random)
    header += b" " * (-len(header) % 8)
    claimed = random.choice([0, 1, 2**31, 2**63]) if random.random() < 0.1 else len(header)
    return struct.pack("<Q", claimed) + header + content[8 + length :]


def changed_archive(content: bytes, random: Random) -> bytes:
    """A file of PyTorch whose pickle is changed, or whose members are packed, missing or other ones."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    how = random.random()
    (pickled,) = (name for name in members if name.endswith("data.pkl"))
    if how < 0.7:
        raw = bytearray(members[pickled])
        for _ in range(random.choice([1, 1, 2, 5])):
            change_bytes(raw, random) if random.random() < 0.5 else change_numbers(raw, random)
        members[pickled] = bytes(raw)
    elif how < 0.8:
        members[pickled] = pickle.dumps(random.choice(OTHER_PICKLES), protocol=2)
    else:
        del members[random.choice(list(members))]
    kind = zipfile.ZIP_DEFLATED if random.random() < 0.1 else zipfile.ZIP_STORED
    return archived(members, kind)


OTHER_PICKLES: tuple[Any, ...] = ([], {}, {"state_dict": 1}, {"a": [1, 2]}, {1: 2}, {"state_dict": {}}, "x" * 1000)


def change_numbers(raw: bytearray, random: Random) -> None:
    """One of the pickle's short numbers, sizes and strides among them."""
    places = [at for at in range(len(raw) - 1) if raw[at] in b"KM"]
    if places:
        at = random.choice(places) + 1
        raw[at] = random.choice([0, 1, 2, 127, 255])


def archived(members: Mapping[str, bytes], kind: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", kind) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def honestly(kind: str) -> tuple[Builder, str]:
    """The case of a checkpoint as it was made, which is read."""
    return (lambda folder: put(folder, kind, {})), ""


def config(kind: str, *path: Any) -> Builder:
    """An honest checkpoint whose config has another value at a place; the last of `path` is the value."""

    def build(folder: Path) -> None:
        root = json.loads(honest()[kind][CONFIG])
        *owners, last, value = path
        entry = root
        for owner in owners:
            entry = entry[owner]
        entry[last] = value
        put(folder, kind, {CONFIG: json.dumps(root).encode()})

    return build


def file(kind: str, name: str, content: Callable[[], bytes]) -> Builder:
    return lambda folder: put(folder, kind, {name: content()})


def _saved(value: Callable[[], Any]) -> bytes:
    file = io.BytesIO()
    torch.save(value(), file)
    return file.getvalue()


def _expanded() -> dict[str, Any]:
    """Tensors of the honest names and shapes, one of which shows four bytes a million times."""
    state: dict[str, Any] = torch.load(io.BytesIO(honest()["pickled"][PICKLED]), weights_only=True)
    return {**state, "model.norm.weight": torch.zeros(1).expand(10**9)}


def _one_of(name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        save_file({name: torch.zeros(1)}, Path(folder) / SINGLE)
        return (Path(folder) / SINGLE).read_bytes()


def safetensors(header: Any) -> bytes:
    """A safetensors file with any header, and four bytes behind it."""
    content = json.dumps(header).encode()
    return struct.pack("<Q", len(content)) + content + bytes(4)


def _long_header(folder: Path) -> None:
    put(folder, "streamvln", {SINGLE: struct.pack("<Q", 10**9)})
    os.truncate(folder / "streamvln" / SINGLE, 10**9 + 100)


def _long_pickle(folder: Path) -> None:
    """Half a billion numbers in the layout of before torch 1.6, of which a hole holds all but the first 9 MB."""
    saved = io.BytesIO()
    torch.save({}, saved, _use_new_zipfile_serialization=False)
    begun = io.BytesIO(saved.getvalue())
    for _ in range(3):
        list(pickletools.genops(begun))
    put(folder, "pickled", {PICKLED: saved.getvalue()[: begun.tell()] + b"\x80\x02](" + b"K\x01" * 4_500_000})
    os.truncate(folder / "pickled" / PICKLED, 10**9)


INDEX = "model.safetensors.index.json"

corpus: Mapping[str, tuple[Builder, str]] = {
    **{f"honest {kind}": honestly(kind) for kind in MADE if kind not in ALONE},
    "10^9 layers": (config("streamvln", "num_hidden_layers", 10**9), "num_hidden_layers: expected a whole"),
    "2^62 wide": (config("streamvln", "hidden_size", 2**62), "hidden_size: expected a whole number"),
    "a patch of 2^40": (config("streamvln", "vision_config", "patch_size", 2**40), "patch_size: expected"),
    "10^9 blocks": (config("janusvln", "vision_config", "depth", 10**9), "depth: expected a whole number"),
    "a factor of 400 digits": (config("janusvln", "lam", 10**400), "lam: expected a number"),
    "nested too deep": (file("streamvln", CONFIG, lambda: b'{"a":' * 100_000), "cannot be read as JSON"),
    "a tokenizer nested too deep": (
        file("janusvln", "tokenizer.json", lambda: b'{"a":' + b"[" * 200_000),
        "tokenizer.json cannot be read",
    ),
    "an index of numbers": (file("sharded", INDEX, lambda: b'{"weight_map": {"a": 1}}'), "weight_map: expected"),
    "an index of other files": (
        file("sharded", INDEX, lambda: b'{"weight_map": {"a": "pytorch_model.bin"}}'),
        "name of a .safetensors file",
    ),
    "a long name of a tensor": (
        file("streamvln", SINGLE, lambda: _one_of("x" * 100_000)),
        "the weights are not those",
    ),
    "a pickle of a list": (file("pickled", PICKLED, lambda: _saved(lambda: [1])), "expected nothing but named"),
    "a pickle of numbers": (
        file("pickled", PICKLED, lambda: _saved(lambda: {"a": 1})),
        "nothing but named tensors",
    ),
    "tensors by number": (
        file("pickled", PICKLED, lambda: _saved(lambda: {1: torch.ones(1)})),
        "nothing but named",
    ),
    "four bytes shown 10^9 times": (file("pickled", PICKLED, lambda: _saved(_expanded)), "claim more bytes"),
    "a header of a kind that safetensors does not know": (
        file(
            "vlnce", SINGLE, lambda: safetensors({"a": {"dtype": "é" * 300, "shape": [1], "data_offsets": [0, 4]}})
        ),
        "model.safetensors is damaged: ",
    ),
    "a packed pickle": (
        file("pickled", PICKLED, lambda: archived({"a/data.pkl": bytes(10**8)}, zipfile.ZIP_DEFLATED)),
        "is packed or longer",
    ),
    "a header of 1 GB": (_long_header, "a header of 1,000,000,000 bytes; expected at most 16 MiB"),
    "a pickle of 1 GB": (_long_pickle, "its pickle is longer than a checkpoint's"),
    "an empty file": (file("pickled", PICKLED, lambda: b""), "cannot be read as weights"),
}
