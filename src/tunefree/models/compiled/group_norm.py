"""Group normalisation of m clients in few passes over the images.

Wu & He, ECCV 2018, arXiv:1803.08494. With mean and var those of a group of a sample's channels:

    out = h w + b,   h = (x - mean) s,   s = 1 / sqrt(var + eps)

Sums over pixels are taken per channel, which reads channels-last images in memory order, and then
combined into groups. The forward pass sums x - c and its square, with c the mean of a few pixels
of the channel, to avoid cancellation. The backward pass, with n the elements of a group and g the
gradient in `out`:

    p = sum of g,   q = sum of g h                   over the pixels of a channel
    grad_b = sum of p,   grad_w = sum of q           over samples
    grad_x = s (w g - P - h Q),   P, Q = sums of w p, w q over the group's channels, divided by n

It replaces PyTorch's, which queries a memory format that vmap does not support, and whose gradients
were wrong when compiled for a GPU after a pool (torch 2.11).

Differences from PyTorch's: it can be differentiated once, not twice. Under autocast, the result of
bfloat16 images is bfloat16; sums and statistics are float32 in both.
"""

from typing import Any

import torch
from torch import Tensor

from ..conv2d import clients_first, materialize
from ..gpu import kernels

SAMPLED = 4  # pixels along an axis, about, that estimate a channel's mean


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    """Return `F.group_norm` of (B, C, ...)."""
    pixels, channels = input.shape[2:], input.shape[1]
    exact = torch.promote_types(input.dtype, torch.float32)
    ones = torch.ones(channels, dtype=exact, device=input.device)
    w = ones if weight is None else weight.to(exact)
    b = torch.zeros_like(ones) if bias is None else bias.to(exact)
    images = input if pixels else input.unsqueeze(2)
    out: Tensor = _GroupNorm.apply(images, w, b, num_groups, eps)[0]  # type: ignore[no-untyped-call]
    return out if pixels else out.squeeze(2)


class _GroupNorm(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, w: Tensor, b: Tensor, groups: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        estimate = _estimate_mean(x).to(w.dtype)
        first, second = (t / x[0, 0].numel() for t in _channel_sums(x, estimate))
        mean, var = estimate + first, second - first.square()  # (B, C), of channels
        centre = _group_mean(mean, groups)
        s = torch.rsqrt(_group_mean(var + (mean - centre).square(), groups) + eps)
        out = (x.to(w.dtype) - _per_pixel(centre, x)) * _per_pixel(s * w, x) + _per_pixel(b, x)
        return out.to(x.dtype), centre, s

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, w, _, ctx.groups, _ = inputs
        _, mean, s = output
        ctx.mark_non_differentiable(mean, s)
        ctx.save_for_backward(x, w, mean, s)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        g, (x, w, mean, s) = grads[0], ctx.saved_tensors
        p, q = _channel_sums(x, mean, g)
        q = q * s
        by_p, by_q = (_group_mean(w * t, ctx.groups) / x[0, 0].numel() for t in (p, q))
        away = (x.to(w.dtype) - _per_pixel(mean, x)) * _per_pixel(s * s * by_q, x)
        gx = g.to(w.dtype) * _per_pixel(s * w, x) - away - _per_pixel(s * by_p, x)
        return gx.to(x.dtype), q.sum(0), p.sum(0), None, None


def _estimate_mean(x: Tensor) -> Tensor:
    """Return the mean of a few pixels of each channel; a single one could be an outlier."""
    for axis in range(2, x.ndim):
        x = x[(slice(None),) * axis + (slice(None, None, max(1, x.shape[axis] // SAMPLED)),)]
    return x.float().flatten(2).mean(2) if x.dtype == torch.bfloat16 else x.flatten(2).mean(2)


def _group_mean(channels: Tensor, groups: int) -> Tensor:
    """Return the mean over each group's channels, repeated for each of them: (B, C)."""
    each = channels.reshape(len(channels), groups, -1)
    return each.mean(2, keepdim=True).expand_as(each).reshape(channels.shape)


def _per_pixel(numbers: Tensor, x: Tensor) -> Tensor:
    """Return numbers (B, C) or (C,) with axes of length one for the pixels of x (B, C, ...)."""
    return numbers.reshape(*numbers.shape, *[1] * (x.ndim - 2))


def _channel_sums(x: Tensor, centre: Tensor, g: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the sums over pixels of d and d d, with d = x - centre; given g, of g and g d."""
    found: tuple[Tensor, Tensor] = _ChannelSums.apply(x, centre, g)  # type: ignore[no-untyped-call]
    return found


class _ChannelSums(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, centre: Tensor, g: Tensor | None) -> tuple[Tensor, Tensor]:
        away = x.to(centre.dtype) - _per_pixel(centre, x)
        by = away if g is None else g.to(centre.dtype)
        pixels = tuple(range(centre.ndim, x.ndim))
        return by.sum(pixels), (by * away).sum(pixels)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(
        info: Any, dims: Any, x: Tensor, centre: Tensor, g: Tensor | None
    ) -> tuple[tuple[Tensor, Tensor], int]:
        x, centre = clients_first(info, dims[:2], x, centre)
        by = None if g is None else clients_first(info, dims[2:], g)[0]
        if x.ndim == 5 and centre.dtype == torch.float32 and kernels.is_available(x.device):
            read = [None if t is None else materialize(t.permute(0, 1, 3, 4, 2)) for t in (x, by)]
            found: tuple[Tensor, Tensor] = _kernel_sums(read[0], centre, read[1])
            return found, 0
        flat, middle = x.flatten(0, 1), centre.flatten(0, 1)
        out = _ChannelSums.forward(flat, middle, None if by is None else by.flatten(0, 1))
        return (out[0].reshape(centre.shape), out[1].reshape(centre.shape)), 0


@torch.library.custom_op("tunefree::pixel_sums", mutates_args=())
def _kernel_sums(x: Tensor, centre: Tensor, g: Tensor | None) -> tuple[Tensor, Tensor]:
    return kernels.channel_sums(x, centre.contiguous(), g)


@_kernel_sums.register_fake
def _(x: Tensor, centre: Tensor, g: Tensor | None) -> tuple[Tensor, Tensor]:
    # Contiguous as the kernel's results are, whatever the strides of `centre`: the compiler reads
    # the results by the strides that it finds here.
    return centre.new_empty(centre.shape), centre.new_empty(centre.shape)
