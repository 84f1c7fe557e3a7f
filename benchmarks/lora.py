"""Suite lora: low-rank adapters of language models on a frozen base, 20 clients with batches of 4.

GPT-2 small (124 million parameters, next token, 256 tokens) with adapters of `c_attn`, and BERT
base (109 million, two classes, 64 tokens) with adapters of `query` and `value` and a trained
classifier. The plain loop trains one client after the other: its own adapters, an SGD optimizer,
autograd, the same network and precision. All clients take part in every round. Tokens are random
and the base is not pretrained, which changes no time.

Of the memory, `bound` is what a batch of clients may need at the most: the base, and for every
client what the plain loop holds beyond the base in its step (adapters, gradients, activations).

What is not compiled is measured first; each row is printed when it is measured. Compilation takes
most of the time: --modes, --models and --precisions choose rows. With PyTorch and NumPy alone:

    PYTHONPATH=src python -uc "import benchmarks; benchmarks.measure('lora', say=print)"
"""

import gc
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, get_args

import torch

from tunefree.core.device import find_device
from tunefree.core.errors import ArgumentError, check_in_range, check_int, unknown_name
from tunefree.models.problem import Precision

from .text import format_bytes, format_number, format_range
from .timing import PeakMemory, Say, measure_beside, silent, synchronize
from .workload import PlainLoop, Workload

Mode = Literal["eager", "compiled"]
WARM = 1
SAMPLES = 8  # of every client
TINY = {"width": 16, "layers": 2, "heads": 2, "hidden": 32}


@dataclass(frozen=True, kw_only=True)
class Lora:
    """Settings of the suite.

    Args:
        models: gpt (GPT-2 small) and bert (BERT base).
        precisions: bf16 and tf32 on a GPU, elsewhere auto; also fp32.
        modes: eager leaves out compilation, compiled does not.
        clients: Clients of the cohort.
        batch: Samples per local step.
        tokens: Tokens of a sample; 256 for gpt, 64 for bert.
        rank: Rank of the adapters.
        dropout: Probability of dropping a unit, on both sides; 0 leaves dropout out.
        steps: Local steps per round.
        repeats: Rounds of ours that are measured.
        plain_repeats: Rounds of the plain loop that are measured; 0 leaves it out.
        tiny: Two layers of width 16 and 50 tokens to choose from, to try the suite.
        device: auto, cuda, cpu, ...
    """

    models: tuple[str, ...] = ("gpt", "bert")
    precisions: tuple[Precision, ...] = ()
    modes: tuple[Mode, ...] = ("eager", "compiled")
    clients: int = 20
    batch: int = 4
    tokens: int | None = None
    rank: int = 8
    dropout: float = 0.0
    steps: int = 4
    repeats: int = 3
    plain_repeats: int = 1
    tiny: bool = False
    device: str = "auto"

    def __post_init__(self) -> None:
        known = {"models": ("gpt", "bert"), "modes": get_args(Mode)}
        for field, names in (known | {"precisions": get_args(Precision)}).items():
            for name in getattr(self, field):
                if name not in names:
                    raise unknown_name(field.removesuffix("s"), name, names)
            if field in known and not getattr(self, field):
                raise ArgumentError(f"Lora({field}=...) must name at least one, got none.")
        for name in ("clients", "batch", "rank", "steps", "repeats"):
            check_int("Lora", name, getattr(self, name))
        if self.tokens is not None:
            check_int("Lora", "tokens", self.tokens)
        check_in_range("Lora", "dropout", self.dropout, 0, 1)
        check_int("Lora", "plain_repeats", self.plain_repeats, 0)
        if self.plain_repeats > self.repeats:
            raise ArgumentError(
                f"Lora(plain_repeats=...) must be at most repeats, {self.repeats}, got "
                f"{self.plain_repeats}."
            )

    def workload(self, model: str) -> Workload:
        """Return the measured work of a model."""
        sizes: dict[str, Any] = TINY if self.tiny else {}
        if model == "gpt":
            tokens, classes = self.tokens or 256, 50 if self.tiny else 50_257
            adapters: dict[str, Any] = {"targets": ("c_attn",), "head": ()}
        else:
            tokens, classes = self.tokens or 64, 2
            sizes = sizes | {"vocab": 10_000} if self.tiny else sizes
            adapters = {"targets": ("query", "value"), "head": ("classifier",)}
        return Workload(
            net=model,
            shape=(tokens,),
            classes=classes,
            clients=self.clients,
            batch=self.batch,
            steps=self.steps,
            samples=max(SAMPLES, self.batch),
            args={**sizes, "dropout": self.dropout},
            lora={"rank": self.rank, **adapters},
        )


def measure(settings: Lora, say: Say = silent) -> list[dict[str, Any]]:
    """Return one row per mode, precision and model."""
    device = find_device(settings.device)
    asked: tuple[Precision, ...] = ("bf16", "tf32") if device.type == "cuda" else ("auto",)
    rows = []
    for mode, model, precision in product(
        settings.modes, settings.models, settings.precisions or asked
    ):
        work = settings.workload(model)
        row = measure_beside(
            work,
            device,
            warm=WARM,
            repeats=settings.repeats,
            plain_repeats=settings.plain_repeats,
            compile=mode == "compiled",
            precision=precision,
        )
        base = sum(p.nbytes for p in work.model().parameters() if not p.requires_grad)
        one = _client_memory(work, device, precision)
        bound = None if one is None else base + work.clients * one
        row |= {"tokens": work.shape[0], "rank": settings.rank, "dropout": settings.dropout}
        row |= {"mode": mode, "base": base, "client_memory": one, "bound": bound}
        say(", ".join(f"{name}: {text}" for name, text in _format(row).items() if text))
        rows.append(row)
        gc.collect()  # the memory of this row's graphs
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return rows


def _client_memory(work: Workload, device: torch.device, precision: Precision) -> int | None:
    """Return the bytes beyond the base that a step of one client holds at the most, on a GPU."""
    if device.type != "cuda":
        return None
    data = work.federation(work.data()).to(device)
    plain = PlainLoop(work.model(), data, cohort=1, batch=work.batch, steps=1, precision=precision)
    plain.round()  # libraries allocate their workspaces
    synchronize(device)
    peak = PeakMemory(device)
    plain.round()
    synchronize(device)
    return peak.peak()


def _format(row: dict[str, Any]) -> dict[str, str]:
    return {
        "model": row["model"],
        "clients x batch x tokens": f"{row['clients']} x {row['batch']} x {row['tokens']}",
        "trained": f"{row['parameters']:,}",
        "precision": row["precision"],
        "engine": str(row["engine"]),
        "ours, ms": format_range(row, "ours_ms"),
        "plain loop, ms": format_range(row, "plain_ms"),
        "ratio": "" if row["ratio"] is None else f"{format_number(row['ratio'])}x",
        "memory": format_bytes(row["memory"]),
        "bound": format_bytes(row["bound"]),
        "clients at once": str(row["chunk"]),
        "set-up": f"{row['setup_s']:.1f} s",
    }


def table(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Format the rows for a table, by heading."""
    return [_format(row) for row in rows]
