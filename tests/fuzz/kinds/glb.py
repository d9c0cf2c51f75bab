"""Binary glTF scenes: loaded, drawn, and a navmesh built of them, as every evaluation does."""

from __future__ import annotations

import contextlib
import io
import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
from PIL import Image

from envs.embedded.navmesh.build import build_polymesh
from envs.embedded.navmesh.pathfinder import PathFinder
from envs.embedded.navmesh.tiles.settings import NavMeshSettings
from envs.embedded.render import Renderer, load_scene
from tests.envs.embedded.render.glb_writer import GlbWriter, quad
from tests.fuzz.judge import Builder
from tests.fuzz.values import change, change_bytes, hostile
from vlnbench.interfaces import Camera

NAME = "scene.glb"
PIXELS = np.arange(16 * 16 * 3, dtype=np.uint8).reshape(16, 16, 3)


def read(folder: Path) -> None:
    scene = load_scene(folder / NAME)
    renderer = Renderer(scene)
    center = scene.bounds.mean(axis=0).tolist()
    for position in ((0.0, 0.0, 0.0), center):
        frame = renderer.render(Camera(32, 24, 90.0, 1.25, -20.0), position, (0.0, 0.0, 0.0, 1.0))
        assert frame.depth is not None
        assert np.isfinite(frame.depth).all()
    settings = NavMeshSettings()
    pathfinder = PathFinder.from_polymesh(*build_polymesh(scene.vertices, scene.triangles, settings), settings)
    ask(pathfinder)


def ask(pathfinder: PathFinder) -> None:
    """The questions of an episode and of a report."""
    low, high = pathfinder.get_bounds()
    a, b = low + 0.3 * (high - low), low + 0.8 * (high - low)
    pathfinder.snap_point(a)
    pathfinder.get_island(b)
    assert pathfinder.find_path(a, b).geodesic_distance >= 0
    assert pathfinder.geodesic_distances([a, b], [b]).shape == (2,)
    assert pathfinder.distance_to_closest_obstacle(a) >= 0
    pathfinder.try_step(a, b)
    pathfinder.try_step_no_sliding(a, b)
    pathfinder.get_random_navigable_point()
    pathfinder.get_topdown_view(0.05, float(a[1]))


def room() -> GlbWriter:
    """A floor, a table of other attributes on it, and a lamp below two nodes."""
    writer = GlbWriter()
    positions, indices, uvs = quad(4.0, 3.0)
    writer.mesh(positions, indices, uvs=uvs, material=writer.material(PIXELS, wrapS=33071))
    colors = np.array([[255, 0, 51, 255]] * 4, np.uint8)
    small = 0.2 * positions + np.array([0, 0, 0.8], np.float32)
    writer.mesh(small, indices, uvs=(uvs * 65535).astype(np.uint16), colors=colors, node={"scale": [1, 1, 0.9]})
    strip = [[0, 0, 1], [0.2, 0, 1], [0, 0.2, 1], [0.2, 0.2, 1]]
    writer.mesh(strip, mode=5, material=writer.material(PIXELS[..., 0], factor=(0.5, 1, 0.2, 1), kind="JPEG"))
    writer.root["nodes"].append({"children": [2], "rotation": [0, 0, 0.6, 0.8], "translation": [1, 0, 0]})
    writer.root["nodes"].append({"children": [3], "matrix": np.diag([1.0, -1.0, 1.0, 1.0]).ravel().tolist()})
    writer.root["scenes"][0]["nodes"] = [0, 1, 4]
    writer.root["scene"] = 0
    return writer


def write(folder: Path, random: Random) -> None:
    writer = room()
    for _ in range(random.choice([1, 1, 2, 3, 5])):
        with contextlib.suppress(
            AttributeError, IndexError, KeyError, TypeError, ValueError
        ):  # what is left may not take it
            random.choice(MUTATORS)(writer, random)
    try:
        data = bytearray(writer.to_bytes())
    except (TypeError, ValueError, RecursionError):  # not every change can be written as JSON
        data = bytearray(room().to_bytes())
    if random.random() < 0.3:
        for _ in range(random.choice([1, 1, 3, 10])):
            change_bytes(data, random)
    (folder / NAME).write_bytes(data)


def change_json(writer: GlbWriter, random: Random) -> None:
    change(writer.root, random)


def change_geometry(writer: GlbWriter, random: Random) -> None:
    """Numbers of the binary chunk become large, tiny, or not numbers."""
    at = 4 * random.randrange(max(1, len(writer.binary) // 4 - 8))
    values = [random.choice([0.0, 1e-30, 1.0, 150.0, 1e5, 1e30, float("nan"), -float("inf")]) for _ in range(3)]
    count = random.choice([1, 2, 3])
    writer.binary[at : at + 4 * count] = struct.pack(f"<{count}f", *values[:count])


def change_accessor(writer: GlbWriter, random: Random) -> None:
    table = writer.root[random.choice(["accessors", "bufferViews"])]
    entry = random.choice(table) if isinstance(table, list) and table else None
    if isinstance(entry, dict):
        fields = ["count", "byteOffset", "byteLength", "byteStride", "componentType", "bufferView", "normalized"]
        entry[random.choice(fields)] = random.choice([0, 1, 2, 5, 36, 5121, 5123, 5125, 5126, 2**32, True])


def change_tree(writer: GlbWriter, random: Random) -> None:
    """Children, roots and meshes of nodes at random: shared nodes, loops, deep and wide trees."""
    nodes = writer.root["nodes"]
    if not isinstance(nodes, list):
        return
    count = random.choice([1, 3, 30, 300])
    first = len(nodes)
    how = random.choice(["random", "chain", "wide", "double"])
    for k in range(count):
        below = {
            "random": [random.randrange(first + count)],
            "chain": [first + k - 1],
            "double": [first + k - 1] * 2,
            "wide": [],
        }[how]
        nodes.append({"children": below, **({"mesh": random.randrange(3)} if random.random() < 0.7 else {})})
    writer.root["scenes"] = [{"nodes": list(range(len(nodes))) if how == "wide" else [len(nodes) - 1]}]


def change_transform(writer: GlbWriter, random: Random) -> None:
    node = random.choice(writer.root["nodes"]) if isinstance(writer.root.get("nodes"), list) else None
    if isinstance(node, dict):
        size = {"translation": 3, "scale": 3, "rotation": 4, "matrix": 16}
        key = random.choice(list(size))
        spread = random.choice([1e-20, 0.1, 1.0, 30.0, 1e4, 1e20])
        node[key] = [random.uniform(-spread, spread) for _ in range(size[key])]


def change_image(writer: GlbWriter, random: Random) -> None:
    images = writer.root.get("images")
    if isinstance(images, list) and images and isinstance(images[-1], dict):
        kind = random.choice(["bomb", "header", "cut", "text", "bytes"])
        data = bytearray(png(*random.choice([(1, 1), (40000, 40000), (16384, 16384), (1000, 1000), (0, 5)])))
        if kind == "header":
            del data[random.randrange(len(data)) :]
        elif kind == "cut":
            change_bytes(data, random)
        elif kind == "text":
            data[33:33] = chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(10**6)))
        elif kind == "bytes":
            data = bytearray(random.randbytes(200))
        images[random.randrange(len(images))] = {"bufferView": writer.view(bytes(data))}


def change_extensions(writer: GlbWriter, random: Random) -> None:
    table = writer.root.get(random.choice(["meshes", "materials", "textures", "nodes", "bufferViews", "images"]))
    names = [
        "KHR_texture_transform",
        "KHR_draco_mesh_compression",
        "EXT_mesh_gpu_instancing",
        "KHR_texture_basisu",
    ]
    if isinstance(table, list) and table and isinstance(table[0], dict):
        table[0]["extensions"] = {random.choice(names): hostile(random)}
    writer.root[random.choice(["extensionsRequired", "extensionsUsed"])] = [hostile(random)]


def change_size(writer: GlbWriter, random: Random) -> None:
    """All numbers of the binary chunk that are lengths are some times as large."""
    values = np.frombuffer(bytes(writer.binary[: len(writer.binary) // 4 * 4]), "<f4").copy()
    lengths = (np.abs(values) > 1e-6) & (np.abs(values) < 1e6)
    values[lengths] *= random.choice([0.0, 1e-5, 1e-2, 20.0, 1e3, 1e20])
    writer.binary[: 4 * len(values)] = values.tobytes()


def change_amount(writer: GlbWriter, random: Random) -> None:
    """Meshes, primitives, materials or triangles are there many times: as many names of few bytes."""
    how, count = random.choice(["primitives", "meshes", "materials", "triangles"]), random.choice([2, 50, 3000])
    mesh = random.choice(writer.root["meshes"])
    if how == "primitives":
        mesh["primitives"] = mesh["primitives"] * count
    elif how == "meshes":
        first = len(writer.root["nodes"])
        writer.root["nodes"] += [{"mesh": k % 3, "scale": [1 + k % 7, 1, 1]} for k in range(count)]
        writer.root["scenes"][0]["nodes"] += list(range(first, first + count))
    elif how == "materials":
        kinds = len(writer.root["materials"])
        writer.root["materials"] = writer.root["materials"] * count
        mesh["primitives"] = [{**mesh["primitives"][0], "material": k} for k in range(kinds * min(count, 50))]
    else:
        mesh["primitives"][0]["indices"] = writer.accessor(np.tile(np.array([0, 1, 2, 2, 1, 0], np.uint16), count))


def change_overlap(writer: GlbWriter, random: Random) -> None:
    """An accessor shows what another one's bytes are, of its own type or of another one."""
    one, other = (random.choice(writer.root["accessors"]) for _ in range(2))
    names = random.choice([("bufferView",), ("bufferView", "byteOffset"), ("type", "componentType"), ("sparse",)])
    for name in names:
        one[name] = other.get(name, 0)
    if names == ("sparse",):
        at = {"bufferView": 0, "componentType": 5123}
        one["sparse"] = {"count": random.choice([1, 3, 10**6]), "indices": at, "values": {"bufferView": 1}}


MUTATORS: tuple[Callable[[GlbWriter, Random], None], ...] = (
    change_json,
    change_json,
    change_json,
    change_geometry,
    change_accessor,
    change_tree,
    change_transform,
    change_image,
    change_extensions,
    change_size,
    change_amount,
    change_overlap,
)


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int) -> bytes:
    """A black gray-scale PNG; beyond 16 megapixels only its first rows are there."""
    packer = zlib.compressobj(1)
    rows = min(height, max(1, 2**24 // max(width, 1)))
    content = b"".join(packer.compress(bytes(width + 1)) for _ in range(rows)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", content) + chunk(b"IEND", b"")


def case(edit: Callable[[GlbWriter], None]) -> Builder:
    """Writes a room after a change to it."""

    def build(folder: Path) -> None:
        writer = room()
        edit(writer)
        writer.save(folder / NAME)

    return build


def shared_nodes(writer: GlbWriter) -> None:
    """64 levels, each twice the child of the next: 2^64 instances in about 2 kB."""
    first = len(writer.root["nodes"])
    writer.root["nodes"] += [{"mesh": 0}, *({"children": [first + k, first + k]} for k in range(64))]
    writer.root["scenes"][0]["nodes"] = [first + 64]


def instances(writer: GlbWriter) -> None:
    """20,000 nodes with one mesh of 5,000 triangles: 6.7 GiB and more."""
    mesh = writer.root["meshes"][0]["primitives"][0]
    mesh["indices"] = writer.accessor(np.tile(np.array([0, 1, 2], np.uint16), 5000))
    writer.root["nodes"] = [{"mesh": 0} for _ in range(20_000)]
    writer.root["scenes"][0]["nodes"] = list(range(20_000))


def many_primitives(writer: GlbWriter) -> None:
    writer.root["meshes"][0]["primitives"] *= 60_000


def many_nodes(writer: GlbWriter) -> None:
    writer.root["nodes"] = [{} for _ in range(200_000)]
    writer.root["scenes"][0]["nodes"] = list(range(200_000))


def image_of(width: int, height: int) -> Callable[[GlbWriter], None]:
    def edit(writer: GlbWriter) -> None:
        writer.root["images"][0] = {"bufferView": writer.view(png(width, height))}

    return edit


def many_materials(writer: GlbWriter) -> None:
    """One image of 4096 x 4096 in 100 materials of different color: 9 GB of textures."""
    image_of(4096, 4096)(writer)
    primitive, surface = writer.root["meshes"][0]["primitives"][0], {"baseColorTexture": {"index": 0}}
    writer.root["materials"] = [
        {"pbrMetallicRoughness": {**surface, "baseColorFactor": [k / 100, 1, 1, 1]}} for k in range(100)
    ]
    writer.root["meshes"][0]["primitives"] = [{**primitive, "material": k} for k in range(100)]


def many_values(writer: GlbWriter) -> None:
    writer.root["extras"] = [[]] * 2_000_000


def many_chunks(folder: Path) -> None:
    data = room().to_bytes()
    data += struct.pack("<II", 0, 7) * 100_000
    (folder / NAME).write_bytes(data[:8] + struct.pack("<I", len(data)) + data[12:])


def deep_json(folder: Path) -> None:
    text = b'{"asset":' + b"[" * 100_000
    (folder / NAME).write_bytes(struct.pack("<IIIII", 0x46546C67, 2, 20 + len(text), len(text), 0x4E4F534A) + text)


def repeated_floor(writer: GlbWriter) -> None:
    """200,000 triangles of 180 m x 180 m on one another: 2.6e12 cells."""
    mesh = writer.root["meshes"][0]["primitives"][0]
    mesh["indices"] = writer.accessor(np.tile(np.array([0, 1, 2], np.uint16), 200_000))
    writer.root["nodes"] = [{"mesh": 0, "scale": [22, 30, 1]}]
    writer.root["scenes"][0]["nodes"] = [0]


def set_to(*keys: str | int | object) -> Callable[[GlbWriter], None]:
    """Set the item named by all keys but the last to the last."""

    def edit(writer: GlbWriter) -> None:
        owner = json.loads(json.dumps(writer.root))
        writer.root = owner
        for key in keys[:-2]:
            owner = owner[key]
        owner[keys[-2]] = keys[-1]

    return edit


def cut_image(writer: GlbWriter) -> None:
    file = io.BytesIO()
    Image.fromarray(PIXELS).save(file, "PNG")
    writer.root["images"][0] = {"bufferView": writer.view(file.getvalue()[:80])}


corpus: dict[str, tuple[Builder, str]] = {
    "honest": (case(lambda writer: None), ""),
    "shared nodes": (case(shared_nodes), "more than one parent"),
    "instances": (case(instances), "triangles up to here"),
    "many primitives": (case(many_primitives), "60000 primitives, more than 50000"),
    "many nodes": (case(many_nodes), "more than 100000 nodes"),
    "image of 0.3 gigapixels": (case(image_of(16384, 16384)), "texels up to here"),
    "image beyond Pillow's limit": (case(image_of(40000, 40000)), "is 40000 x 40000 pixels"),
    "one image in many materials": (case(many_materials), "texels up to here"),
    "cut image": (case(cut_image), "cannot be decoded"),
    "many values": (case(many_values), "values, more than 2000000"),
    "many chunks": (many_chunks, ""),
    "deep JSON": (deep_json, "JSON chunk"),
    "repeated floor": (case(repeated_floor), "the triangles cover"),
    "required extension of no name": (case(set_to("extensionsRequired", [{"a": 1}])), "extensionsRequired"),
    "extensions of a list": (case(set_to("meshes", 0, "primitives", 0, "extensions", [])), "expected an object"),
}
