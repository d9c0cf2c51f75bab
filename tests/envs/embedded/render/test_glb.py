from __future__ import annotations

import base64
import io
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from envs.embedded.render import Renderer, load_scene
from envs.embedded.render.glb import read_glb
from envs.embedded.render.materials import CLAMP, MIRROR, NEAREST_MIP, REPEAT, Sampler
from tests.envs.embedded.render.glb_writer import GlbWriter, quad
from vlnbench.errors import UsageError
from vlnbench.interfaces import Camera

PIXELS = np.arange(4 * 4 * 3, dtype=np.uint8).reshape(4, 4, 3)


def textured_quad() -> GlbWriter:
    writer = GlbWriter()
    positions, indices, uvs = quad()
    writer.mesh(positions, indices, uvs=uvs, material=writer.material(PIXELS))
    return writer


def test_textured_quad(tmp_path: Path) -> None:
    positions, indices, uvs = quad()
    scene = read_glb(textured_quad().save(tmp_path / "quad.glb"))
    assert np.array_equal(scene.positions, positions)
    assert np.array_equal(scene.triangles, indices.reshape(-1, 3))
    assert np.array_equal(scene.uvs, uvs)
    assert np.array_equal(scene.images[0], PIXELS)
    assert scene.colors is None
    assert scene.material_ids.tolist() == [0, 0]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_index_types(tmp_path: Path, dtype: type) -> None:
    writer = GlbWriter()
    positions, indices, _ = quad()
    writer.mesh(positions, indices.astype(dtype))
    assert np.array_equal(read_glb(writer.save(tmp_path / "a.glb")).triangles.ravel(), indices)


def test_without_indices_strips_and_fans(tmp_path: Path) -> None:
    corners = [[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]]
    writer = GlbWriter()
    writer.mesh(corners[:3])
    writer.mesh(corners, mode=5)
    writer.mesh(corners, mode=6)
    found = read_glb(writer.save(tmp_path / "a.glb")).triangles
    assert found.tolist() == [[0, 1, 2], [3, 4, 5], [5, 4, 6], [7, 8, 9], [7, 9, 10]]


def test_interleaved_vertices(tmp_path: Path) -> None:
    positions, indices, uvs = quad()
    writer = GlbWriter()
    view = writer.view(np.hstack([positions, uvs]).tobytes(), byteStride=20)
    primitive = writer.mesh(positions, indices, uvs=uvs)
    for name, offset in (("POSITION", 0), ("TEXCOORD_0", 12)):
        writer.root["accessors"][primitive["attributes"][name]] |= {"bufferView": view, "byteOffset": offset}
    scene = read_glb(writer.save(tmp_path / "a.glb"))
    assert np.array_equal(scene.positions, positions)
    assert np.array_equal(scene.uvs, uvs)


def test_normalized_attributes(tmp_path: Path) -> None:
    positions, indices, uvs = quad()
    colors = np.array([[255, 0, 51, 255]] * 4, np.uint8)
    writer = GlbWriter()
    writer.mesh(positions, indices, uvs=(uvs * 65535).astype(np.uint16), colors=colors)
    writer.mesh(positions, indices)
    scene = read_glb(writer.save(tmp_path / "a.glb"))
    assert np.array_equal(scene.uvs[:4], uvs)
    assert scene.colors is not None
    assert np.allclose(scene.colors[:4], [1, 0, 0.2])
    assert (scene.colors[4:] == 1).all(), "a primitive without vertex colors is not tinted"


def test_materials_and_samplers(tmp_path: Path) -> None:
    writer = GlbWriter()
    positions, indices, uvs = quad()
    sampler = {"wrapS": 33071, "wrapT": 33648, "magFilter": 9728, "minFilter": 9985}
    kinds = [
        writer.material(factor=(0.5, 0.25, 2.0, 1.0)),
        writer.material(PIXELS, **sampler),
        writer.material(PIXELS[..., 0], kind="JPEG"),
    ]
    for material in kinds:
        writer.mesh(positions, indices, uvs=uvs, material=material)
    writer.mesh(positions, indices)
    scene = read_glb(writer.save(tmp_path / "a.glb"))
    plain, pixelated, gray, none = scene.materials
    assert plain.factor == (0.5, 0.25, 1.0)
    assert pixelated.sampler == Sampler((CLAMP, MIRROR), (True, False), NEAREST_MIP)
    assert gray.sampler == Sampler((REPEAT, REPEAT))
    assert scene.images[gray.texture].shape == (4, 4, 3)
    assert (none.texture, none.factor) == (-1, (1.0, 1.0, 1.0))


def test_data_uri_image_and_texture_transform(tmp_path: Path) -> None:
    writer = textured_quad()
    file = io.BytesIO()
    Image.fromarray(PIXELS).save(file, "PNG")
    uri = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    writer.root["images"][0] = {"uri": uri}
    transform = {"offset": [0.5, 0.25], "rotation": np.pi / 2, "scale": [2, 3]}
    reference = writer.root["materials"][0]["pbrMetallicRoughness"]["baseColorTexture"]
    reference["extensions"] = {"KHR_texture_transform": transform}
    writer.root["extensionsRequired"] = ["KHR_texture_transform"]
    scene = read_glb(writer.save(tmp_path / "a.glb"))
    assert np.array_equal(scene.images[0], PIXELS)
    u, v = quad()[2].T
    assert np.allclose(scene.uvs, np.stack([3 * v + 0.5, -2 * u + 0.25], axis=1), atol=1e-6)


def _edit(*keys: Any) -> Callable[[GlbWriter], None]:
    """Set the item named by all keys but the last to the last."""

    def apply(writer: GlbWriter) -> None:
        owner: Any = writer.root
        for key in keys[:-2]:
            owner = owner[key]
        owner[keys[-2]] = keys[-1]

    return apply


PRIMITIVE = ("meshes", 0, "primitives", 0)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_edit("extensionsRequired", ["KHR_draco_mesh_compression"]), "KHR_draco_mesh_compression"),
        (_edit("extensionsRequired", ["KHR_texture_basisu"]), "KHR_texture_basisu"),
        (_edit(*PRIMITIVE, "extensions", {"KHR_draco_mesh_compression": {}}), "Draco"),
        (_edit("bufferViews", 0, "extensions", {"EXT_meshopt_compression": {}}), "meshopt"),
        (_edit("textures", 0, {"extensions": {"KHR_texture_basisu": {"source": 0}}}), "KHR_texture_basisu"),
        (_edit("images", 0, {"uri": "wall.png"}), r"images\[0\].uri: external"),
        (_edit("images", 0, {"uri": "data:image/png;base64,@@"}), "base64"),
        (_edit("images", 0, "bufferView", 1), "PNG and JPEG"),
        (_edit("asset", "version", "1.0"), "asset.version"),
        (_edit(*PRIMITIVE, "mode", 1), "mode"),
        (_edit(*PRIMITIVE, "indices", 0), "indices"),
        (_edit(*PRIMITIVE, "indices", 99), "out of range"),
        (_edit(*PRIMITIVE, "indices", -1), "non-negative"),
        (_edit(*PRIMITIVE, "attributes", {}), "POSITION: is missing"),
        (_edit(*PRIMITIVE, "attributes", "POSITION", 1), "POSITION"),
        (_edit("accessors", 0, "count", 10**9), r"accessors\[0\]"),
        (_edit("accessors", 0, "count", 3), "counts"),
        (_edit("accessors", 0, "byteOffset", 4), r"accessors\[0\]"),
        (_edit("accessors", 0, "componentType", 5130), "componentType 5130"),
        (_edit("accessors", 0, "sparse", {}), "sparse"),
        (_edit("accessors", 2, "count", 5), "multiple of 3"),
        (_edit("accessors", 2, "count", 0), "no triangles"),
        (_edit("bufferViews", 0, "byteLength", 10**12), "truncated"),
        (_edit("bufferViews", 1, "byteStride", 1), "byteStride"),
        (_edit("nodes", 0, "children", [0]), r"nodes\[0\]: has more than one parent"),
        (_edit("nodes", 0, "scale", [1, 2]), r"nodes\[0\].scale"),
        (_edit("nodes", 0, "scale", [1e300, 2, 1]), "nodes"),
        (_edit("nodes", 0, "rotation", [0, 0, 0, 0]), "quaternion"),
        (_edit("nodes", 0, "mesh", "first"), r"nodes\[0\].mesh: expected an integer"),
        (_edit("scene", 5), "index 5 is out of range"),
        (_edit("meshes", {}), "expected a list"),
    ],
)
def test_refused(tmp_path: Path, edit: Callable[[GlbWriter], None], message: str) -> None:
    writer = textured_quad()
    edit(writer)
    with pytest.raises(UsageError, match=message) as caught:
        read_glb(writer.save(tmp_path / "bad.glb"))
    assert "bad.glb" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_vertex_index_out_of_range(tmp_path: Path) -> None:
    writer = GlbWriter()
    writer.mesh(quad()[0], np.array([0, 1, 4], np.uint8))
    with pytest.raises(UsageError, match="index 4 is out of range, 4 vertices"):
        read_glb(writer.save(tmp_path / "a.glb"))


def test_nan_position(tmp_path: Path) -> None:
    writer = GlbWriter()
    positions, indices, _ = quad()
    positions[2, 1] = np.nan
    writer.mesh(positions, indices)
    with pytest.raises(UsageError, match="NaN"):
        read_glb(writer.save(tmp_path / "a.glb"))


def test_absurd_vertex_colors_are_refused(tmp_path: Path) -> None:
    writer = GlbWriter()
    positions, indices, _ = quad()
    writer.mesh(positions, indices, colors=np.full((4, 3), 1e5, np.float32))
    with pytest.raises(UsageError, match="COLOR_0: vertex colors beyond 10000"):
        read_glb(writer.save(tmp_path / "a.glb"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a binary glTF"),
        (b"PLY\n" * 10, "not a binary glTF"),
        (struct.pack("<III", 0x46546C67, 1, 20) + bytes(8), "version 2, found 1"),
        (struct.pack("<III", 0x46546C67, 2, 999) + bytes(8), "truncated"),
        (struct.pack("<IIIII", 0x46546C67, 2, 22, 2, 0x4E4F534A) + b"[]", "expected an object"),
        (struct.pack("<IIIII", 0x46546C67, 2, 22, 2, 0x4E4F534A) + b"{:", "JSON"),
        (struct.pack("<IIIII", 0x46546C67, 2, 22, 9, 0x4E4F534A) + b"{}", "do not fit"),
    ],
)
def test_broken_container(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.glb"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        read_glb(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not found"):
        read_glb(tmp_path / "none.glb")


QUAD = textured_quad().to_bytes()


def _loads_or_refuses(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    try:
        scene = read_glb(path)
    except UsageError:
        return
    assert scene.triangles.min() >= 0
    assert scene.triangles.max() < len(scene.positions)
    frame = Renderer(load_scene(path)).render(Camera(16, 12, 90.0, 2.0, -60.0), (0, 0, 0), (0, 0, 0, 1))
    depth = frame.depth
    assert depth is not None
    assert np.isfinite(depth).all()
    assert np.isfinite(scene.positions).all()
    assert np.isfinite(scene.uvs).all()


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(QUAD) - 1), st.integers(0, 255)), min_size=1, max_size=6))
def test_changed_bytes_load_or_are_refused(tmp_path: Path, changes: list[tuple[int, int]]) -> None:
    data = bytearray(QUAD)
    for position, value in changes:
        data[position] = value
    _loads_or_refuses(tmp_path / "a.glb", bytes(data))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.integers(0, len(QUAD) - 1))
def test_truncated_files_are_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "a.glb"
    path.write_bytes(QUAD[:length])
    with pytest.raises(UsageError):
        read_glb(path)


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(leaf for key, item in items for leaf in _leaves(item, (*path, key)))]


PLACES = [place for place in _leaves(textured_quad().root) if place]
VALUES = st.one_of(
    st.integers(-2, 10),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from([None, True, "", "VEC4", [], {}, [[]], 5120, 5121, 5125, 10**400]),
)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.sampled_from(PLACES), VALUES)
def test_changed_fields_load_or_are_refused(tmp_path: Path, place: tuple[Any, ...], value: Any) -> None:
    writer = textured_quad()
    _edit(*place, json.loads(json.dumps(value)))(writer)
    _loads_or_refuses(tmp_path / "a.glb", writer.to_bytes())


NUMBERS = st.one_of(
    st.floats(width=32),
    st.floats(-3, 3, width=32),
    st.sampled_from([0.0, 1.0, -1.0, 1e-40, 999999.0, 3e38]),
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.integers(0, 9), st.data())
def test_any_geometry_loads_or_is_refused(tmp_path: Path, count: int, data: st.DataObject) -> None:
    """Degenerate, non-finite, empty, out-of-range or untextured geometry of any kind."""

    def numbers(width: int) -> NDArray[np.float32]:
        values = data.draw(st.lists(NUMBERS, min_size=width * count, max_size=width * count))
        return np.array(values, np.float32).reshape(count, width)

    writer = GlbWriter()
    fields: dict[str, Any] = {"mode": data.draw(st.sampled_from([4, 5, 6]))}
    if data.draw(st.booleans()):
        fields["uvs"] = numbers(2)
    if data.draw(st.booleans()):
        fields["colors"] = numbers(data.draw(st.sampled_from([3, 4])))
    if data.draw(st.booleans()):
        fields["material"] = writer.material(data.draw(st.sampled_from([None, PIXELS])), factor=(0.5, 1, 0, 1))
    indices = data.draw(st.none() | st.lists(st.integers(0, count), max_size=12))
    writer.mesh(numbers(3), None if indices is None else np.array(indices, np.uint32), **fields)
    _loads_or_refuses(tmp_path / "a.glb", writer.to_bytes())
