"""Moments of the clients' columns, as sums that clients send before round 0."""

import torch
from torch import Tensor

from ..wire import Ledger
from .pool import ClientPool, QueryRequest

UNSAFE = 1e-9  # a variance below this share of mean^2 is lost to rounding: ask again, at the mean


def exchange_moments(
    pool: ClientPool, clients: int, like: Tensor, ledger: Ledger, once: bool = False
) -> Tensor:
    """Return the columns' means and scales (2, columns) over all clients' samples.

    Every client sends its number of samples and, for each column, the sums of x and of x^2, in
    float64. If a column's mean is very large compared with its deviation, they send the sums of
    x - mean and its square as well. A scale is the standard deviation; a constant column has 1.

    Args:
        pool: The clients.
        clients: Number of clients.
        like: A tensor (2, columns) with the result's dtype and device.
        ledger: Counts the bytes, those of the result to all clients included.
        once: Whether clients may be asked only once.
    """
    everyone = torch.arange(clients)

    def ask(shift: Tensor, sent: dict[str, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        request = QueryRequest(everyone, -1, "moments", [shift], "all", sent)
        (found,) = pool.query(request, ledger)
        first, second = (found[1:] / found[0]).chunk(2)
        return shift + first, second - first.square()

    mean, variance = ask(torch.zeros_like(like[0], dtype=torch.float64), {})
    if not once and bool((variance <= UNSAFE * mean.square()).any()):
        mean, variance = ask(mean)
    deviation = variance.clamp(min=0).sqrt()
    rounding = 8 * torch.finfo(like.dtype).eps * mean.abs()
    varies = (deviation > rounding) & torch.isfinite(deviation)
    mean = torch.where(torch.isfinite(mean), mean, 0.0)
    result = torch.stack([mean, torch.where(varies, deviation, 1.0)]).to(like.dtype)
    ledger.send_down({"scale": result}, clients, all=True)
    return result
