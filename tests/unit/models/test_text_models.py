"""Text models: modules as Hugging Face writes them, BERT, and low-rank adapters."""

import importlib.util
import json
import logging
import os
import re
from dataclasses import dataclass, replace
from math import log
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

import tunefree as tf
from tunefree.core.errors import ArgumentError
from tunefree.models import Problem
from tunefree.models.dropout import CounterDropoutMode
from tunefree.models.nets import Bert

ROOT = Path(__file__).parents[3]
DATA = Path(os.environ.get("TUNEFREE_DATA") or ROOT.parent / "shared" / "data")
TINY = {"vocab": 40, "width": 16, "layers": 2, "heads": 2, "hidden": 24, "positions": 10}
STEPS = {"rounds": 2, "cohort": 3, "steps": 3, "batch": 4, "device": "cpu", "compile": False}
LR = tf.methods.get("fedavg", lr=0.3)


@dataclass
class Output:
    logits: torch.Tensor
    loss: None = None


class HuggingFaceStyle(nn.Module):
    """Keyword inputs, a buffer, functional dropout and attention, logits inside an object."""

    def __init__(self, attention="sdpa", form="object", dropout=0.2):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.embeddings = nn.Embedding(40, 8)
            self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
            self.dropout = nn.Dropout(dropout)
            self.classifier = nn.Linear(8, 2)
        self.register_buffer("places", torch.arange(10)[None] / 10)
        self.attention, self.form = attention, form

    def forward(self, input_ids=None, attention_mask=None, token_type_ids=None, labels=None):
        x = self.embeddings(input_ids) + self.places[:, : input_ids.shape[1], None]
        x = x if token_type_ids is None else x + token_type_ids[..., None]
        keep = attention_mask[:, None, None, :].bool()
        q, k, v = (f(x).unflatten(-1, (2, 4)).transpose(1, 2) for f in self.heads)
        p = self.dropout.p if self.training else 0.0
        if self.attention == "peeks" and attention_mask.all():
            keep = None
        if self.attention == "eager":
            scores = (q @ k.transpose(-1, -2) / 2).masked_fill(~keep, -1e30)
            y = F.dropout(scores.softmax(-1), p=p, training=self.training) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=keep, dropout_p=p)
        logits = self.classifier(self.dropout(y.transpose(1, 2).flatten(2)[:, 0]))
        return {
            "object": Output(logits),
            "dict": {"loss": None, "logits": logits},
            "tensor": logits,
            "pair": (logits, None),
        }[self.form]

    @property
    def heads(self):
        return self.query, self.key, self.value


def tokens(rows=36, names=("input_ids", "attention_mask")):
    draw = torch.Generator().manual_seed(0)
    y = torch.randint(2, (rows,), generator=draw)
    ids = torch.randint(20, (rows, 8), generator=draw) + 18 * y[:, None]
    mask = (torch.arange(8) < torch.randint(3, 9, (rows, 1), generator=draw)).long()
    return dict(zip(names, (ids, mask), strict=True)), y


def federation(rows=36, **more):
    x, y = tokens(rows, **more)
    return tf.Federation(x, y, torch.arange(rows) % 4, test=(x, y))


def fit(model, method=LR, fed=None, **more):
    return tf.fit(model, fed or federation(), method, **{**STEPS, "engine": "loop", **more})


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_batched_equals_loop_with_dropout_on(attention):
    model, settings = HuggingFaceStyle(attention), {"dtype": torch.float64, "rounds": 1}
    loop, again, batched = (fit(model, engine=e, **settings) for e in ("loop", "loop", "vmap"))
    torch.testing.assert_close(batched.x, loop.x, rtol=1e-10, atol=1e-12)
    assert torch.equal(loop.x, again.x)
    without = fit(HuggingFaceStyle(attention, dropout=0.0), **settings)
    assert (without.x - loop.x).norm() > 1e-3


def test_recorded_calls_equal_direct_ones(monkeypatch):
    short = {"engine": "vmap", "rounds": 1, "steps": 2, "method": LR}
    direct = fit(HuggingFaceStyle(), **short)
    monkeypatch.setattr("tunefree.models.batched.TRACE_AFTER", 0)
    recorded = fit(HuggingFaceStyle(), **short)
    assert torch.equal(recorded.x, direct.x)


def test_logits_are_found_in_objects_and_dicts():
    runs = [fit(HuggingFaceStyle(form=form)) for form in ("object", "dict", "tensor")]
    assert all(torch.equal(run.x, runs[0].x) for run in runs)
    x, _ = tokens()
    assert runs[0].predict(x, raw=True).shape == (36, 2)
    assert isinstance(runs[0].model(**x), Output)
    assert torch.equal(runs[0].model(**x).logits.detach(), runs[0].predict(x, raw=True))
    with pytest.raises(ArgumentError, match=r"an object or dict whose `logits` are one, got tuple"):
        fit(HuggingFaceStyle(form="pair"))


def test_inputs_may_be_left_out_or_added():
    x, y = tokens()
    more = x | {"token_type_ids": torch.ones_like(x["input_ids"])}
    run = fit(HuggingFaceStyle(), fed=tf.Federation(more, y, torch.arange(36) % 4))
    assert not torch.equal(run.x, fit(HuggingFaceStyle()).x)


def test_a_forward_that_looks_at_its_mask_runs_in_turn(caplog):
    with caplog.at_level(logging.WARNING, "tunefree"):
        run = fit(HuggingFaceStyle("peeks"), engine="auto")
    assert run.settings["engine"] == "loop"
    assert "cannot be batched over clients" in caplog.text
    assert torch.equal(run.x, fit(HuggingFaceStyle("sdpa")).x)


def test_dropout_in_evaluation_mode_is_refused():
    class Always(HuggingFaceStyle):
        def forward(self, **x):
            return F.dropout(super().forward(**x).logits)

    with pytest.raises(ArgumentError, match=r"evaluation mode too; pass training=self.training"):
        fit(Always())


def test_functional_dropout_by_hand():
    x = torch.ones(4000)
    with CounterDropoutMode(torch.tensor(7)) as first:
        a, b = F.dropout(x, 0.25), F.dropout(x, 0.25)
        off = F.dropout(x, 0.25, training=False)
    with CounterDropoutMode(torch.tensor(7)):
        again = F.dropout(x, 0.25)
    with CounterDropoutMode(torch.tensor(8)):
        other = F.dropout(x, 0.25)
    assert first.drops == 2
    assert torch.equal(off, x)
    assert torch.equal(a, again)
    assert set(a.unique().tolist()) == {0.0, x.div(0.75)[0].item()}
    for mask in (a, b, other):
        assert (mask == 0).double().mean() == pytest.approx(0.25, abs=0.03)
    for mask in (b, other):  # independent of the first: 2 x 0.25 x 0.75 differ
        assert ((mask == 0) != (a == 0)).double().mean() == pytest.approx(0.375, abs=0.04)


@pytest.mark.parametrize("case", ["none", "bool", "nothing", "float", "causal", "scale", "groups"])
def test_functional_attention_equals_torch(case):
    draw = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, 4, 5, 3, generator=draw, dtype=torch.float64) for _ in range(3))
    keep = torch.rand(2, 1, 5, 5, generator=draw) < 0.6
    keep[..., 0] = True
    args = {
        "none": {},
        "bool": {"attn_mask": keep},
        "nothing": {"attn_mask": keep & (torch.arange(5) > 0)[:, None]},  # a row of zeros
        "float": {"attn_mask": torch.randn(2, 1, 5, 5, generator=draw, dtype=torch.float64)},
        "causal": {"is_causal": True},
        "scale": {"scale": 0.1},
        "groups": {"enable_gqa": True},
    }[case]
    if case == "groups":
        k, v = k[:, :2], v[:, :2]
    expected = F.scaled_dot_product_attention(q, k, v, **args)
    with CounterDropoutMode(torch.tensor(0)) as mode:
        ours = F.scaled_dot_product_attention(q, k, v, **args)
    assert mode.used
    torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)


def test_bert_base_has_its_published_size():
    with torch.device("meta"):
        base = Bert((128,), 2)
        small = Bert((128,), 2, width=384, layers=6, hidden=1536)
    assert sum(p.numel() for p in base.parameters()) == 109_483_778
    head = 384 * 2 + 2
    buffer = 512  # position_ids, which the published file counts
    assert sum(p.numel() for p in small.parameters()) - head + buffer == 22_713_728


def tiny(**more):
    return tf.models.build("bert", shape=(8,), classes=2, **{**TINY, **more})


def test_bert_layer_equals_torch():
    layer = tiny(dropout=0.0).double().bert.encoder["layer"][0]
    theirs = nn.TransformerEncoderLayer(
        16, 2, 24, 0.0, "gelu", 1e-12, batch_first=True, dtype=torch.float64
    )
    own = layer.attention["self"]
    parts = [own.query, own.key, own.value]
    pairs = {
        "self_attn.in_proj_weight": torch.cat([p.weight for p in parts]),
        "self_attn.in_proj_bias": torch.cat([p.bias for p in parts]) + 0.1,
    }
    for p in parts:
        nn.init.constant_(p.bias, 0.1)
    for name, part in {
        "self_attn.out_proj": layer.attention["output"].dense,
        "norm1": layer.attention["output"].LayerNorm,
        "linear1": layer.intermediate["dense"],
        "linear2": layer.output.dense,
        "norm2": layer.output.LayerNorm,
    }.items():
        pairs |= {f"{name}.weight": part.weight, f"{name}.bias": part.bias}
    theirs.load_state_dict(pairs)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(3, 5, 16, generator=draw, dtype=torch.float64)
    pad = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0], [0, 0, 1, 0, 1]]).bool()
    bias = torch.zeros(3, 1, 1, 5).double().masked_fill(pad[:, None, None, :], -1e300)
    expected = theirs(x, src_key_padding_mask=pad)
    torch.testing.assert_close(layer(x, bias), expected, rtol=1e-10, atol=1e-12)


def test_bert_ignores_padding_and_knows_places():
    net = tiny().double().eval()
    ids, mask = torch.tensor([[3, 4, 5, 9, 9]]), torch.tensor([[1, 1, 1, 0, 0]])
    short = net(ids[:, :3], mask[:, :3])
    torch.testing.assert_close(net(ids, mask), short, rtol=1e-12, atol=1e-12)
    assert (net(ids[:, [0, 2, 1]], mask[:, :3]) - short).abs().max() > 1e-6
    assert net(ids, 0 * mask).isfinite().all()


def test_bert_words_of_padding_get_no_gradient():
    net = tiny().double()
    x = {"ids": torch.tensor([[3, 4, 0, 0]]), "mask": torch.tensor([[1, 1, 0, 0]])}
    net(**x).sum().backward()
    assert not net.bert.embeddings.word_embeddings.weight.grad[0].any()


def adapters(model):
    return [n for n, p in model.named_parameters() if p.requires_grad]


def test_lora_starts_at_the_base_and_leaves_it_alone():
    base = tiny().eval()
    before = {n: v.clone() for n, v in base.state_dict().items()}
    model = tf.models.lora(base, rank=3)
    x, y = tokens(names=("ids", "mask"))
    assert torch.equal(model(**x), base(**x))
    assert all(p.requires_grad for p in base.parameters())
    ends = ("query.down", "query.up", "value.down", "value.up")
    assert adapters(model) == [
        *(f"bert.encoder.layer.{i}.attention.self.{end}" for i in range(2) for end in ends),
        "classifier.weight",
        "classifier.bias",
    ]
    fed = tf.Federation(x, y, torch.arange(36) % 4, test=(x, y))
    run = fit(model, fed=fed, steps=10, dtype=torch.float32)
    numbers = 2 * 2 * (16 * 3 + 3 * 16) + 16 * 2 + 2
    assert run.x.numel() == numbers
    assert run.history[-1]["bytes_up"] == 3 * 4 * numbers
    after = run.model.state_dict()
    for name, value in before.items():
        if not name.startswith("classifier."):
            kept = after[re.sub(r"(query|value)\.(weight|bias)", r"\1.base.\2", name)]
            assert torch.equal(kept, value), name
    assert all(after[n].any() for n in adapters(model) if n.endswith(".up"))
    assert all(torch.equal(v, before[n]) for n, v in base.state_dict().items())
    ours, loop = (fit(model, fed=fed, engine=e, rounds=1) for e in ("vmap", "loop"))
    torch.testing.assert_close(ours.x, loop.x, rtol=1e-4, atol=1e-6)


def test_lora_by_hand():
    base = nn.Sequential(nn.Linear(3, 2))
    model = tf.models.lora(base, rank=1, targets=["0"], head=(), scale=2.0)
    a, b = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[1.0], [-1.0]])
    with torch.no_grad():
        model[0].down.copy_(a)
        model[0].up.copy_(b)
    x = torch.tensor([[1.0, 0.0, 1.0]])
    torch.testing.assert_close(model(x) - base(x), torch.tensor([[8.0, -8.0]]))


def test_lora_is_seeded_and_keeps_shared_layers():
    net = nn.Sequential(nn.Linear(4, 4))
    net.query = net[0]
    first, same, other = (
        tf.models.lora(net, targets=["query", "0"], head=(), seed=s) for s in (1, 1, 2)
    )
    assert first.query is first[0]
    assert torch.equal(first.query.down, same.query.down)
    assert not torch.equal(first.query.down, other.query.down)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"rank": 0}, "lora(rank=...) must be an int >= 1, got 0."),
        ({"scale": 0.0}, "lora(scale=...) must be a finite number > 0, got 0.0."),
        ({"targets": ("qkv",)}, "names from classifier, dense, key, query, value, got ('qkv',)."),
        ({"targets": "query"}, "lora(targets=...) must be a list of names"),
        ({"head": ("head",)}, "lora(head=...) must be a list of names from 0, 1, "),
    ],
)
def test_lora_refuses(args, said):
    with pytest.raises(ArgumentError) as error:
        tf.models.lora(tiny(), **args)
    assert said in str(error.value)


@pytest.fixture(scope="module")
def phrases():
    if not (DATA / "SST-2").is_dir():
        pytest.skip("the files of sst2 are not on this machine")
    data = tf.load("sst2", DATA, max_tokens=12, min_count=100)
    few = ({name: t[:64] for name, t in data.x.items()}, data.y[:64])
    return replace(data, x=few[0], y=few[1], test=few)


@pytest.mark.parametrize(
    ("method", "rank"),
    [
        (tf.methods.get("fedavg", lr=0.2), 0),
        ("fedproxwlod", 0),
        (tf.methods.get("fedavg", lr=0.2), 4),
    ],
)
def test_bert_on_real_phrases(phrases, method, rank):
    fed = phrases.split(tf.Dirichlet(1.0), clients=3, seed=0)
    sizes = {"vocab": len(phrases.words), "width": 32, "layers": 1, "heads": 2, "hidden": 64}
    net = tf.models.build("bert", shape=(12,), classes=2, positions=12, **sizes)
    model = tf.models.lora(net, rank=rank) if rank else net
    run = tf.fit(model, fed, method, rounds=4, steps=20, batch=16, device="cpu", engine="loop")
    first, *_, last = run.history
    assert log(2) > first["train_loss"] > last["train_loss"]
    base = run.model.bert.encoder["layer"][0].attention["self"].key.weight
    same = torch.equal(base, net.bert.encoder["layer"][0].attention["self"].key.weight)
    assert same == bool(rank)


def example():
    path = ROOT / "examples" / "pretrained_text.py"
    spec = importlib.util.spec_from_file_location("pretrained_text", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_weights_of_a_file_are_read(tmp_path, prefix):
    net, loaded = tiny(seed=5, dropout=0.1), example()
    config = {theirs: TINY.get(ours) for theirs, ours in loaded.SIZES.items()}
    config |= {"type_vocab_size": 2, "hidden_dropout_prob": 0.1}
    config |= {"model_type": "bert", "hidden_act": "gelu"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    values = {prefix + n: v for n, v in net.bert.state_dict().items()}
    values[prefix + "embeddings.position_ids"] = torch.arange(10)[None]
    save_file(values, tmp_path / "model.safetensors")
    back = loaded.load_bert(tmp_path)
    same = {n: torch.equal(v, net.state_dict()[n]) for n, v in back.state_dict().items()}
    assert [n for n in same if not same[n]] == ["classifier.weight"]  # biases start at zero
    del values[prefix + "pooler.dense.bias"]
    save_file(values, tmp_path / "model.safetensors")
    with pytest.raises(SystemExit, match=r"has no bert.pooler.dense.bias"):
        loaded.load_bert(tmp_path)


@pytest.fixture(scope="module")
def transformers():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield pytest.importorskip("transformers", reason="transformers is not installed")


def theirs(transformers, **more):
    sizes = {theirs: TINY[ours] for theirs, ours in example().SIZES.items() if ours in TINY}
    config = transformers.BertConfig(**sizes, **more)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return transformers.BertForSequenceClassification(config)


def test_bert_equals_transformers(transformers):
    their, own = theirs(transformers).double().eval(), tiny().double().eval()
    own.load_state_dict(their.state_dict())
    (x, _), (y, _) = tokens(), tokens(names=("ids", "mask"))
    torch.testing.assert_close(own(**y), their(**x).logits, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_transformers_trains(transformers, caplog, attention):
    model = theirs(transformers, attn_implementation=attention)
    assert model.config.attention_probs_dropout_prob == 0.1
    turns = fit(model, engine="loop", dtype=torch.float64)
    with caplog.at_level(logging.WARNING, "tunefree"):
        batched = fit(model, engine="auto", dtype=torch.float64)
    assert batched.settings["engine"] == "vmap"
    assert not caplog.messages
    torch.testing.assert_close(batched.x, turns.x, rtol=1e-8, atol=1e-10)
    assert turns.x.numel() == sum(p.numel() for p in tiny().parameters())
    x, y = tokens()
    if attention == "sdpa":  # a mask of four axes is taken as it is
        x["attention_mask"] = x["attention_mask"][:, None, None, :].bool()
        fed = tf.Federation(x, y, torch.arange(36) % 4)
        batched = fit(model, fed=fed, engine="vmap", dtype=torch.float64)
        torch.testing.assert_close(batched.x, turns.x, rtol=1e-8, atol=1e-10)
        own = tiny(dropout=0.0)
        own.load_state_dict(model.state_dict())
        plain = theirs(transformers, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        same = tf.Federation(tokens(names=("ids", "mask"))[0], y, torch.arange(36) % 4)
        ours = fit(own, fed=same, dtype=torch.float64)
        torch.testing.assert_close(
            Problem(ours.model, dtype=torch.float64).start.norm(),
            fit(plain, dtype=torch.float64).x.norm(),
            rtol=1e-8,
            atol=0,
        )


def gpt2(transformers):
    sizes = {"vocab_size": 30, "n_positions": 8, "n_embd": 8, "n_layer": 2, "n_head": 2}
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**sizes, bos_token_id=1, eos_token_id=1)
    )


def distilbert(transformers):
    sizes = {"vocab_size": 30, "max_position_embeddings": 8, "dim": 8, "n_layers": 2, "n_heads": 2}
    config = transformers.DistilBertConfig(**sizes, hidden_dim=16, pad_token_id=0)
    return transformers.DistilBertForSequenceClassification(config)


def vit(transformers):
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.ViTConfig(**sizes, intermediate_size=16, image_size=8, patch_size=4)
    return transformers.ViTForImageClassification(config)


def next_word(output, target):
    each = torch.nn.functional.cross_entropy(output[:, :-1].mT, target[:, 1:], reduction="none")
    return each.mean(1)


@pytest.mark.parametrize("make", [gpt2, distilbert, vit])
@pytest.mark.parametrize("masked", [False, True])
def test_their_models_train_from_config_quietly(transformers, make, masked, caplog, capfd):
    draw = torch.Generator().manual_seed(0)
    ids, y = torch.randint(2, 30, (24, 6), generator=draw), torch.arange(24) % 2
    x = {"pixel_values": torch.randn(24, 3, 8, 8, generator=draw)} if make is vit else {}
    x = x or {"input_ids": ids}
    if masked and make is not vit:
        x |= {"attention_mask": (torch.arange(6) < 4 + (torch.arange(24) % 3)[:, None]).long()}
    fed = tf.Federation(x, ids if make is gpt2 else y, torch.arange(24) % 3)
    given = {"loss": next_word} if make is gpt2 else {}
    torch.manual_seed(0)
    model = make(transformers)
    runs = [fit(model, fed=fed, engine=e, dtype=torch.float64, **given) for e in ("auto", "loop")]
    torch.testing.assert_close(runs[0].x, runs[1].x, rtol=1e-8, atol=1e-10)
    assert [run.settings["engine"] for run in runs] == ["vmap", "loop"]
    assert not caplog.messages
    out, err = capfd.readouterr()
    assert len((out + err).splitlines()) <= 1


def test_lora_on_transformers(transformers):
    model = tf.models.lora(theirs(transformers), rank=2)
    run = fit(model)
    assert run.x.numel() == 2 * 2 * (16 * 2 + 2 * 16) + 16 * 2 + 2
    assert run.history[-1]["bytes_up"] == 3 * 4 * run.x.numel()


def test_the_page_on_text_models_holds(transformers, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "how-to" / "text-models.md").read_text()
    names = {"__name__": "page"}
    for kind, block in re.findall(r"^```(python|py)\n(.*?)^```", page, re.S | re.M):
        exec(compile(block, "text-models.md", "exec"), names)
        printed = capsys.readouterr().out.splitlines()
        if kind == "py":
            assert printed == re.findall(r"print\(.*\)  # (.*)$", block, re.M)
