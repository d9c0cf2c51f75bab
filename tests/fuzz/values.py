"""Hostile values, and changes to nested JSON that keep most of its structure."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

import yaml

NUMBERS: tuple[Any, ...] = (
    -1, 0, 1, 2, 3, 7, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63, 10**30, -(2**63),
    0.5, -0.0, 1e-300, 1e38, 3.5e38, 1e308, float("nan"), float("inf"), -float("inf"), 10**400,
)  # fmt: skip
OTHERS = ("null", "true", "false", '""', '"0"', '"VEC3"', '"\\ud800"', "[]", "{}", "[[]]", "[{}]", '{"": null}')
"""As JSON, since a value that is taken is changed further."""


def hostile(random: Random) -> Any:
    """A value of any type that its field was not made for."""
    choice = random.random()
    if choice < 0.5:
        return random.choice(NUMBERS)
    if choice < 0.9:
        return json.loads(random.choice((*OTHERS, '"' + 300 * "é" + '"')))
    if choice < 0.95:
        return nested(random.choice([10, 100, 300]), random)
    return [random.choice(NUMBERS) for _ in range(random.choice([1, 3, 4, 16, 1000]))]


def nested(depth: int, random: Random) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value] if random.random() < 0.5 else {"a": value}
    return value


def change(root: Any, random: Random) -> None:
    """One change somewhere in nested lists and objects: a value replaced, removed, doubled, swapped or added."""
    owner, key = random.choice(places(root))
    action = random.randrange(6)
    if action <= 1:
        owner[key] = hostile(random)
    elif action == 2:
        del owner[key]
    elif action == 3 and isinstance(owner, list):
        owner.extend(copy.deepcopy(owner[key]) for _ in range(random.choice([1, 2, 30, 300])))
    elif action == 4:
        other, name = random.choice(places(root))
        owner[key] = copy.deepcopy(other[name])
    elif isinstance(owner, dict):
        owner[random.choice(["extensions", "extras", "uri", "sparse", "byteOffset", "name", "\x00"])] = hostile(
            random
        )
    else:
        owner.insert(random.randrange(len(owner) + 1), hostile(random))


def places(root: Any) -> list[tuple[Any, Any]]:
    """Every (owner, key) below a JSON value."""
    found: list[tuple[Any, Any]] = []
    waiting = [root]
    while waiting:
        value = waiting.pop()
        keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        for key in keys:
            found.append((value, key))
            waiting.append(value[key])
    return found or [({"": 0}, "")]


def changed_json(content: bytes, random: Random, raw: float = 0.0) -> bytes:
    """JSON with one to three changes somewhere; a share of `raw` with a change to its bytes."""
    if random.random() < raw:
        return changed_bytes(content, random)
    root = json.loads(content)
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        change(root, random)
    return json.dumps(root).encode()


def changed_yaml(content: bytes, random: Random) -> bytes:
    """YAML with one to three changes somewhere."""
    root = yaml.safe_load(content)
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        change(root, random)
    try:
        return str(yaml.safe_dump(root, allow_unicode=random.random() < 0.5)).encode(errors="replace")
    except RecursionError:  # not every change can be written
        return content


def changed_bytes(content: bytes, random: Random) -> bytes:
    data = bytearray(content)
    change_bytes(data, random)
    return bytes(data)


def change_bytes(data: bytearray, random: Random) -> None:
    """One change to raw bytes: a few overwritten, cut out, doubled, or the end cut off."""
    if not data:
        return
    at, size = random.randrange(len(data)), random.choice([1, 2, 4, 8, 64])
    action = random.randrange(5)
    if action <= 1:
        data[at : at + size] = random.randbytes(size)
    elif action == 2:
        data[at : at + 4] = random.choice([b"\0\0\0\0", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\xc0\x7f"])
    elif action == 3:
        data[at : at + size] = b"" if random.random() < 0.5 else data[at : at + size] * 2
    else:
        del data[at:]
