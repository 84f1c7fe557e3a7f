"""Bad input fails before round 0, with one sentence that says what to do."""

import json
import logging
import re
from typing import ClassVar

import pytest
import torch
from torch import nn

import tunefree as tf
from helpers import CrashError, fit, grouped, labelled, linear
from tunefree.clients import Armijo, Constant, Direction, DoG, LocalProblem, Polyak, Scaffold, Sum
from tunefree.core.errors import (
    ArgumentError,
    CheckpointError,
    DataError,
    ResumeError,
    TunefreeError,
)
from tunefree.flower.settings import Settings
from tunefree.training.folder import RunFolder, entry_checksum

NAN, INF = float("nan"), float("inf")


def one_sentence(error, *words):
    text = str(error.value)
    assert "\n" not in text
    assert text.strip() == text
    for word in words:
        assert word in text, text


def refused(*words, kind=ArgumentError, method="fedavg", **settings):
    played = []
    with pytest.raises(TunefreeError) as error:
        fit(method, callbacks=[played.append], **grouped(**settings))
    assert not played
    assert isinstance(error.value, kind)
    one_sentence(error, *words)


# Names.


def test_unknown_names_get_the_nearest_right_one():
    refused(
        "Unknown method 'fedagv'. Did you mean 'fedavg'? Known: adaalter, auto,", method="fedagv"
    )
    refused("Unknown method 'FedExp'. Did you mean 'fedexp'?", method="FedExp")
    refused("Unknown loss 'cross_entrop'. Did you mean 'cross_entropy'?", loss="cross_entrop")
    refused("Unknown engine 'vmapp'. Did you mean 'vmap'?", engine="vmapp")
    refused("Unknown augmentation 'cropflip'. Did you mean 'crop-flip'?", augment="cropflip")


def test_unknown_arguments_of_a_method():
    with pytest.raises(ArgumentError) as error:
        tf.methods.get("fedavg", servr_lr=1.0)
    one_sentence(error, "Unknown argument of fedavg 'servr_lr'. Did you mean 'server_lr'?")
    with pytest.raises(ArgumentError) as error:
        tf.methods.get("fedavg", mu=1.0)
    one_sentence(error, "Unknown argument of fedavg 'mu'.", "Known: clip, lr, output,")
    with pytest.raises(ArgumentError) as error:
        tf.Method(output="averagd")
    one_sentence(error, "Unknown output 'averagd'. Did you mean 'averaged'?")
    with pytest.raises(ArgumentError) as error:
        tf.Method(weights="sample")
    one_sentence(error, "Unknown weights 'sample'. Did you mean 'samples'?")


@pytest.mark.parametrize("value", ["0.1", None, True, [0.1]])
def test_values_of_a_method_that_are_no_numbers(value):
    with pytest.raises(ArgumentError) as error:
        tf.methods.get("fedavg", lr=value)
    one_sentence(error, f"Constant(lr=...) must be a finite number > 0, got {value!r}.")


@pytest.mark.parametrize("value", [2.5, NAN, INF])
def test_values_of_a_method_that_are_no_whole_numbers(value):
    with pytest.raises(ArgumentError) as error:
        tf.methods.get("fedsls", max_backtracks=value)
    words = f"Armijo(max_backtracks=...) must be an int >= 0, got {value!r}."
    one_sentence(error, words)


def test_a_whole_number_given_as_a_float_is_taken_or_refused_before_round_0():
    try:
        method = tf.methods.get("fedsls", max_backtracks=3.0)
    except ArgumentError:
        return
    assert fit(method, rounds=1).status == "finished"


@pytest.mark.parametrize("value", ["2", NAN, INF, 0.5, True])
def test_optional_numbers_of_a_method(value):
    with pytest.raises(ArgumentError) as error:
        tf.methods.get("fedexp", max_server_step=value)
    words = f"FedExP(max_server_step=...) must be a finite number >= 1, got {value!r}."
    one_sentence(error, words)


# Arguments of fit.


@pytest.mark.parametrize("name", ["rounds", "cohort", "eval_every"])
@pytest.mark.parametrize("value", [0, -1, 2.5, True, "3"])
def test_integers(name, value):
    refused(f"fit({name}=...) must be an int >= 1, got {value!r}.", **{name: value})


@pytest.mark.parametrize("name", ["steps", "epochs", "batch", "chunk", "checkpoint_every"])
@pytest.mark.parametrize("value", [0, -1, 2.5, True, "3"])
def test_optional_integers(name, value, tmp_path):
    more = {"steps": None} if name == "epochs" else {}
    out = {"out": tmp_path} if name == "checkpoint_every" else {}
    owner = "Engine" if name == "chunk" else "fit"
    words = f"{owner}({name}=...) must be an int >= 1, got {value!r}."
    refused(words, **(more | out | {name: value}))


@pytest.mark.parametrize("value", [0, -1, 2.5, "3"])
def test_patience(value):
    refused(
        f"Evaluate(patience=...) must be an int >= 1, got {value!r}.",
        patience=value,
        validation=0.2,
    )


@pytest.mark.parametrize("value", [0.5, "1", None, True, -1])
def test_seed(value):
    refused(f"fit(seed=...) must be an int >= 0, got {value!r}.", seed=value)


@pytest.mark.parametrize("value", [2**63, 2**64])
def test_seeds_beyond_64_bits(value):
    refused(f"fit(seed=...) must be below 2**63, got {value}.", seed=value)


def test_the_largest_seed():
    assert fit(seed=2**63 - 1, rounds=1).status == "finished"


def test_cohort_larger_than_the_population():
    refused("fit(cohort=...) must be at most the number of clients, 4, got 5.", cohort=5)


def test_steps_and_epochs():
    refused("fit takes steps or epochs, got steps=3 and epochs=2.", steps=3, epochs=2)


@pytest.mark.parametrize("more", [{"patience": 3}, {"keep_best": True}])
def test_choosing_without_validation(more):
    refused("choose by validation data; give validation=0.1", **more)


@pytest.mark.parametrize("value", [1, -0.5, NAN, "0.1", ""])
def test_validation(value):
    words = f"Evaluate(validation=...) must be a number between 0 and 1, got {value!r}."
    refused(words, validation=value)


def test_things_of_the_wrong_kind():
    refused("fit(method=...) must be a name or a Method, got 3.", method=3)
    refused("fit(federation=...) must be a tf.Federation, got [1, 2].", fed=[1, 2])
    refused("fit(model=...) must be a torch.nn.Module or a tf.Run, got 'mlp'.", model="mlp")
    refused("fit(dtype=...) must be torch.float32 or torch.float64", dtype=torch.float16)
    refused("fit(device=...) must be 'auto' or a device of this machine, got 'gpu'", device="gpu")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("metrics", {"f1": 3}, "Evaluate(metrics=...) must map names to functions, got {'f1': 3}."),
        ("metrics", ["f1"], "Evaluate(metrics=...) must map names to functions, got ['f1']."),
        ("loss", 3, "Unknown loss 3."),
        ("augment", 3, "Preprocess(augment=...) must be a name or a CropFlip, got 3."),
        ("device", None, "fit(device=...) must be 'auto' or a device of this machine, got None"),
        ("dtype", "float32", "fit(dtype=...) must be torch.float32 or torch.float64, got float32."),
    ],
)
def test_values_of_the_wrong_kind(name, value, words):
    refused(words, **{name: value})


MOVED = {
    "scale": "takes scale as preprocess=tf.Preprocess(scale=...).",
    "class_weight": "takes class_weight as preprocess=tf.Preprocess(class_weight=...).",
    "chunk": "takes chunk as engine=tf.Engine(chunk=...).",
    "start": "takes no start; give the run, or a module with these parameters, as the model.",
}


@pytest.mark.parametrize("name", MOVED)
def test_options_that_moved_name_their_place(name):
    calls = {
        "fit": lambda **given: fit(**given),
        "compare": lambda **given: tf.compare(linear(), labelled(), ["fedavg"], **given),
        "Settings": lambda **given: Settings(model=linear(), clients=3, **given),
    }
    for owner, call in calls.items():
        with pytest.raises(ArgumentError) as error:
            call(**{name: 3})
        assert str(error.value) == f"{owner} {MOVED[name]}"


def test_a_federation_starts_from_a_module():
    with pytest.raises(ArgumentError) as error:
        Settings(model=fit(), clients=3)
    one_sentence(error, "Settings(model=...) must be a torch.nn.Module, got <Run of fedavg")


@pytest.mark.parametrize("value", [print, [3]])
def test_callbacks_that_cannot_be_called(value):
    """A lone function instead of a list is an easy mistake."""
    with pytest.raises(ArgumentError) as error:
        fit(callbacks=value)
    one_sentence(error, f"fit(callbacks=...) must be a list of functions, got {value!r}.")


def test_a_loaded_run_needs_its_module_to_start_another(tmp_path):
    fit(out=tmp_path)
    with pytest.raises(ArgumentError, match=r"Run\.load\(path, model=.* needs the module to start"):
        fit(model=tf.Run.load(tmp_path))


def test_augmentation_of_what_is_no_image():
    refused("CropFlip takes images", augment="crop-flip")


def test_per_client_without_a_test_set():
    fed = labelled()
    fed = tf.Federation(fed.x, fed.y, fed.owners())
    refused("Evaluate(per_client=True) needs a test set", fed=fed, per_client=True)


# Data and model.


def federation(x=None, y=None, **more):
    fed = labelled()
    return tf.Federation(fed.x if x is None else x, fed.y if y is None else y, fed.owners(), **more)


def test_labels_beyond_the_outputs():
    y = labelled().y.clone()
    y[-1] = 5
    words = (
        "The model returns outputs of shape (2,) per sample, but labels go up to 5; give the last "
        "layer 6 outputs."
    )
    refused(words, fed=federation(y=y))


def test_labels_beyond_the_outputs_in_sequences():
    """One label per position: those are checked as well, in every row."""

    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(1, 2)

        def forward(self, x):
            return self.head(x[:, :, None]).mT  # (B, 2, 3)

    y = torch.zeros(24, 3, dtype=torch.int64)
    y[-1, -1] = 7
    words = "labels go up to 7; give the last layer 8 outputs."
    refused(words, fed=federation(y=y), model=Positions(), loss="cross_entropy")


def test_negative_labels():
    y = labelled().y.clone()
    y[3] = -1
    words = "The model returns 2 outputs per sample, but there are 3 classes (-1, 0, 1)"
    refused(words, "give the last layer 3 outputs.", fed=federation(y=y))
    with pytest.raises(DataError) as error:
        federation(y=y, classes=2)
    one_sentence(error, "must hold labels in 0..1, but y has -1 in row 3")


def test_real_labels_with_cross_entropy():
    fed = federation(y=labelled().y.double())
    words = ("fit(loss='cross_entropy') needs whole-number labels", "torch.float64", "loss='mse'")
    refused(*words, fed=fed, loss="cross_entropy")


@pytest.mark.parametrize(("value", "kind"), [(NAN, "NaN"), (INF, "Inf")])
def test_data_that_is_not_finite(value, kind):
    x = labelled().x.clone()
    x[5, 1] = value
    with pytest.raises(DataError) as error:
        federation(x=x)
    one_sentence(error, f"Federation(x=...) must be finite, but row 5 holds {kind}")
    with pytest.raises(DataError) as error:
        federation(test=(x, labelled().y))
    one_sentence(error, f"x of test must be finite, but row 5 holds {kind}")


def test_data_that_overflows_in_the_dtype():
    """Finite in float64, infinite in float32: still not trainable."""
    x = labelled().x.clone()
    x[5, 1] = 1e300
    words = (
        "The data has numbers too large for torch.float32; scale it, or use "
        "fit(dtype=torch.float64)."
    )
    refused(words, kind=DataError, fed=federation(x=x), dtype=torch.float32)
    y = labelled().x[:, :1].clone()
    y[3, 0] = -1e300
    one = linear(classes=1)
    refused(words, kind=DataError, fed=federation(y=y), model=one, dtype=torch.float32)
    fit(fed=federation(x=x), rounds=1, dtype=torch.float64)  # fits there


@pytest.mark.parametrize("part", [0, 1])
def test_test_data_that_overflows_in_the_dtype(part):
    fed = labelled()
    x, y = fed.x.clone(), fed.x[:, :1].clone()
    test = (x.clone(), y.clone())
    test[part][5, 0] = 1e300
    fed = tf.Federation(x, y, fed.owners(), test=test)
    words = "numbers too large for torch.float32"
    refused(words, kind=DataError, fed=fed, model=linear(classes=1), dtype=torch.float32)


def test_shapes_that_do_not_match_the_model():
    refused("The model Linear does not accept samples of shape (3,)", model=linear(features=4))
    deep = nn.Sequential(linear(), nn.Flatten(0))
    refused("one tensor with a row per sample", model=deep)


@pytest.mark.parametrize("batch", [2, 5])
def test_targets_that_do_not_match_the_outputs(batch):
    """Two outputs, one real target: broadcasting must not make sense of it."""
    fed = federation(y=labelled().x[:, 0].clone())
    words = (
        "fit(loss='mse') compares numbers one by one, but the model returns (2,) per sample and "
        "the targets have (); give the last layer as many outputs as targets."
    )
    refused(words, fed=fed, loss="mse", batch=batch)


def test_inputs_of_the_wrong_dtype():
    class Integers(nn.Linear):
        def forward(self, x):
            if x.is_floating_point():
                raise TypeError("it takes ints")
            return super().forward(x)

    fed = federation(x=torch.zeros(24, 3, dtype=torch.int64))
    words = "The model Integers does not accept samples of shape (3,)"
    refused(words, "dtype", fed=fed, model=Integers(3, 2))


def test_a_loss_that_reduces():
    words = ("fit(loss=...) must return one loss per sample", "reduction='none'")
    refused(*words, loss=nn.functional.cross_entropy)


def test_batchnorm():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    refused("BatchNorm1d", "tf.models.groupnorm(model)", model=model)


def test_an_empty_client():
    with pytest.raises(DataError) as error:
        tf.Federation(torch.zeros(2, 3), [0, 1], [0, 2], clients=3)
    one_sentence(error, "client 1 has no samples")


# Parts that do not fit together.


def composed(*words, **parts):
    with pytest.raises(ArgumentError) as error:
        tf.Method(**parts)
    one_sentence(error, *words)


def test_clip_with_line_search():
    words = ("Cannot use clip=1.0 with Armijo. This is because its line search", "leave clip out")
    composed(*words, step=Armijo(), clip=1.0)
    with pytest.raises(ArgumentError, match=r"Cannot use clip=1\.0 with Armijo"):
        tf.methods.get("fedexpsls", clip=1.0)


@pytest.mark.parametrize("step", [Polyak(), Armijo()])
@pytest.mark.parametrize("schedule", ["cosine", "exponential:0.9", "warmup:3"])
def test_schedule_with_a_step_that_sets_its_own(step, schedule):
    words = f"Cannot use schedule=.* with {type(step).__name__}. This is because it sets its own"
    with pytest.raises(ArgumentError, match=words):
        tf.Method(step=step, schedule=schedule)


class Greedy(tf.server.Server):
    needs: ClassVar[tuple[str, ...]] = ("delta", "curvature")

    def step(self, x, mean, state, t):
        return x + mean["curvature"] * mean["delta"], state, {}


class Unfinished(tf.clients.Step):
    """A user's step that forgot its `take`."""


class Echo(Direction):
    uploads: ClassVar[tuple[str, ...]] = ("grad_sq",)

    def local_problem(self, x, down, own):
        return LocalProblem()


def test_a_server_that_needs_what_nobody_sends():
    words = "Cannot use Greedy with Plain and Constant. This is because it needs curvature"
    composed(words, "clients send only delta, delta_sq", server=Greedy())


def test_a_channel_sent_twice():
    words = "Cannot combine Echo with DoG. This is because both send the channel 'grad_sq'"
    composed(words, direction=Echo(), step=DoG())
    with pytest.raises(ArgumentError, match="send the same channel, got control, control"):
        Sum(Scaffold(), Scaffold("I"))


@pytest.mark.parametrize("parts", [(), (Scaffold(),), (Scaffold(), Constant())])
def test_sums_of_what_is_no_direction(parts):
    with pytest.raises(ArgumentError, match=r"Sum\(\.\.\.\) takes two or more directions"):
        Sum(*parts)


@pytest.mark.parametrize("name", ["direction", "step", "server", "wire", "output"])
def test_parts_in_the_wrong_place(name):
    value = tf.server.Average() if name != "server" else Constant()
    with pytest.raises(ArgumentError) as error:
        tf.Method(**{name: value})
    one_sentence(error, f"Method({name}=...) must be a", repr(value))


RANGES = {"weight_decay": ">= 0", "clip": "> 0"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("weight_decay", -1.0),
        ("weight_decay", NAN),
        ("weight_decay", INF),
        ("clip", 0),
        ("clip", NAN),
    ],
)
def test_numbers_of_a_method(name, value):
    words = f"Method({name}=...) must be a finite number {RANGES[name]}, got {value!r}."
    composed(words, **{name: value})


@pytest.mark.parametrize("name", ["weight_decay", "clip"])
def test_text_for_numbers_of_a_method(name):
    composed(f"Method({name}=...) must be a finite number {RANGES[name]}, got '1'.", **{name: "1"})


def test_a_number_for_a_wire():
    composed("Method(wire=...) must be a Wire, got 3.", wire=3)


# Folders.


@pytest.mark.parametrize("inside", [True, False])
def test_unwritable_folders(tmp_path, inside):
    file = tmp_path / "file"
    file.write_text("")
    out = file / "run" if inside else file
    refused("fit(out=...) must be a folder that can be written, got", str(out), out=out)


def test_resume_with_other_settings(tmp_path):
    fit(out=tmp_path)
    refused(
        "has other settings",
        "method.step.lr was 0.1, now 0.2",
        "rounds was 3, now 2",
        kind=ResumeError,
        method=tf.methods.get("fedavg", lr=0.2),
        rounds=2,
        out=tmp_path,
    )
    refused("seed was 0, now 1", kind=ResumeError, out=tmp_path, seed=1)
    refused("data.digest was", kind=ResumeError, out=tmp_path, fed=labelled(seed=1))
    refused("start was", kind=ResumeError, out=tmp_path, model=linear(seed=1))
    refused("method.step.part was 'Constant', now 'Armijo'", kind=ResumeError, out=tmp_path,
            method="fedsls")  # fmt: skip
    again = fit(out=tmp_path, engine=tf.Engine(chunk=1))
    assert again.status == "finished"


def test_resume_false_refuses_a_used_folder(tmp_path):
    words = ("resume=False) needs an unused folder, but it holds a run", "choose another")
    fit(out=tmp_path, resume=False)
    refused(*words, kind=ResumeError, out=tmp_path, resume=False)


SETTINGS = {"rounds": 5, "checkpoint_every": 1}


@pytest.fixture
def stopped(tmp_path):
    """A folder with the states after 2 and 3 of 5 rounds, and the bits it should end with."""

    def crash(event):
        if event.round == 3:
            raise CrashError

    with pytest.raises(CrashError):
        fit("scaffold", out=tmp_path, callbacks=[crash], **SETTINGS)
    names = sorted(p.name for p in tmp_path.glob("state-*"))
    assert names == ["state-000002.safetensors", "state-000003.safetensors"]
    return tmp_path, fit("scaffold", **SETTINGS)


def cut(path, keep=0.5):
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.99])
def test_a_checkpoint_cut_short(stopped, caplog, keep):
    folder, whole = stopped
    caplog.set_level(logging.INFO, "tunefree")
    cut(folder / "state-000003.safetensors", keep)
    rounds = []
    run = fit("scaffold", out=folder, callbacks=[lambda e: rounds.append(e.round)], **SETTINGS)
    assert rounds == [2, 3, 4]
    assert torch.equal(run.x, whole.x)
    assert len(run.history) == 5
    assert [r.getMessage() for r in caplog.records if "state-000003" in r.getMessage()] == [
        "The checkpoint state-000003.safetensors cannot be used (its checksum is wrong, so it was "
        "cut short or changed); trying the one before it."
    ]
    assert tf.Run.load(folder).history == run.history


def test_a_checkpoint_that_is_gone(stopped, caplog):
    folder, whole = stopped
    (folder / "state-000003.safetensors").unlink()
    assert torch.equal(fit("scaffold", out=folder, **SETTINGS).x, whole.x)
    assert "state-000003.safetensors cannot be used" in caplog.text


def test_both_checkpoints_cut_short(stopped):
    folder, _ = stopped
    for path in folder.glob("state-*"):
        cut(path)
    words = ("No checkpoint in", str(folder), "is whole; start again in another folder.")
    refused(*words, kind=CheckpointError, method="scaffold", out=folder, **SETTINGS)


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", "null", "[{}]", '[{"file": "state-000003.safetensors"}]', "{}", "\x00"]
)
def test_a_damaged_checkpoint_list(stopped, text):
    folder, _ = stopped
    (folder / "checkpoint.json").write_text(text)
    refused(str(folder), kind=CheckpointError, method="scaffold", out=folder, **SETTINGS)


CHANGES = {  # of the newest entry of a checkpoint list; the run has 5 rounds and stopped after 3
    "rounds": {"rounds": 2},
    "more rounds": {"rounds": 4, "file": "state-000004.safetensors"},
    "beyond the plan": {"rounds": 7, "file": "state-000007.safetensors"},
    "finished": {"facts": {"status": "finished"}},
    "another status": {"facts": {"status": "fine"}},
    "no status": {"facts": {"status": None}},
    "best in the future": {"facts": {"best": {"score": 0.5, "round": 3, "waited": 0}}},
    "waited for ever": {"facts": {"best": {"score": 0.5, "round": 2, "waited": 10**9}}},
    "no best": {"facts": {"best": None}},
}


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_entry_of_the_checkpoint_list(stopped, caplog, change, sealed):
    """Also one with the right checksum; the entry before it counts."""
    folder, whole = stopped
    listed, changed = json.loads((folder / "checkpoint.json").read_text()), CHANGES[change]
    if "file" in changed:
        (folder / listed[0]["file"]).rename(folder / changed["file"])
    facts = listed[0]["facts"] | changed.get("facts", {})
    listed[0] |= changed | {"facts": facts}
    if sealed:
        listed[0]["check"] = entry_checksum(listed[0])
    (folder / "checkpoint.json").write_text(json.dumps(listed))
    assert len(tf.Run.load(folder).history) == 2
    run = fit("scaffold", out=folder, **SETTINGS)
    assert torch.equal(run.x, whole.x)
    assert len(run.history) == 5
    assert "cannot be used" in caplog.text


@pytest.mark.parametrize("round", [-1, 1, 2.0, 1 << 60, "3", True, None])
def test_round_numbers_of_a_history(stopped, round):
    """Rows of rounds that cannot be, or that were there before, are left out."""
    folder, whole = stopped
    lines = (folder / "history.jsonl").read_text().splitlines()
    row = json.loads(lines[2]) | {"round": round}
    lines.insert(3, json.dumps(row))
    (folder / "history.jsonl").write_text("\n".join(lines) + "\n")
    assert [r["round"] for r in RunFolder(folder).read_history()] == [0, 1, 2, 3]
    run = fit("scaffold", out=folder, **SETTINGS)
    assert [r["round"] for r in run.history] == list(range(5))
    assert torch.equal(run.x, whole.x)


def test_a_checkpoint_without_its_history(stopped):
    folder, _ = stopped
    (folder / "history.jsonl").write_text("")
    words = ("No checkpoint in", "is whole")
    refused(*words, kind=CheckpointError, method="scaffold", out=folder, **SETTINGS)


def test_a_state_is_no_larger_than_the_settings_allow(stopped, caplog):
    folder, whole = stopped
    with (folder / "state-000003.safetensors").open("r+b") as file:
        file.truncate(1 << 24)
    assert torch.equal(fit("scaffold", out=folder, **SETTINGS).x, whole.x)
    assert "it has 16777216 bytes, more than" in caplog.text


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", "\x00"])
def test_damaged_settings(stopped, text):
    folder, _ = stopped
    (folder / "settings.json").write_text(text)
    words = ("settings.json is damaged",)
    refused(*words, kind=CheckpointError, method="scaffold", out=folder, **SETTINGS)
    with pytest.raises(CheckpointError, match=re.escape("settings.json is damaged")):
        tf.Run.load(folder)


def test_settings_that_are_not_text(stopped):
    folder, _ = stopped
    (folder / "settings.json").write_bytes(b"\xff\xfe\x00")
    words = "settings.json is damaged"
    refused(words, kind=CheckpointError, method="scaffold", out=folder, **SETTINGS)


def test_a_last_line_of_the_history_cut_short(stopped, caplog):
    """The line after the checkpoint is half there: it is written again."""
    folder, whole = stopped
    cut(folder / "history.jsonl", 0.95)
    run = fit("scaffold", out=folder, **SETTINGS)
    assert torch.equal(run.x, whole.x)
    lines = (folder / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == list(range(5))
    assert "has a line cut short (line 4)" in caplog.text


def test_nothing_is_left_behind(stopped):
    """Files are written aside and moved into place."""
    folder, _ = stopped
    assert not [p.name for p in folder.iterdir() if p.name.startswith(".")]


def test_a_part_without_its_hook_cannot_be_made():
    with pytest.raises(TypeError, match="take"):
        Unfinished()
