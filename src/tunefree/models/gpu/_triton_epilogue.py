# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202
"""Triton kernels that compute products with short sums and the epilogue of `epilogue.Epilogue`.

Their source is written at run time; otherwise they are as `_triton.descend`. A program reads its
tile of every operand before it writes its tile of any target. Equal epilogues have the same source
in any process, so that Triton finds the compiled kernel on disk.
"""

import hashlib
import linecache
from functools import cache

try:
    import triton
    import triton.language as tl
except ImportError:  # the source can still be written
    triton = tl = None


def kernel(epilogue, sums):
    """Return the kernel of an epilogue, or the one that adds up its value within each tile."""
    return _load(source(epilogue, sums))


@cache
def _load(text):
    """Return the kernel with this source."""
    name = f"<tunefree epilogue {hashlib.sha256(text.encode()).hexdigest()[:16]}>"
    # where Triton looks the source up
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    space = {"__name__": __name__, "tl": tl}
    exec(compile(text, name, "exec"), space)
    return triton.jit(space["epilogue"])


def source(epilogue, sums):
    """Return the source of the kernel `epilogue`."""
    made, values = epilogue.lines
    products, matrices, scalars = (
        range(n) for n in (epilogue.products, len(epilogue.per_client), len(epilogue.booleans))
    )
    outs = ["sums"] if sums else [f"out{k}" for k in range(len(values))]
    names = [f"{side}{k}" for k in products for side in ("left", "right")]
    names += [f"many{k}" for k in matrices] + [f"one{k}" for k in scalars] + outs + ["O", "I"]
    names += [f"{size}{k}" for k in products for size in ("K", "LM", "LO", "LK", "RM", "RK", "RI")]
    names += [f"EM{k}" for k in scalars]
    names += [
        f"{n}: tl.constexpr" for n in ("PRECISION", "BM", "BN", *(f"BK{k}" for k in products))
    ]
    body = [
        "wide = tl.cdiv(I, BN)",
        "tiles = tl.cdiv(O, BM) * wide",
        "client = (tl.program_id(0) // tiles).to(tl.int64)",
        "tile = tl.program_id(0) % tiles",
        "rows = tile // wide * BM + tl.arange(0, BM)",
        "cols = tile % wide * BN + tl.arange(0, BN)",
        "shared = rows[:, None] * I + cols[None, :]",
        "at = client * O * I + shared",
        "here = (rows < O)[:, None] & (cols < I)[None, :]",
    ]
    for k in matrices:
        place = "at" if epilogue.per_client[k] else "shared"
        body.append(f"long{k} = tl.load(many{k} + {place}, here, 0.0)")
    for k in scalars:
        kind = "" if epilogue.booleans[k] else ".to(tl.float32)"
        body.append(f"each{k} = tl.load(one{k} + client * EM{k}){kind}")
    for k in products:
        body += [
            f"k{k} = tl.arange(0, BK{k})",
            f"a_at{k} = client * LM{k} + rows[:, None] * LO{k} + k{k}[None, :] * LK{k}",
            f"some{k} = k{k} < K{k}",
            f"a{k} = tl.load(left{k} + a_at{k}, (rows < O)[:, None] & some{k}[None, :], 0.0)",
            f"b_at{k} = client * RM{k} + k{k}[:, None] * RK{k} + cols[None, :] * RI{k}",
            f"b{k} = tl.load(right{k} + b_at{k}, some{k}[:, None] & (cols < I)[None, :], 0.0)",
            f"product{k} = tl.dot(a{k}, b{k}, input_precision=PRECISION)",
        ]
    body += made
    if sums:
        body += [
            f"total = tl.sum(tl.where(here, {values[0]}, 0.0), 1)",
            "tl.store(sums + tl.program_id(0), tl.sum(total, 0))",
        ]
    for out, value in () if sums else zip(outs, values, strict=True):
        body.append(f"{out}_value = tl.where(here, {value}, 0.0)")
        body.append(f"tl.store({out} + at, {out}_value.to({out}.dtype.element_ty), here)")
    return "\n".join([f"def epilogue({', '.join(names)}):", *(f"    {line}" for line in body), ""])
