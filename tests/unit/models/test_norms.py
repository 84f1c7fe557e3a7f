"""BatchNorm: refused with a sentence, and converted to GroupNorm."""

import pytest
import torch
from torch import nn

from tunefree.core.errors import ArgumentError
from tunefree.models.norms import groupnorm, refuse_batchnorm


def net():
    model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6, eps=1e-3), nn.ReLU())
    nn.init.uniform_(model[1].weight)
    nn.init.uniform_(model[1].bias)
    return model


def test_conversion_keeps_weights_and_the_original():
    old = net().eval()
    new = groupnorm(old)
    assert isinstance(old[1], nn.BatchNorm2d)
    assert isinstance(new[1], nn.GroupNorm)
    assert (new[1].num_groups, new[1].num_channels, new[1].eps) == (2, 6, 1e-3)
    assert torch.equal(new[1].weight, old[1].weight)
    assert torch.equal(new[1].bias, old[1].bias)
    assert new[1].weight is not old[1].weight
    assert not new[1].training
    assert list(new.buffers()) == []
    x = torch.randn(2, 1, 8, 8)
    y = new(x)
    assert torch.allclose(y[:1], new(x[:1]), atol=1e-6)  # samples no longer mix
    refuse_batchnorm(new)


@pytest.mark.parametrize(
    ("channels", "groups", "expected"), [(6, 4, 2), (5, 2, 1), (8, 8, 8), (6, 1, 1)]
)
def test_groups_divide_the_channels(channels, groups, expected):
    assert groupnorm(nn.BatchNorm2d(channels), groups).num_groups == expected


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm])
def test_every_kind(kind):
    layer = kind(4, affine=False)
    new = groupnorm(nn.Sequential(layer))[0]
    assert isinstance(new, nn.GroupNorm)
    assert new.weight is None
    with pytest.raises(ArgumentError) as error:
        refuse_batchnorm(nn.ModuleDict({"body": nn.Sequential(nn.ReLU(), layer)}))
    assert str(error.value) == (
        f"Cannot train this model: layer 'body.1' is a {kind.__name__}, whose statistics mix the "
        "samples of a batch and belong to no client; use tf.models.groupnorm(model), which "
        "replaces it by GroupNorm."
    )


def test_shared_and_frozen_layers_stay_so():
    layer = nn.BatchNorm1d(4).requires_grad_(False)
    new = groupnorm(nn.Sequential(layer, nn.ReLU(), layer).double())
    assert new[0] is new[2]
    assert not new[0].weight.requires_grad
    assert new[0].weight.dtype == torch.float64


def test_the_model_itself():
    with pytest.raises(ArgumentError, match="the model itself is a BatchNorm1d"):
        refuse_batchnorm(nn.BatchNorm1d(2))


def test_instance_norm_with_running_statistics_is_refused():
    refuse_batchnorm(nn.InstanceNorm2d(3))
    with pytest.raises(ArgumentError) as error:
        refuse_batchnorm(nn.Sequential(nn.InstanceNorm2d(3, track_running_stats=True)))
    assert str(error.value) == (
        "Cannot train this model: layer '0' is a InstanceNorm2d with track_running_stats=True, "
        "whose running statistics belong to no client; build it with track_running_stats=False."
    )


def test_bad_groups():
    with pytest.raises(ArgumentError) as error:
        groupnorm(net(), groups=0)
    assert str(error.value) == "groupnorm(groups=...) must be an int >= 1, got 0."


def test_lazy_layers_need_a_batch_first():
    with pytest.raises(ArgumentError, match="layer '0' is a LazyBatchNorm2d that has not seen"):
        groupnorm(nn.Sequential(nn.LazyBatchNorm2d()))


def test_the_compiler_knows_the_strides_of_pixel_sums():
    """The kernel's results are contiguous, whatever the strides of the centres that it is given."""
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        x = torch.empty(2, 3, 5, 5, 8)
        centre = torch.empty(3, 2, 8).transpose(0, 1)  # (m, B, C), not contiguous
        found = torch.ops.tunefree.pixel_sums(x, centre, None)
    assert [t.stride() for t in found] == [(24, 8, 1), (24, 8, 1)]
