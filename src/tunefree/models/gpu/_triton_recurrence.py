# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202
"""The Triton kernels of `recurrence.py`; the number of hidden units is a compile-time constant.

Program axis 1 is the client; the first strides of the tensors are those between clients. Rows of a
tile are samples, columns are hidden units.
"""

from __future__ import annotations

try:
    import triton
    import triton.language as tl

    jit = triton.jit
except ImportError:  # the module can still be imported

    def jit(function):
        return function


@jit
def tanh(x):
    """Return tanh(x); the same formula in the interpreter and on a GPU."""
    return 2 * tl.sigmoid(2 * x) - 1


@jit
def step(
    a,
    w,
    b,
    h,
    c,
    out,
    cell,
    gates,
    B,
    a_m,
    w_m,
    b_m,
    h_m,
    c_m,
    out_m,
    cell_m,
    gates_m,
    H: tl.constexpr,
    LSTM: tl.constexpr,
    BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
) -> None:
    """Products h w^T of all gates of some units, then their cell."""
    TILES: tl.constexpr = (H + BN - 1) // BN
    G: tl.constexpr = 4 if LSTM else 3
    client = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) // TILES * BM + tl.arange(0, BM)
    cols = tl.program_id(0) % TILES * BN + tl.arange(0, BN)
    here = (rows < B)[:, None] & (cols < H)[None, :]
    h += client * h_m
    w += client * w_m
    y0 = tl.zeros((BM, BN), tl.float32)
    y1 = tl.zeros((BM, BN), tl.float32)
    y2 = tl.zeros((BM, BN), tl.float32)
    y3 = tl.zeros((BM, BN), tl.float32)
    for first in range(0, H, BK):
        k = first + tl.arange(0, BK)
        x = tl.load(h + rows[:, None] * H + k[None, :], (rows < B)[:, None] & (k < H)[None, :], 0.0)
        at = w + cols[None, :] * H + k[:, None]
        inside = (k < H)[:, None] & (cols < H)[None, :]
        y0 = tl.dot(x, tl.load(at, inside, 0.0), y0, input_precision=PRECISION)
        y1 = tl.dot(x, tl.load(at + H * H, inside, 0.0), y1, input_precision=PRECISION)
        y2 = tl.dot(x, tl.load(at + 2 * H * H, inside, 0.0), y2, input_precision=PRECISION)
        if LSTM:
            y3 = tl.dot(x, tl.load(at + 3 * H * H, inside, 0.0), y3, input_precision=PRECISION)
    if BIAS:
        shift = b + client * b_m + cols
        y0 += tl.load(shift, cols < H, 0.0).to(tl.float32)[None, :]
        y1 += tl.load(shift + H, cols < H, 0.0).to(tl.float32)[None, :]
        y2 += tl.load(shift + 2 * H, cols < H, 0.0).to(tl.float32)[None, :]
        if LSTM:
            y3 += tl.load(shift + 3 * H, cols < H, 0.0).to(tl.float32)[None, :]
    a += client * a_m + rows[:, None] * (G * H) + cols[None, :]
    one = rows[:, None] * H + cols[None, :]
    kept = gates + client * gates_m + rows[:, None] * (4 * H) + cols[None, :]
    low = out.dtype.element_ty
    s0 = tl.sigmoid(y0 + tl.load(a, here, 0.0).to(tl.float32))
    s1 = tl.sigmoid(y1 + tl.load(a + H, here, 0.0).to(tl.float32))
    a2 = tl.load(a + 2 * H, here, 0.0).to(tl.float32)
    if LSTM:
        s2 = tanh(y2 + a2)
        s3 = tl.sigmoid(y3 + tl.load(a + 3 * H, here, 0.0).to(tl.float32))
        new = s1 * tl.load(c + client * c_m + one, here, 0.0) + s0 * s2
        tl.store(cell + client * cell_m + one, new, here)
        after = s3 * tanh(new)
    else:
        s2 = tanh(a2 + s0 * y2)
        s3 = y2
        after = s2 + s1 * (tl.load(h + one, here, 0.0).to(tl.float32) - s2)
    tl.store(out + client * out_m + one, after.to(low), here)
    tl.store(kept, s0.to(low), here)
    tl.store(kept + H, s1.to(low), here)
    tl.store(kept + 2 * H, s2.to(low), here)
    tl.store(kept + 3 * H, s3.to(low), here)


@jit
def step_back(
    g,
    after,
    w,
    h,
    c,
    cell,
    gates,
    carry,
    ga,
    gy,
    B,
    g_m,
    after_m,
    w_m,
    h_m,
    c_m,
    cell_m,
    gates_m,
    carry_m,
    ga_m,
    gy_m,
    H: tl.constexpr,
    LSTM: tl.constexpr,
    NEXT: tl.constexpr,
    PRECISION: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
) -> None:
    """The product of the next time's gradients with w, for some units, then their cell."""
    TILES: tl.constexpr = (H + BN - 1) // BN
    G: tl.constexpr = 4 if LSTM else 3
    client = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) // TILES * BM + tl.arange(0, BM)
    cols = tl.program_id(0) % TILES * BN + tl.arange(0, BN)
    here = (rows < B)[:, None] & (cols < H)[None, :]
    one = rows[:, None] * H + cols[None, :]
    low = ga.dtype.element_ty
    d = tl.zeros((BM, BN), tl.float32)
    if NEXT:
        after += client * after_m
        w += client * w_m
        for first in range(0, G * H, BK):
            k = first + tl.arange(0, BK)
            some = k < G * H
            x = tl.load(
                after + rows[:, None] * (G * H) + k[None, :],
                (rows < B)[:, None] & some[None, :],
                0.0,
            )
            tile = tl.load(
                w + k[:, None] * H + cols[None, :], some[:, None] & (cols < H)[None, :], 0.0
            )
            d = tl.dot(x, tile, d, input_precision=PRECISION)
    d += tl.load(g + client * g_m + one, here, 0.0).to(tl.float32)
    kept = gates + client * gates_m + rows[:, None] * (4 * H) + cols[None, :]
    s0 = tl.load(kept, here, 0.0).to(tl.float32)
    s1 = tl.load(kept + H, here, 0.0).to(tl.float32)
    s2 = tl.load(kept + 2 * H, here, 0.0).to(tl.float32)
    s3 = tl.load(kept + 3 * H, here, 0.0).to(tl.float32)
    carry += client * carry_m + one
    held = tl.load(carry, here, 0.0)
    wide = rows[:, None] * (G * H) + cols[None, :]
    ga += client * ga_m + wide
    if LSTM:
        end = tanh(tl.load(cell + client * cell_m + one, here, 0.0))
        e = held + d * s3 * (1 - end * end)
        before = tl.load(c + client * c_m + one, here, 0.0)
        tl.store(ga, (e * s2 * s0 * (1 - s0)).to(low), here)
        tl.store(ga + H, (e * before * s1 * (1 - s1)).to(low), here)
        tl.store(ga + 2 * H, (e * s0 * (1 - s2 * s2)).to(low), here)
        tl.store(ga + 3 * H, (d * end * s3 * (1 - s3)).to(low), here)
        tl.store(carry, e * s1, here)
    else:
        d += held
        before = tl.load(h + client * h_m + one, here, 0.0).to(tl.float32)
        dn = d * (1 - s1) * (1 - s2 * s2)
        dr = (dn * s3 * s0 * (1 - s0)).to(low)
        dz = (d * (before - s2) * s1 * (1 - s1)).to(low)
        gy += client * gy_m + wide
        tl.store(ga, dr, here)
        tl.store(gy, dr, here)
        tl.store(ga + H, dz, here)
        tl.store(gy + H, dz, here)
        tl.store(ga + 2 * H, dn.to(low), here)
        tl.store(gy + 2 * H, (dn * s0).to(low), here)
        tl.store(carry, d * s1, here)
