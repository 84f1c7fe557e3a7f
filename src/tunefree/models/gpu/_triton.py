# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202, E741
"""The Triton kernels of `kernels.py`; a layer's sizes are compile-time constants.

The three kernels of a convolution are one matrix product per client whose activation operand is
gathered from the image in each step, so the unfolded image is never written; program axis 1 is the
client. A weight is read as the matrix w[k, o] with k = (kh KW + kw) C + c and strides (WK, WO).
Offsets within a client fit in 32 bits, a client's own offset does not.
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
def forward(
    x,
    w,
    b,
    out,
    B,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    O: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    SH: tl.constexpr,
    SW: tl.constexpr,
    PH: tl.constexpr,
    PW: tl.constexpr,
    DH: tl.constexpr,
    DW: tl.constexpr,
    WK: tl.constexpr,
    WO: tl.constexpr,
    BIAS: tl.constexpr,
    RELU: tl.constexpr,
    PRECISION: tl.constexpr,
    FLAT: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
) -> None:
    """Rows: output pixels (b, oh, ow). Columns: o. Reduced: (c, tap), or k where FLAT."""
    TAPS: tl.constexpr = KH * KW
    TILES: tl.constexpr = (O + BN - 1) // BN
    STEPS: tl.constexpr = (TAPS * C + BK - 1) // BK if FLAT else (C + BK - 1) // BK * TAPS
    PADDED: tl.constexpr = PH + PW > 0  # else every tap of every output lies in the image
    client = tl.program_id(1).to(tl.int64)
    x += client * (B * H * W) * C
    w += client * (TAPS * C * O)
    out += client * (B * OH * OW) * O
    rows = tl.program_id(0) // TILES * BM + tl.arange(0, BM)
    cols = tl.program_id(0) % TILES * BN + tl.arange(0, BN)
    here = rows < B * OH * OW
    top = rows // OW % OH * SH - PH
    left = rows % OW * SW - PW
    corner = ((rows // (OH * OW) * H + top) * W + left) * C
    acc = tl.zeros((BM, BN), tl.float32)
    for step in range(STEPS):
        if FLAT:
            k = step * BK + tl.arange(0, BK)
            tap = k // C
            dh = tap // KW * DH
            dw = tap % KW * DW
            some = k < TAPS * C
            a_at = corner[:, None] + ((dh * W + dw) * C + k % C)[None, :]
            a_in = here[:, None] & some[None, :]
            if PADDED:
                h = top[:, None] + dh[None, :]
                v = left[:, None] + dw[None, :]
                a_in = a_in & (h >= 0) & (h < H) & (v >= 0) & (v < W)
        else:  # taps innermost: they share most of their pixels in the cache
            tap = step % TAPS
            dh = tap // KW * DH
            dw = tap % KW * DW
            c = step // TAPS * BK + tl.arange(0, BK)
            k = tap * C + c
            some = c < C
            seen = here
            if PADDED:
                h = top + dh
                v = left + dw
                seen = here & (h >= 0) & (h < H) & (v >= 0) & (v < W)
            a_at = (corner + (dh * W + dw) * C)[:, None] + c[None, :]
            a_in = seen[:, None] & some[None, :]
        a = tl.load(x + a_at, a_in, 0.0)
        w_at = k[:, None] * WK + cols[None, :] * WO
        tile = tl.load(w + w_at, some[:, None] & (cols < O)[None, :], 0.0)
        acc = tl.dot(a, tile, acc, input_precision=PRECISION)
    if BIAS:
        acc += tl.load(b + client * O + cols, cols < O, 0.0).to(tl.float32)[None, :]
    if RELU:
        acc = tl.where(acc <= 0, 0.0, acc)  # a NaN stays one
    at = rows[:, None] * O + cols[None, :]
    tl.store(out + at, acc.to(out.dtype.element_ty), here[:, None] & (cols < O)[None, :])


@jit
def grad_input(
    g,
    w,
    out,
    B,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    O: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    SH: tl.constexpr,
    SW: tl.constexpr,
    PH: tl.constexpr,
    PW: tl.constexpr,
    DH: tl.constexpr,
    DW: tl.constexpr,
    WK: tl.constexpr,
    WO: tl.constexpr,
    GH: tl.constexpr,
    GW: tl.constexpr,
    IH: tl.constexpr,
    IW: tl.constexpr,
    PRECISION: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
) -> None:
    """Rows: input pixels (b, i, j) of one phase. Columns: c. Reduced: (o, tap).

    Program axis 2 is the phase (ah, aw): the pixels h = i SH + ah, v = j SW + aw. Tap kh reads
    them iff kh DH = ah + PH mod SH. With G = gcd(DH, SH) and I the inverse of DH / G mod SH / G,
    that is kh = (ah + PH) / G I mod SH / G and every (SH / G)-th after it. Its output row is
    i + qh; likewise across.
    """
    TILES: tl.constexpr = (C + BN - 1) // BN
    CHUNKS: tl.constexpr = (O + BK - 1) // BK
    HS: tl.constexpr = (H + SH - 1) // SH
    WS: tl.constexpr = (W + SW - 1) // SW
    NEXT_H: tl.constexpr = SH // GH
    NEXT_W: tl.constexpr = SW // GW
    client = tl.program_id(1).to(tl.int64)
    g += client * (B * OH * OW) * O
    w += client * (KH * KW * C * O)
    out += client * (B * H * W) * C
    ah = tl.program_id(2) // SW
    aw = tl.program_id(2) % SW
    rh = (ah + PH) % SH
    rw = (aw + PW) % SW
    kh0 = rh // GH * IH % NEXT_H
    kw0 = rw // GW * IW % NEXT_W
    taps_h = tl.where((rh % GH == 0) & (kh0 < KH), (KH - kh0 + NEXT_H - 1) // NEXT_H, 0)
    taps_w = tl.where((rw % GW == 0) & (kw0 < KW), (KW - kw0 + NEXT_W - 1) // NEXT_W, 0)
    taps = taps_h * taps_w
    rows = tl.program_id(0) // TILES * BM + tl.arange(0, BM)
    cols = tl.program_id(0) % TILES * BN + tl.arange(0, BN)
    here = rows < B * HS * WS
    n = rows // (HS * WS)
    i = rows // WS % HS
    j = rows % WS
    first = ((n * OH + i) * OW + j) * O
    acc = tl.zeros((BM, BN), tl.float32)
    for step in range(taps * CHUNKS):
        tap = step % taps
        kh = kh0 + tap // taps_w * NEXT_H
        kw = kw0 + tap % taps_w * NEXT_W
        qh = (ah + PH - kh * DH) // SH  # an exact division: the rounding of // does not matter
        qw = (aw + PW - kw * DW) // SW
        o = step // taps * BK + tl.arange(0, BK)
        seen = here & (i + qh >= 0) & (i + qh < OH) & (j + qw >= 0) & (j + qw < OW)
        a_at = (first + (qh * OW + qw) * O)[:, None] + o[None, :]
        a = tl.load(g + a_at, seen[:, None] & (o < O)[None, :], 0.0)
        b_at = o[:, None] * WO + ((kh * KW + kw) * C + cols)[None, :] * WK
        b = tl.load(w + b_at, (o < O)[:, None] & (cols < C)[None, :], 0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    h = i * SH + ah
    v = j * SW + aw
    at = (((n * H + h) * W + v) * C)[:, None] + cols[None, :]
    here = here & (h < H) & (v < W)
    tl.store(out + at, acc.to(out.dtype.element_ty), here[:, None] & (cols < C)[None, :])


@jit
def grad_weight(
    x,
    g,
    out,
    B,
    SPAN,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    O: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    SH: tl.constexpr,
    SW: tl.constexpr,
    PH: tl.constexpr,
    PW: tl.constexpr,
    DH: tl.constexpr,
    DW: tl.constexpr,
    PRECISION: tl.constexpr,
    FLAT: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
) -> None:
    """Rows: c of one tap, or k where FLAT. Columns: o. Reduced: SPAN output pixels (b, oh, ow).

    Program axis 2 is the part of the pixels; each part has its own partial sum in `out`.
    """
    TAPS: tl.constexpr = KH * KW
    TILES: tl.constexpr = (O + BN - 1) // BN
    CHUNKS: tl.constexpr = (C + BM - 1) // BM
    PADDED: tl.constexpr = PH + PW > 0
    client = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2)
    x += client * (B * H * W) * C
    g += client * (B * OH * OW) * O
    out += (part * tl.num_programs(1) + client) * (TAPS * C * O)
    cols = tl.program_id(0) % TILES * BN + tl.arange(0, BN)
    tile = tl.program_id(0) // TILES
    if FLAT:
        k = tile * BM + tl.arange(0, BM)
        tap = k // C
        c = k % C
        some = k < TAPS * C
    else:
        tap = tile // CHUNKS
        c = tile % CHUNKS * BM + tl.arange(0, BM)
        k = tap * C + c
        some = c < C
    dh = tap // KW * DH - PH
    dw = tap % KW * DW - PW
    shift = (dh * W + dw) * C + c
    start = part * SPAN
    end = tl.minimum(start + SPAN, B * OH * OW)
    acc = tl.zeros((BM, BN), tl.float32)
    for p in range(start, end, BK):
        pixel = p + tl.arange(0, BK)
        here = pixel < end
        top = pixel // OW % OH * SH
        left = pixel % OW * SW
        corner = ((pixel // (OH * OW) * H + top) * W + left) * C
        if FLAT:
            a_in = here[:, None] & some[None, :]
            if PADDED:
                h = top[:, None] + dh[None, :]
                v = left[:, None] + dw[None, :]
                a_in = a_in & (h >= 0) & (h < H) & (v >= 0) & (v < W)
        else:
            seen = here
            if PADDED:
                h = top + dh
                v = left + dw
                seen = here & (h >= 0) & (h < H) & (v >= 0) & (v < W)
            a_in = seen[:, None] & some[None, :]
        a = tl.load(x + corner[:, None] + shift[None, :], a_in, 0.0)
        b_at = pixel[:, None] * O + cols[None, :]
        b = tl.load(g + b_at, here[:, None] & (cols < O)[None, :], 0.0)
        acc = tl.dot(tl.trans(a), b, acc, input_precision=PRECISION)
    at = k[:, None] * O + cols[None, :]
    tl.store(out + at, acc, some[:, None] & (cols < O)[None, :])


@jit
def descend(
    part,
    low,
    left,
    right,
    lr,
    O,
    I,
    K,
    LM,
    LO,
    LK,
    RM,
    RK,
    RI,
    LOW: tl.constexpr,
    PRECISION: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
) -> None:
    """Rows: o. Columns: i. Reduced: k < BK. Strides of the factors: (LM, LO, LK) and (RM, RK, RI).

    Bound by loading and storing the weights, not by the product.
    """
    wide = tl.cdiv(I, BN)
    tiles = tl.cdiv(O, BM) * wide
    client = (tl.program_id(0) // tiles).to(tl.int64)
    rate = tl.load(lr + client)
    if rate > 0:
        tile = tl.program_id(0) % tiles
        rows = tile // wide * BM + tl.arange(0, BM)
        cols = tile % wide * BN + tl.arange(0, BN)
        k = tl.arange(0, BK)
        at = client * O * I + rows[:, None] * I + cols[None, :]
        here = (rows < O)[:, None] & (cols < I)[None, :]
        moved = tl.load(part + at, here, 0.0)
        a_at = client * LM + rows[:, None] * LO + k[None, :] * LK
        a = tl.load(left + a_at, (rows < O)[:, None] & (k < K)[None, :], 0.0)
        b_at = client * RM + k[:, None] * RK + cols[None, :] * RI
        b = tl.load(right + b_at, (k < K)[:, None] & (cols < I)[None, :], 0.0)
        moved -= rate * tl.dot(a, b, input_precision=PRECISION)
        tl.store(part + at, moved, here)
        if LOW:
            tl.store(low + at, moved.to(low.dtype.element_ty), here)


@jit
def channel_sums(
    x,
    g,
    centre,
    first,
    second,
    P,
    C,
    OWN: tl.constexpr,
    BP: tl.constexpr,
    BC: tl.constexpr,
) -> None:
    """Program axis 0 is the sample, axis 1 the block of channels; reduced are the pixels.

    With d = x - centre: the sums of d and d d where OWN, else of g and g d.
    """
    sample = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    x += sample * P * C
    g += sample * P * C
    middle = tl.load(centre + sample * C + c, c < C, 0.0)
    one = tl.zeros((BP, BC), tl.float32)
    two = tl.zeros((BP, BC), tl.float32)
    for start in range(0, P, BP):
        pixel = start + tl.arange(0, BP)
        here = (pixel < P)[:, None] & (c < C)[None, :]
        at = pixel[:, None] * C + c[None, :]
        away = tl.load(x + at, here, 0.0).to(tl.float32) - middle[None, :]
        away = tl.where(here, away, 0.0)
        by = away if OWN else tl.load(g + at, here, 0.0).to(tl.float32)
        one += by
        two += by * away
    at = sample * C + c
    tl.store(first + at, tl.sum(one, 0), c < C)
    tl.store(second + at, tl.sum(two, 0), c < C)
