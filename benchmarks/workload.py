"""What is measured: a network, data of its shape, and a plain loop that trains it."""

import copy
import math
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tunefree.core.types import Inputs, map_inputs
from tunefree.data import Federation
from tunefree.models import lora, nets
from tunefree.models.problem import Precision

LR = 0.1
BLOCK = 10_000  # rows at once
SAMPLES = 100  # of every client, unless a suite says otherwise
VOCABULARY = {"lstm": 80, "gru": 80, "text": 10_000, "bert": 10_000}  # networks that read tokens
NEXT_TOKEN = ("gpt",)  # networks whose targets are tokens too, one at every position


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A FedAvg round: `cohort` clients of `clients`, each `steps` steps on batches of `batch`."""

    net: str
    shape: tuple[int, ...]
    classes: int
    clients: int
    batch: int
    steps: int
    cohort: int | None = None
    samples: int = SAMPLES
    args: Mapping[str, Any] = field(default_factory=dict)  # the network's own
    lora: Mapping[str, Any] | None = None  # arguments of `lora`, where only adapters are trained

    def model(self) -> nn.Module:
        """Return the initial network."""
        net = nets.build(self.net, shape=self.shape, classes=self.classes, **self.args)
        return net if self.lora is None else lora(net, **self.lora)

    def data(self) -> tuple[Any, Tensor]:
        """Return random samples of the right shape for all clients."""
        return make_samples(self.net, self.shape, self.classes, self.clients * self.samples)

    def federation(self, pair: tuple[Any, Tensor]) -> Federation:
        """Return these samples divided among the clients, the same number each."""
        return Federation(*pair, torch.arange(len(pair[1])) // self.samples, name="random")


def make_samples(
    net: str, shape: tuple[int, ...], classes: int, rows: int, seed: int = 0
) -> tuple[Any, Tensor]:
    """Return random samples: tokens, or numbers around a centre of each class.

    They are about as long as MNIST's images, of norm 10, so that a rate of 0.1 stays finite; for
    least squares of norm 1.
    """
    g = torch.Generator().manual_seed(seed + 1)  # 0 is the centres'
    if net in NEXT_TOKEN:
        ids = torch.randint(classes, (rows, shape[0] + 1), generator=g)
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    y = torch.arange(rows) % classes
    if net in VOCABULARY:
        ids = torch.randint(VOCABULARY[net], (rows, *shape), generator=g)
        return (ids if net in ("lstm", "gru") else {"ids": ids, "mask": torch.ones(ids.shape)}), y
    centre = torch.randn(classes, *shape, generator=torch.Generator().manual_seed(0))
    x = torch.empty(rows, *shape).normal_(generator=g)
    norm = 1.0 if net == "regression" else 10.0
    scale = min(1.0, norm / math.sqrt(2 * math.prod(shape)))
    for low in range(0, rows, BLOCK):  # in place: a second copy of x would be gigabytes
        part = slice(low, low + BLOCK)
        x[part].add_(centre[y[part]]).mul_(scale)
    return x, (torch.randn(rows, generator=g) if net == "regression" else y)


class PlainLoop:
    """FedAvg in plain PyTorch, one client after the other.

    Args:
        model: Trained in place, on the data's device.
        federation: The clients' data, where it is to be trained on.
        cohort: Clients drawn for a round.
        batch: Samples per step.
        steps: Steps of each client; batches come from shuffled passes over its own data.
        precision: As in `fit`: fp32, tf32 (which auto is on a GPU), or bf16, here by autocast.
    """

    def __init__(
        self,
        model: nn.Module,
        federation: Federation,
        *,
        cohort: int,
        batch: int,
        steps: int,
        precision: Precision = "auto",
    ) -> None:
        self.fed, self.cohort, self.batch, self.steps = federation, cohort, batch, steps
        self.device = federation.y.device
        self.model, self.local = model.to(self.device), copy.deepcopy(model).to(self.device).train()
        self.starts, self.sizes = federation.starts.tolist(), federation.sizes.tolist()
        self.precision = precision
        self._order = torch.Generator(self.device).manual_seed(0)
        self._who = random.Random(0)
        real = federation.y.is_floating_point()
        self.loss: Callable[..., Tensor] = nn.functional.mse_loss if real else _cross_entropy

    def round(self) -> None:
        """Train a cohort and put the mean of its models into `model`; frozen parameters stay."""
        whole, local = _trained(self.model), _trained(self.local)
        mean = [torch.zeros_like(v) for v in whole]
        with allow_tf32(self.precision, self.device):
            for i in self._who.sample(range(self.fed.clients), self.cohort):
                _copy(local, whole)
                self._train(i)
                for total, value in zip(mean, local, strict=True):
                    total += value.detach() / self.cohort
        _copy(whole, mean)

    def _train(self, i: int) -> None:
        optimizer = torch.optim.SGD(_trained(self.local), lr=LR)
        for rows in self._batches(i):
            optimizer.zero_grad()
            with _autocast(self.precision, self.device):
                inputs = map_inputs(lambda t, rows=rows: t[rows], self.fed.x)  # type: ignore[misc]
                loss = self.loss(_call(self.local, inputs), self.fed.y[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    def _batches(self, i: int) -> Iterator[Tensor]:
        n, b = self.sizes[i], min(self.batch, self.sizes[i])
        passes = -(-self.steps * b // n)
        orders = [
            torch.randperm(n, generator=self._order, device=self.device) for _ in range(passes)
        ]
        stream = torch.cat(orders) + self.starts[i]
        return iter(stream.split(b)[: self.steps])


class HandLoop(PlainLoop):
    """The plain loop as an expert would write it, still one client after the other.

    A client's batches are gathered before its first step, gradients come from
    `torch.autograd.grad`, and all tensors are updated in one call.
    """

    def round(self) -> None:
        """Train a cohort and put the mean of its models into `model`; frozen parameters stay."""
        whole, local = _trained(self.model), _trained(self.local)
        mean = [torch.zeros_like(v) for v in whole]
        with allow_tf32(self.precision, self.device):
            for i in self._who.sample(range(self.fed.clients), self.cohort):
                with torch.no_grad():
                    torch._foreach_copy_(local, whole)
                self._train(i)
                with torch.no_grad():
                    torch._foreach_add_(mean, local, alpha=1 / self.cohort)
        with torch.no_grad():
            torch._foreach_copy_(whole, mean)

    def _train(self, i: int) -> None:
        local, batches = _trained(self.local), list(self._batches(i))
        size, rows = len(batches[0]), torch.cat(batches)
        inputs, target = map_inputs(lambda t: t[rows], self.fed.x), self.fed.y[rows]
        for k in range(len(batches)):
            now = slice(k * size, (k + 1) * size)
            batch = map_inputs(lambda t, now=now: t[now], inputs)  # type: ignore[misc]
            with _autocast(self.precision, self.device):
                loss = self.loss(_call(self.local, batch), target[now])
            grads = torch.autograd.grad(loss, local, materialize_grads=True)
            with torch.no_grad():
                torch._foreach_add_(local, grads, alpha=-LR)


def _trained(model: nn.Module) -> list[Tensor]:
    return [p for p in model.parameters() if p.requires_grad]


def _copy(into: list[Tensor], values: list[Tensor]) -> None:
    with torch.no_grad():
        for held, value in zip(into, values, strict=True):
            held.copy_(value)


def _cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output.flatten(0, -2), target.flatten())


def _call(model: nn.Module, inputs: Inputs) -> Tensor:
    out: Tensor = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    return out


def _autocast(precision: Precision, device: torch.device) -> Any:
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()


@contextmanager
def allow_tf32(precision: Precision, device: torch.device) -> Iterator[None]:
    """Allow or forbid TF32 in float32 products on a GPU; restore the former setting at the end."""
    if device.type != "cuda":
        yield
        return
    places: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [place.allow_tf32 for place in places]
    try:
        for place in places:
            place.allow_tf32 = precision != "fp32"
        yield
    finally:
        for place, was in zip(places, before, strict=True):
            place.allow_tf32 = was
