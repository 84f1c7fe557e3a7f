"""Time steps of recurrent layers: the GPU's kernels against plain operations, and low precision."""

import pytest
import torch

import tunefree as tf
from tunefree.models import nets, recurrence
from tunefree.models.gpu import recurrence as gpu
from tunefree.models.gpu.kernels import Blocks
from unit.models.gpu.test_kernels import DEVICE, INTERPRETED, needs_triton

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

SIZES = {"one tile": (2, 3, 16, 32), "parts of tiles": (2, 3, 5, 24), "tiles": (1, 2, 33, 70)}


def arguments(kind, sizes, dtype, bias=True):
    """Return a, w, b, h, c of m clients, length, B and hidden, and gradients in h and c."""
    m, length, batch, hidden = sizes
    draw = torch.Generator().manual_seed(0)

    def randn(*shape):
        return torch.randn(shape, generator=draw).to(DEVICE)

    gates = recurrence.GATES[kind] * hidden
    a, w = randn(m, length, batch, gates), randn(m, gates, hidden) / hidden**0.5
    b = randn(m, gates).to(dtype) if bias else None
    h, c = randn(m, batch, hidden).to(dtype), randn(m, batch, hidden)
    g = randn(m, length, batch, hidden).to(dtype), randn(m, batch, hidden)
    return (a.to(dtype), w.to(dtype), b, h, c if kind == "lstm" else None), g


@needs_triton
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_equal_plain_operations(kind, bias, reverse, sizes, dtype, monkeypatch):
    if INTERPRETED and dtype == torch.bfloat16:
        pytest.skip("Triton's interpreter multiplies the bits of bfloat16 as integers")
    given, (g, g_end) = arguments(kind, SIZES[sizes], dtype, bias)
    found = []
    for fast in (False, True):
        monkeypatch.setattr(gpu, "is_available", lambda w, kind, fast=fast: fast)
        outs = recurrence.forward(*given, kind, reverse)
        kept = outs if not found else found[0][:3]
        back = (given[1], *given[3:], *kept)
        found.append((*outs, *recurrence.backward(g, g_end, *back, kind, reverse)))
    tolerance = 3e-2 if dtype == torch.bfloat16 else 1e-5 if INTERPRETED else 5e-3
    count = -1 if kind == "gru" else None  # the last is the gradient in c
    for plain, kernel in zip(*(results[:count] for results in found), strict=True):
        torch.testing.assert_close(kernel, plain, rtol=tolerance, atol=tolerance)


@needs_triton
@pytest.mark.parametrize("blocks", [Blocks(16, 16, 16), Blocks(32, 64, 32), Blocks(64, 16, 128)])
def test_tiles_do_not_change_results(blocks, monkeypatch):
    given, _ = arguments("lstm", (2, 2, 20, 40), torch.float32)
    monkeypatch.setattr(gpu, "is_available", lambda w, kind: True)
    first = recurrence.forward(*given, "lstm", False)
    monkeypatch.setattr(gpu, "FORWARD", {torch.float32: blocks})
    tolerance = 1e-5 if INTERPRETED else 5e-3
    again = recurrence.forward(*given, "lstm", False)
    torch.testing.assert_close(again, first, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_bfloat16_is_near_float32(name):
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(9, (24, 6), generator=draw)
    fed = tf.Federation(ids, ids[:, 0], torch.arange(24) % 3)
    net = nets.build(name, shape=(6,), classes=9, embedding=8, hidden=16)
    start = torch.cat([p.detach().flatten() for p in net.parameters()])
    moves = []
    for precision in ("fp32", "bf16"):
        engine = tf.Engine(backend="vmap", precision=precision)
        method = tf.methods.get("fedavg", lr=0.5)
        run = tf.fit(net, fed, method, rounds=2, steps=3, batch=4, device="cpu", engine=engine)
        moves.append(run.x - start)
    assert not torch.equal(*moves)
    assert (moves[1] - moves[0]).norm() < 0.02 * moves[0].norm()
