"""Bytes that are almost right: a valid input with a few edits, and JSON with a few odd values."""

import json
import struct
from collections.abc import Sequence
from functools import lru_cache
from random import Random

NUMBERS = (0, 1, -1, 2, 127, 128, 255, 256, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 5e-324, 1e308, float("inf"), float("-inf"), float("nan"))
DEEP = 20_000  # levels; a reader that follows them by recursion runs out of stack
WORDS = (
    b"0",
    b"-1",
    b"1e400",
    b"nan",
    b"inf",
    b"1" * 5000,
    b"\xff\xfe",
    b"\x00" * 8,
    "é²٣".encode(),
    b"\n",
    b"\r\n",
    b"\t",
    b":",
    b",",
    b"=",
    b"..",
    b"../../../../etc/passwd",
    b"[" * 40,
    b"{" * 40,
    b'"',
)
ODD = (
    None,
    True,
    False,
    0,
    -1,
    1,
    10**30,
    -(10**30),
    10**400,
    0.5,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    "0",
    "²",
    "nan",
    "../../../../etc/passwd",
    "/etc/passwd",
    "\x00",
    "\ud800",
    "x" * 3000,
    [],
    {},
    [[]],
    [None],
    {"": {}},
    {"x": 1},
    [1, "a", None],
)


def edited(data: bytes, random: Random, words: Sequence[bytes] = ()) -> bytes:
    """Return the bytes after one to four edits."""
    for _ in range(random.choice((1, 1, 1, 2, 2, 3, 4))):
        data = _edit(data, random, words)
    return data


def _edit(data: bytes, random: Random, words: Sequence[bytes]) -> bytes:
    size = len(data)
    at = random.randrange(size + 1)
    kind = random.randrange(9)
    if kind == 0:
        return data[:at] + bytes([random.randrange(256)]) + data[at + 1 :]
    if kind == 1 and size:
        at = min(at, size - 1)
        return data[:at] + bytes([data[at] ^ (1 << random.randrange(8))]) + data[at + 1 :]
    end = min(size, at + int(random.expovariate(1 / 8)) + 1)
    if kind == 2:
        return data[:at] + data[end:]
    if kind == 3:
        return data[:end] + data[at:end] * random.choice((1, 2, 9)) + data[end:]
    if kind == 4:
        return data[:at]
    if kind == 5:
        word = random.choice((*words, *WORDS))
        return data[:at] + word + data[at if random.random() < 0.5 else end :]
    if kind == 6:
        code = random.choice(("<H", "<I", ">I", "<Q", ">Q"))
        number = random.choice(NUMBERS) % (1 << 8 * struct.calcsize(code))
        word = struct.pack(code, number)
        return data[:at] + word + data[at + len(word) :]
    if kind == 7:
        word = struct.pack(random.choice(("<f", "<d")), _float(random))
        return data[:at] + word + data[at + len(word) :]
    return data[:at] + random.randbytes(random.randrange(1, 9)) + data[at:]


def _float(random: Random) -> float:
    found = random.choice(FLOATS)
    return found if abs(found) < 1e38 or found != found or found in (FLOATS[7], FLOATS[8]) else 1e38


def odd_json(data: bytes, random: Random) -> bytes:
    """Return JSON with one to three odd values, keys gone or added; its text edited at times."""
    tree = _tree(data)
    for _ in range(random.choice((1, 1, 2, 3))):
        tree = odd_tree(tree, random)
    if random.random() < 0.002:
        return b"[" * DEEP if random.random() < 0.5 else b'{"a":' * DEEP
    text = json.dumps(tree).encode()
    return edited(text, random) if random.random() < 0.15 else text


@lru_cache(maxsize=64)
def _tree(data: bytes) -> object:
    """Return what is never changed in place: `odd_tree` copies what it touches."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data.decode("latin-1")


def odd_tree(tree: object, random: Random) -> object:
    """Return a tree of lists and dicts in which one place has become odd."""
    if isinstance(tree, dict) and tree and random.random() < 0.85:
        key = random.choice(list(tree))
        kind = random.random()
        rest = {k: v for k, v in tree.items() if k != key}
        if kind < 0.1:
            return rest
        if kind < 0.15:
            return rest | {random.choice(("", "x", "round", "²", key * 2)): tree[key]}
        return tree | {key: odd_tree(tree[key], random)}
    if isinstance(tree, list) and tree and random.random() < 0.85:
        at = random.randrange(len(tree))
        if random.random() < 0.1:
            return tree[:at] + tree[at + 1 :]
        if random.random() < 0.1:
            return [*tree[:at], tree[at], *tree[at:]]
        return [*tree[:at], odd_tree(tree[at], random), *tree[at + 1 :]]
    return random.choice(ODD)
