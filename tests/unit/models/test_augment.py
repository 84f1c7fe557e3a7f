"""Crop and flip against a slow loop over images."""

import pytest
import torch
import torch.nn.functional as F

from tunefree.core import random
from tunefree.core.errors import ArgumentError
from tunefree.models.augment import CropFlip, parse


def images(*lead, shape=(3, 7, 5)):
    return torch.randn(*lead, *shape, generator=torch.Generator().manual_seed(0))


def slow(x, key, pad, flip):
    """One image at a time: pad, crop, mirror."""
    out = torch.zeros_like(x)
    high, wide = x.shape[-2:]
    for b in range(len(x)):
        mirror, top, left = (
            int(random.below(key[b], torch.tensor(i), n))
            for i, n in enumerate((2, 2 * pad + 1, 2 * pad + 1))
        )
        image = F.pad(x[b], (pad, pad, pad, pad))[:, top : top + high, left : left + wide]
        out[b] = image.flip(-1) if flip and mirror else image
    return out


@pytest.mark.parametrize(("pad", "flip"), [(4, True), (2, False), (0, True), (9, True), (0, False)])
def test_equals_the_loop(pad, flip):
    x, key = images(40), random.key(0, "augment", torch.arange(40))
    before = x.clone()
    assert torch.equal(CropFlip(pad=pad, flip=flip)(x, key), slow(x, key, pad, flip))
    assert torch.equal(x, before)


def test_hand_made():
    x = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    shifts = {
        tuple(CropFlip(pad=1, flip=False)(x, torch.tensor([k])).flatten().tolist())
        for k in range(200)
    }
    expected = {
        tuple(F.pad(x, (1, 1, 1, 1))[0, 0, r : r + 2, c : c + 2].flatten().tolist())
        for r in range(3)
        for c in range(3)
    }
    assert shifts == expected
    flips = {tuple(CropFlip(pad=0)(x, torch.tensor([k])).flatten().tolist()) for k in range(20)}
    assert flips == {(1.0, 2.0, 3.0, 4.0), (2.0, 1.0, 4.0, 3.0)}


def test_batch_mates_do_not_matter():
    x, key = images(10), torch.arange(10)
    full = CropFlip()(x, key)
    assert torch.equal(CropFlip()(x[3:4], key[3:4]), full[3:4])
    assert torch.equal(CropFlip()(x.flip(0), key.flip(0)), full.flip(0))


def test_clients_by_samples():
    x, key = images(4, 5), torch.arange(20).reshape(4, 5)
    rows = CropFlip()(x, key)
    assert rows.shape == x.shape
    for i in range(4):
        assert torch.equal(rows[i], CropFlip()(x[i], key[i]))


def test_identity_and_dtype():
    x = images(2)
    assert CropFlip(pad=0, flip=False)(x, torch.arange(2)) is x
    for dtype in (torch.float64, torch.uint8):
        assert CropFlip()(x.to(dtype), torch.arange(2)).dtype == dtype


def test_flips_half():
    x = images(1, shape=(1, 1, 2)).expand(4000, 1, 1, 2)
    out = CropFlip(pad=0)(x, random.key(1, "augment", torch.arange(4000)))
    assert abs((out != x).any(-1).double().mean().item() - 0.5) < 0.04


def test_parse():
    assert parse("crop-flip") == CropFlip(pad=4, flip=True)
    assert parse("none") is None
    with pytest.raises(ArgumentError, match=r"Unknown augmentation 'crop-flop'. Did you mean"):
        parse("crop-flop")


def test_bad_arguments():
    with pytest.raises(ArgumentError) as error:
        CropFlip(pad=-1)
    assert str(error.value) == "CropFlip(pad=...) must be an int >= 0, got -1."
    with pytest.raises(ArgumentError) as error:
        CropFlip()(images(2), torch.arange(3))
    assert "got (2, 3, 7, 5) with keys of shape (3,)." in str(error.value)
