"""The benchmark's own parts: the plain loop, the clock, what is kept."""

import json
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from benchmarks import (
    busy,
    cpu,
    gpu,
    keep,
    methods,
    pfl_cifar10,
    precision,
    rules,
    scale,
    startup,
    timing,
)
from benchmarks.workload import LR, HandLoop, PlainLoop, Workload, allow_tf32

import tunefree as tf
from tunefree.core.errors import TunefreeError
from tunefree.core.threads import WAIT_LIMITER
from tunefree.models import nets

CPU = torch.device("cpu")


def work(net, **changes):
    shape, classes = cpu.DATA[net]
    given = {"clients": 3, "batch": 4, "steps": 3, "samples": 4} | changes
    return Workload(net=net, shape=shape, classes=classes, **given)


def plain(w, loop=PlainLoop):
    data = w.federation(w.data())
    return loop(w.model(), data, cohort=w.cohort or w.clients, batch=w.batch, steps=w.steps)


@pytest.mark.parametrize("net", ["linear", "regression", "convex", "text"])
def test_the_plain_loop_is_fedavg(net):
    """On whole batches there is nothing to draw, so both must find the same model."""
    w = work(net)
    loop = plain(w)
    start = torch.cat([p.flatten() for p in loop.model.parameters() if p.requires_grad]).clone()
    settings = {"rounds": 2, "steps": 3, "batch": 4, "device": "cpu", "compile": False}
    run = tf.fit(w.model(), loop.fed, tf.methods.get("fedavg", lr=LR), **settings)
    loop.round()
    loop.round()
    found = torch.cat([p.flatten() for p in loop.model.parameters() if p.requires_grad])
    assert (run.x - start).abs().max() > 1e-3
    torch.testing.assert_close(found, run.x, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("net", ["linear", "convex", "text"])
def test_the_loop_by_hand_is_the_plain_one(net):
    """The same clients, batches and steps, so the same model up to rounding; frozen ones stay."""
    w = work(net, cohort=2, samples=5, batch=2, steps=5)
    loops = [plain(w, PlainLoop), plain(w, HandLoop)]
    for loop in loops:
        loop.round()
        loop.round()
    one, other = (torch.cat([p.detach().flatten() for p in x.model.parameters()]) for x in loops)
    assert (one - torch.cat([p.flatten() for p in w.model().parameters()])).abs().max() > 1e-3
    torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6)


def test_the_plain_loop_draws_full_batches_from_shuffled_passes():
    loop = plain(work("linear", samples=5, batch=2, steps=5))
    batches = list(loop._batches(1))
    assert [len(b) for b in batches] == [2] * 5
    stream = torch.cat(batches).tolist()
    assert sorted(stream[:5]) == sorted(stream[5:]) == [5, 6, 7, 8, 9]  # client 1's rows
    assert stream[:5] != stream[5:]


def test_the_plain_loop_trains_a_cohort(monkeypatch):
    loop = plain(work("linear", clients=6, cohort=2))
    seen = []
    monkeypatch.setattr(loop, "_train", seen.append)
    for _ in range(20):
        loop.round()
    assert all(a != b for a, b in zip(seen[::2], seen[1::2], strict=True))
    assert set(seen) == set(range(6))


def test_bf16_is_autocast():
    w = work("linear")
    loop = PlainLoop(
        w.model(), w.federation(w.data()), cohort=3, batch=4, steps=1, precision="bf16"
    )
    kinds = []
    loop.local.head.register_forward_hook(lambda m, x, y: kinds.append(y.dtype))
    loop.round()
    assert set(kinds) == {torch.bfloat16}
    assert {p.dtype for p in loop.model.parameters()} == {torch.float32}


def test_precision_is_put_back():
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    with allow_tf32("tf32", torch.device("cuda")):
        assert torch.backends.cuda.matmul.allow_tf32
        assert torch.backends.cudnn.allow_tf32
    with allow_tf32("fp32", torch.device("cuda")):
        assert not torch.backends.cudnn.allow_tf32
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before


class Clock:
    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(timing.time, "perf_counter", lambda: self.now)

    def passes(self, seconds):
        self.now += seconds


def test_the_watch_takes_turns(monkeypatch):
    """Set-up of 5 s and a first round of 10; then rounds of 2 s, plain ones of 7."""
    clock = Clock(monkeypatch)
    timer = timing.RoundTimer(CPU, warm=2, plain=lambda: clock.passes(7), repeats=2)
    clock.passes(5 + 10)
    played = []
    for t in range(6):
        timer(SimpleNamespace(round=t))
        played.append(clock.now)
        clock.passes(2)
    # one plain round after the warm-up, which is not counted, and one after each of two rounds
    assert played == [15, 24, 33, 42, 44, 46]
    assert timer.took == [15, 2, 2, 2, 2, 2]
    assert timer.ours == [2, 2, 2, 2]
    assert timer.plain == [7, 7]
    assert timer.setup == 13
    assert timer.memory > 10**7


def test_the_watch_takes_turns_in_blocks(monkeypatch):
    """Rounds of 1, 2, 3, ... s; after every two of them two plain ones, of 10 s and more."""
    clock, plain = Clock(monkeypatch), iter(range(10, 30))
    timer = timing.RoundTimer(
        CPU, warm=1, plain=lambda: clock.passes(next(plain)), repeats=2, block=2
    )
    for t in range(7):
        clock.passes(t + 1)
        timer(SimpleNamespace(round=t))
    assert timer.took == [1, 2, 3, 4, 5, 6, 7]
    assert timer.ours == [2.5, 4.5, 6.5]
    assert timer.plain == [12.5, 14.5]  # 10 and 11 are the warm-up


def test_the_watch_plays_the_loop_by_hand_after_the_plain_one(monkeypatch):
    clock = Clock(monkeypatch)
    plays = {"plain": lambda: clock.passes(7), "hand": lambda: clock.passes(3)}
    timer = timing.RoundTimer(CPU, warm=1, repeats=2, **plays)
    for t in range(4):
        clock.passes(2)
        timer(SimpleNamespace(round=t))
    assert (timer.ours, timer.plain, timer.hand) == ([2, 2, 2], [7, 7], [3, 3])
    assert clock.now == 4 * 2 + 3 * (7 + 3)


def test_the_watch_without_a_plain_loop(monkeypatch):
    clock = Clock(monkeypatch)
    timer = timing.RoundTimer(CPU, warm=1, plain=lambda: clock.passes(7), repeats=0)
    alone = timing.RoundTimer(CPU, warm=1)
    for t in range(3):
        clock.passes(1)
        alone(SimpleNamespace(round=t))
    assert (alone.ours, alone.plain, timer.plain) == ([1, 1], [], [])


def test_one_row(monkeypatch):
    """Milliseconds of a round by its steps; the ratio of medians, its range over neighbours."""

    class Timer:
        ours, plain, hand, setup, memory = [0.1, 0.2, 0.4], [0.8, 0.4], [0.2, 0.6], 3.0, 5

        def __init__(self, *given, **named):
            pass

        def __call__(self, event):
            pass

    monkeypatch.setattr(timing, "RoundTimer", Timer)
    given = {"warm": 1, "repeats": 1, "plain_repeats": 1}
    assert "hand_ms" not in timing.measure_beside(work("linear", steps=2), CPU, **given)
    row = timing.measure_beside(work("linear", steps=2), CPU, **given, hand=True)
    assert (row["hand_ms"], row["hand_ms_range"]) == (pytest.approx(200), (100.0, 300.0))
    assert row["hand_ratio"] == pytest.approx(2.0)
    assert row["hand_ratio_range"] == pytest.approx((2.0, 3.0))
    assert (row["ours_ms"], row["ours_ms_range"]) == (100.0, (50.0, 200.0))
    assert row["plain_ms"] == pytest.approx(300.0)
    assert row["ratio"] == pytest.approx(3.0)
    assert row["ratio_range"] == (2.0, 8.0)
    assert (row["setup_s"], row["memory"]) == (3.0, 5)


def test_a_run_that_ends_early_is_not_reported(monkeypatch):
    monkeypatch.setattr(timing, "LR", 1e30)
    with pytest.raises(TunefreeError, match="ended early"):
        timing.measure_beside(work("regression"), CPU, warm=1, repeats=3, plain_repeats=0)


# The suites.


def test_every_network_is_in_the_suite_of_the_cpu():
    assert set(cpu.DATA) == set(nets.names())
    assert set(cpu.SIZES) < set(cpu.DATA)


def test_the_works_of_the_gpu():
    found = {
        n: (sum(p.numel() for p in w.model().parameters()), w.clients, w.batch, w.steps)
        for n, w in gpu.WORKS.items()
    }
    assert found == {
        "mlp": (199_210, 100, 32, 40),
        "cnn-pfl": (1_626_442, 50, 10, 40),
        "cnn-p1": (1_206_590, 100, 20, 40),
        "resnet18": (11_173_962, 20, 50, 40),
        "lstm": (1_093_712, 50, 20, 40),
        "gru": (830_544, 50, 20, 40),
        "vit": (810_890, 50, 20, 40),
        "bert-small": (28_764_674, 50, 20, 40),  # Turc et al.: 28.8 million, with two classes
    }
    compared = {"gru", "vit", "bert-small"}  # with the plain loop only
    assert {name for name, _ in gpu.TARGETS} == set(gpu.WORKS) - compared


def test_methods_beside_fedavg(monkeypatch):
    small = timing.Workload(
        net="linear", shape=(1, 4, 4), classes=3, clients=2, batch=4, steps=2, samples=8
    )
    monkeypatch.setitem(gpu.WORKS, "mlp", small)
    names = ("mime", "fedsls")
    settings = methods.Methods(models=("mlp",), methods=names, repeats=1, eager=True, device="cpu")
    rows = methods.measure(settings)
    assert [row["method"] for row in rows] == ["fedavg", "mime", "fedsls"]
    assert rows[0]["ratio"] == 1
    assert [row["gradients"] for row in rows] == [1, 3, 1]  # MIME: 2 a step, 1 for the full one
    assert rows[2]["trials"] >= 1
    assert {row["method"] for row in rows} == {row["method"] for row in methods.table(rows)}
    assert {"fedavg", "auto", "scaffold", "fedproxlod"} <= set(methods.one_of_each())


def test_cifar10_where_it_is_found(monkeypatch, tmp_path):
    x, y = torch.zeros(200, 3, 32, 32), torch.arange(200) % 10
    whole = tf.Dataset("cifar10", x, y, (x[:10], y[:10]), classes=10)
    monkeypatch.setattr(pfl_cifar10, "load", lambda name, folder: whole)
    monkeypatch.setattr(pfl_cifar10, "locate", lambda source, folder: tmp_path)
    settings = pfl_cifar10.PflCifar10(users=3)
    found = pfl_cifar10._dataset(settings)
    assert (found.name, found.samples) == ("cifar10", 150)
    assert found.test is whole.test
    monkeypatch.setattr(pfl_cifar10, "locate", lambda source, folder: None)
    found = pfl_cifar10._dataset(settings)
    assert (found.name, found.samples, len(found.test[1])) == ("random", 150, 10_000)


def test_growth_is_compared_with_the_first_point(monkeypatch):
    def point(given, settings):
        slow = given["clients"] / 1000 if given["method"] == "scaffold" else 1.0
        facts = {"round_ms": 2.0 * slow, "setup_s": 59.0, "memory": 1}
        return given | facts

    monkeypatch.setattr(scale, "_in_a_process", point)
    rows = scale.measure(scale.Scale(curves=("clients",), device="cpu"))
    assert [row["times"] for row in rows] == [1, 1, 1, 1, 1, 10, 100, 1000]
    assert [row.get("met") for row in rows] == [None] * 3 + [True] + [None] * 3 + [False]
    rows = scale.measure(scale.Scale(most=100, device="cpu"))
    assert [(r["curve"], r["cohort"], r["steps"]) for r in rows if r["curve"] != "parameters"] == [
        *[("cohort", m, 5) for m in (10, 30, 100)],
        *[("steps", 100, k) for k in (1, 3, 10, 30, 100)],
    ]


def test_a_million_clients_are_compared_in_turns(monkeypatch):
    calls = []

    def point(given, settings):  # a machine that grows slower, and is slowest for one pair
        calls.append(given["clients"])
        slow = {6: 5.0}.get(len(calls), 1.0 + len(calls[1:]) // 2)
        return given | {"round_ms": slow, "setup_s": 1.0, "memory": 1}

    monkeypatch.setattr(scale, "_in_a_process", point)
    monkeypatch.setattr(
        scale,
        "CURVES",
        {"clients": [c for c in scale.CURVES["clients"] if c["method"] == "fedavg"]},
    )
    rows = scale.measure(scale.Scale(curves=("clients",), device="cpu"))
    assert calls == list(scale.COUNTS) + [scale.COUNTS[0], scale.COUNTS[-1]] * scale.TURNS
    assert [row["times"] for row in rows] == [1, 1, 2, 1]
    assert rows[-1]["times_range"] == (1, 5 / 3)
    assert rows[-1]["met"]
    words = scale.table([row | {"setup_s": 1.0} | _spread(row) for row in rows])
    assert [word["to the first point"] for word in words] == [
        "1.00x", "1.00x", "2.00x", "1.00x (1.00 to 1.67)",
    ]  # fmt: skip


def _spread(row):
    ms = row["round_ms"]
    return {"round_ms_range": (ms, ms), "plain_ms": ms, "plain_ms_range": (ms, ms)}


def test_a_point_that_fails_says_why(monkeypatch):
    monkeypatch.setattr(scale, "CHILD", "raise SystemExit('no memory')")
    with pytest.raises(TunefreeError, match=r'"clients": 2000.* could not be measured: no memory'):
        scale._in_a_process(scale.BASE, scale.Scale())


def test_the_largest_points_take_few_rounds(monkeypatch):
    asked = {}

    def fake(work, device, **given):
        asked[work.net] = given
        return defaultdict(
            lambda: 1.0,
            steps=work.steps,
            ours_ms_range=(1.0, 2.0),
            plain_ms_range=(1.0, 2.0),
        )

    monkeypatch.setattr(scale, "measure_beside", fake)
    given = scale.BASE | {"repeats": 9, "device": "cpu", "threads": 0}
    row = scale.measure_point(**given)
    assert (row["round_ms"], row["round_ms_range"]) == (5.0, [5.0, 10.0])
    assert row["setup_s"] == 2.0  # the federation's and fit's
    scale.measure_point(**given | {"hidden": [1024, 1024, 1024], "cohort": 10})
    assert (asked["linear"]["warm"], asked["linear"]["repeats"]) == (6, 9)
    assert (asked["mlp"]["warm"], asked["mlp"]["repeats"]) == (2, 3)


def test_every_rule_and_penalty_is_measured():
    servers = {type(rule).__name__ for rule in rules.SERVERS.values()}
    parts = [getattr(tf.server, name) for name in tf.server.__all__]
    known = [p for p in parts if isinstance(p, type) and issubclass(p, tf.server.Server)]
    assert servers == {rule.__name__ for rule in known} - {"Server"}
    penalties = {type(p) for p in rules.PENALTIES.values()}
    assert penalties == {*tf.penalties.CATALOGUE.values()} - {tf.penalties.Zero}


def test_precisions_are_compared_seed_by_seed():
    """Differences of 1, 2, 3 points: t = 2 sqrt(3), two-sided p 0.0742, twice that by Holm."""
    row = {"model": "mlp", "method": "auto", "seeds": 3, "accuracy": 0.5, "error": 0.1}
    rows = [{**row, "precision": name, "accuracies": [0.2, 0.5, 0.8]} for name in ("fp32", "tf32")]
    rows.append({**row, "precision": "bf16", "accuracies": [0.21, 0.52, 0.83]})
    found = [line["difference to fp32"] for line in precision.table(rows)]
    assert found == ["", "+0.0000 (p = 1.000)", "+0.0200 (p = 0.148)"]


# What is kept.


def test_the_command_names_what_is_not_the_default(tmp_path):
    given = cpu.Cpu(models=("mlp", "cnn-p2"), steps=3, eager=True)
    assert keep.command("cpu", given) == (
        "python -m benchmarks cpu --models mlp cnn-p2 --steps 3 --eager"
    )
    given = pfl_cifar10.PflCifar10(data_dir=tmp_path, precision="bf16")
    assert keep.command("pfl-cifar10", given) == "python -m benchmarks pfl-cifar10 --precision bf16"


def test_a_record_is_written_under_its_name(tmp_path):
    kept = keep.record("rules", rules.Rules(), CPU, [{"ms": float("nan")}], 1.0)
    kept["machine"] |= {"cpu": "A (B) @ 2 GHz", "cores": 2}
    keep.prepare_output(tmp_path / "new")
    path = keep.save(kept, tmp_path / "new")
    assert path == tmp_path / "new" / "rules-a-b-2-ghz-2-cores.json"
    assert json.loads(path.read_text())["rows"] == [{"ms": None}]
    kept["machine"]["gpu"] = "NVIDIA H200"
    assert keep.save(kept, tmp_path).name == "rules-nvidia-h200.json"
    assert keep.save(kept, tmp_path / "mine.json").name == "mine.json"
    assert keep.describe_machine(kept).startswith("NVIDIA H200; A (B) @ 2 GHz, 2 cores")


def test_a_second_process_is_compared_with_the_first(monkeypatch):
    """The first finds empty folders, the second what the first left in them."""
    seen = []

    def run(words, env, **named):
        where = Path(env["TORCHINDUCTOR_CACHE_DIR"])
        seen.append((words[1:], where.exists()))
        where.mkdir(exist_ok=True)
        said = {"setup_s": 9.0 if len(seen) == 1 else 2.0, "engine": "vmap", "precision": "fp32"}
        return SimpleNamespace(returncode=0, stdout=f"a line\n{json.dumps(said)}\n", stderr="")

    monkeypatch.setattr(timing.subprocess, "run", run)
    (row,) = startup.measure(startup.Startup(models=("mlp",), clients=3, device="cpu"))
    words = ["-m", "benchmarks.startup", "mlp", "3", "32", "cpu"]
    assert seen == [(words, False), (words, True)]
    assert (row["setup_s"], row["setup_s_again"], row["engine"]) == (9.0, 2.0, "vmap")
    assert startup.table([row])[0]["again, s"] == "2.00"


def test_a_process_that_fails_is_reported(monkeypatch):
    failed = SimpleNamespace(returncode=1, stdout="", stderr="Traceback\nValueError: no")
    monkeypatch.setattr(timing.subprocess, "run", lambda *args, **named: failed)
    with pytest.raises(TunefreeError, match="plays mlp failed: ValueError: no"):
        startup.measure(startup.Startup(models=("mlp",)))


def test_rounds_beside_other_programs(monkeypatch):
    """Each number of programs is measured twice, and none is left running."""
    running, seen = [], []

    class Program:
        def __init__(self, words):
            running.append(self)

        def kill(self):
            running.remove(self)

        def wait(self):
            pass

    def run(words, **named):
        seen.append((words[1:], len(running)))
        said = {"ours_ms": 2.0, "ours_ms_range": [1.0, 3.0]}
        return SimpleNamespace(returncode=0, stdout=json.dumps(said), stderr="")

    monkeypatch.setattr(timing.subprocess, "Popen", Program)
    monkeypatch.setattr(timing.subprocess, "run", run)
    rows = busy.measure(busy.Busy(programs=(0, 2), repeats=4))
    words = ["-m", "benchmarks.busy", "mlp", "4"]
    both = [[*words, which] for which in ("limited", "unlimited")]
    assert seen == [(w, n) for n in (0, 2) for w in both]
    assert not running
    assert busy.table(rows)[1]["other programs"] == "2"
    assert busy.table(rows)[1]["ours, ms"] == "2.00 (1.00 to 3.00)"


def test_one_process_of_busy(monkeypatch):
    calls = []
    monkeypatch.setattr(WAIT_LIMITER, "update", lambda: calls.append(1))
    assert busy.play("linear", 1, "limited")["ours_ms"] > 0
    assert len(calls) == 4
    assert busy.play("linear", 1, "unlimited")["ours_ms"] > 0
    assert len(calls) == 4


def test_one_process_of_startup(monkeypatch):
    monkeypatch.setattr(torch._inductor, "compile", lambda graph, args: graph)
    found = startup.play("mlp", 2, 4, CPU)
    assert found["engine"] == "vmap, compiled"
    assert found["setup_s"] >= 0
