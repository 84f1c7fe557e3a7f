"""Tables: frames of pandas and polars, Hugging Face datasets, files."""

import json

import numpy as np
import pandas
import polars
import pytest
import torch

import tunefree as tf
from tunefree.core.errors import ArgumentError, DataError
from tunefree.data.tables import Features, Table, read_file, read_table

ROWS = {
    "age": [40, 50, 60, 70],
    "bmi": [20.5, 30.0, 25.0, 21.0],
    "smoker": [True, False, False, True],
    "city": ["Rome", "Bonn", "Rome", "Rome"],
    "hospital": ["south", "north", "south", "north"],
    "diagnosis": ["ill", "healthy", "ill", "healthy"],
}
NAMES = ("age", "bmi", "smoker", "city=Bonn", "city=Rome")
X = [[50, 30, 0, 1, 0], [70, 21, 1, 0, 1], [40, 20.5, 1, 0, 1], [60, 25, 0, 0, 1]]


def pandas_frame(**changes):
    return pandas.DataFrame(ROWS | changes)


def polars_frame(**changes):
    return polars.DataFrame(ROWS | changes)


FRAMES = {
    "pandas": pandas_frame,
    "pandas categories": lambda **c: pandas_frame(**c).astype({"city": "category"}),
    "pandas nullable": lambda **c: pandas_frame(**c).convert_dtypes(),
    "pandas objects": lambda **c: pandas_frame(**c).astype(object),
    "polars": polars_frame,
    "polars categories": lambda **c: polars_frame(**c).cast({"city": polars.Categorical}),
    "polars lazy": lambda **c: polars_frame(**c).lazy(),
}


@pytest.mark.parametrize("make", FRAMES.values(), ids=FRAMES)
def test_columns_are_named_and_encoded(make):
    fed = tf.Federation(make(), "diagnosis", "hospital")
    assert fed.names == ("north", "south")
    assert fed.features.names == NAMES
    assert fed.x.tolist() == X
    assert fed.x.is_floating_point()
    assert fed.labels == ("healthy", "ill")
    assert fed.y.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("make", FRAMES.values(), ids=FRAMES)
def test_test_sets_have_the_columns_of_training(make):
    other = make(city=["Oslo", "Bonn", "Rome", "Rome"])
    fed = tf.Federation(make(), "diagnosis", "hospital", test=other, held=(other, ["ill"] * 4))
    assert fed.test[0][:2].tolist() == [[40, 20.5, 1, 0, 0], [50, 30, 0, 1, 0]]
    assert fed.test[1].tolist() == [1, 0, 1, 0]
    assert fed.test_owner.tolist() == [1, 0, 1, 0]
    assert fed.held[1].tolist() == [1] * 4


def test_a_category_that_training_had_not_is_reported(caplog):
    tf.Federation(
        pandas_frame(), "diagnosis", "hospital", test=pandas_frame(city=["Oslo"] + ["Rome"] * 3)
    )
    assert "The column 'city' has 'Oslo', which training had not" in caplog.text


@pytest.mark.parametrize("make", [pandas_frame, polars_frame])
def test_one_frame_per_client(make):
    fed = tf.Federation.of({"b": make(), "a": make(city=["Oslo"] * 4)}, y="diagnosis")
    assert fed.names == ("b", "a")
    assert fed.sizes.tolist() == [4, 4]
    assert fed.features.names[3:6] == ("city=Bonn", "city=Oslo", "city=Rome")
    assert torch.equal(
        fed.x, tf.Federation({"b": make(), "a": make(city=["Oslo"] * 4)}, "diagnosis").x
    )


@pytest.mark.parametrize("make", [pandas_frame, polars_frame])
def test_pairs_of_a_frame_and_targets(make):
    features = ["age", "city"]
    parts = [
        (make()[features], ROWS["diagnosis"]),
        (make(city=["Oslo"] * 4)[features], ["ill"] * 4),
    ]
    fed = tf.Federation.of(parts, test=(make()[features], ["ill"] * 4))
    assert fed.features.names == ("age", "city=Bonn", "city=Oslo", "city=Rome")
    assert fed.y.tolist() == [1, 0, 1, 0, 1, 1, 1, 1]
    assert fed.test[1].tolist() == [1] * 4
    with pytest.raises(DataError, match="must hold tables for all clients or none"):
        tf.Federation.of([parts[0], (np.zeros((4, 3)), ["ill"] * 4)])


REMEDIES = {
    "frame.fillna or frame.dropna": pandas_frame,
    "frame.fill_null or frame.drop_nulls": polars_frame,
}


@pytest.mark.parametrize(("remedy", "make"), REMEDIES.items(), ids=["pandas", "polars"])
@pytest.mark.parametrize("column", ["bmi", "city", "smoker", "diagnosis", "hospital"])
def test_missing_values_are_named(make, remedy, column):
    values = [None if i == 2 else v for i, v in enumerate(ROWS[column])]
    with pytest.raises(DataError) as caught:
        tf.Federation(make(**{column: values}), "diagnosis", "hospital")
    assert str(caught.value) == (
        f"The column '{column}' has a missing value, in row 2; fill or drop them first, as with "
        f"{remedy}."
    )


REFUSED = {
    "dates": (
        {"when": pandas.to_datetime(["2020-01-01"] * 4)},
        "The column 'when' holds dates or times (datetime64[",
    ),
    "mixed": ({"mix": [1, "a", 2, 3]}, "The column 'mix' must hold numbers, bools, text or"),
    "objects": ({"mix": [object()] * 4}, "categories, got object; convert it, or leave it out."),
}


@pytest.mark.parametrize(("more", "sentence"), REFUSED.values(), ids=REFUSED)
def test_columns_that_cannot_be_features(more, sentence):
    with pytest.raises(DataError) as caught:
        tf.Federation(pandas_frame(**more), "diagnosis", "hospital")
    assert sentence in str(caught.value)


def test_categories_may_be_numbers_but_not_dates():
    frame = pandas_frame().astype({"age": "category"})
    fed = tf.Federation(frame, "diagnosis", "hospital")
    assert fed.features.names[:4] == ("age=40", "age=50", "age=60", "age=70")
    assert Features.from_json(json.loads(json.dumps(fed.features.to_json()))) == fed.features
    days = pandas.Categorical(pandas.to_datetime(["2020-01-01"] * 4))
    with pytest.raises(DataError, match=r"'when' holds dates or times"):
        tf.Federation(frame.assign(when=days), "diagnosis", "hospital")


def test_too_many_categories():
    frame = pandas.DataFrame({"id": [f"p{i}" for i in range(1001)], "y": [0, 1] * 500 + [0]})
    with pytest.raises(DataError, match="'id' has 1001 different values, more than"):
        tf.Federation(frame, "y", [0] * 1001)


def test_names_of_columns_are_checked():
    frame = pandas_frame()
    with pytest.raises(ArgumentError, match=r"Unknown column of x 'diagnoses'. Did you mean 'diag"):
        tf.Federation(frame, "diagnoses", "hospital")
    with pytest.raises(ArgumentError, match="Unknown column of x 'hospitals'"):
        tf.Federation(frame, "diagnosis", "hospitals")
    with pytest.raises(DataError, match=r"y=\.\.\. must name its column of targets, one of age"):
        tf.Federation(frame, None, "hospital")
    sentence = r"owner=...\) must name the client of each sample, got None; owner=np.arange\(len\(x"
    with pytest.raises(DataError, match=sentence):
        tf.Federation(frame, "diagnosis")
    assert tf.Federation(frame, "diagnosis", owner=np.arange(len(frame)) % 2).clients == 2
    with pytest.raises(DataError, match=r"which is for one part per client, as in Federation\.of"):
        tf.Federation([(np.zeros((2, 5)), [0, 1])], sample_weight=[1.0, 2.0])
    with pytest.raises(DataError, match="must hold tables for all clients or none"):
        tf.Federation.of([frame, (np.zeros((2, 5)), [0, 1])], y="diagnosis")
    with pytest.raises(DataError, match="table 1 and the first differ in bmi"):
        tf.Federation.of([frame, frame.drop(columns="bmi")], y="diagnosis")
    with pytest.raises(DataError, match="no feature columns"):
        tf.Federation(frame[["diagnosis", "hospital"]], "diagnosis", "hospital")
    twice = pandas.concat([frame, frame[["age"]]], axis=1)
    with pytest.raises(DataError, match="'age' occurs more than once"):
        tf.Federation(twice, "diagnosis", "hospital")


def test_series_and_columns_beside_arrays():
    frame = pandas_frame()
    fed = tf.Federation(frame[["age", "bmi"]].to_numpy(), frame["diagnosis"], frame["hospital"])
    assert fed.labels == ("healthy", "ill")
    assert fed.features is None
    fed = tf.Federation(frame[["age", "bmi"]], frame["diagnosis"], frame["hospital"])
    assert fed.features.names == ("age", "bmi")
    frame = polars_frame()
    fed = tf.Federation(frame.select("age", "bmi"), frame["diagnosis"], frame["hospital"])
    assert fed.y.tolist() == [0, 0, 1, 1]


def test_text_in_an_array_asks_for_a_frame():
    with pytest.raises(DataError, match="give columns of text or categories as a frame of pandas"):
        tf.Federation(pandas_frame().to_numpy(), [0, 1, 0, 1], [0, 0, 1, 1])


@pytest.mark.parametrize("make", [pandas_frame, polars_frame])
def test_several_columns_of_targets(make):
    flags = {"a": [0, 1, 1, 0], "b": [True, False, True, False]}
    frame = make(**flags)
    fed = tf.Federation(frame, ["a", "b"], "hospital", test=frame)
    assert fed.y.tolist() == [[1, 0], [0, 0], [0, 1], [1, 1]]
    assert fed.features.names == NAMES[:3] + NAMES[3:] + (
        "diagnosis=healthy",
        "diagnosis=ill",
    )
    assert fed.test[1].tolist() == [[0, 1], [1, 0], [1, 1], [0, 0]]
    with pytest.raises(ArgumentError, match="Unknown column of x 'c'"):
        tf.Federation(frame, ["a", "c"], "hospital")


def test_owners_of_nullable_types():
    ids = pandas.Series([3, 1, 3, 1], dtype="Int64")
    assert tf.Federation(np.zeros((4, 1)), [0, 1, 0, 1], ids).names == (1, 3)


def test_features_survive_json():
    table = read_table(pandas_frame())
    features = Features.find(table, ["hospital", "diagnosis"])
    again = Features.from_json(features.to_json())
    assert again == features
    assert (again.encode(table) == features.encode(table)).all()
    with pytest.raises(DataError, match="columns in the settings are damaged"):
        Features.from_json([{"categories": 3}])


def test_a_column_that_names_rows_is_reported(caplog):
    names = [f"patient {i}" for i in range(30)]
    frame = pandas.DataFrame({"age": range(30), "name": names, "ill": [0, 1] * 15})
    tf.Federation(frame, "ill", np.arange(30) % 3)
    sentence = "The column 'name' has 30 different texts in 30 rows and becomes as many columns"
    assert [sentence in said for said in caplog.messages] == [True]
    caplog.clear()
    tf.Federation(frame.assign(name=names[:10] * 3), "ill", np.arange(30) % 3)
    assert caplog.messages == []


class HuggingFace:
    """What a Hugging Face dataset offers, where the package is not installed."""

    def __init__(self, columns, names=None):
        self.columns, self.column_names = columns, list(columns)
        self.features = dict.fromkeys(columns)
        if names:
            self.features["label"] = type("ClassLabel", (), {"names": names})()

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key):
        assert key == slice(None)
        return self.columns

    def __iter__(self):
        return (
            {name: values[i] for name, values in self.columns.items()} for i in range(len(self))
        )

    def with_format(self, name):
        assert name == "numpy"
        return HuggingFace({k: np.array(v) for k, v in self.columns.items()})

    def to_iterable_dataset(self):
        return Stream(self)


class Stream:
    """A Hugging Face dataset that can only be iterated, and may not know its columns."""

    column_names = features = None

    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


def hugging_face(columns, names=None):
    return HuggingFace(columns, names)


def real_hugging_face(columns, names=None):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    found = datasets.Dataset.from_dict(columns)
    features = dict(found.features)
    if names:
        features["label"] = datasets.ClassLabel(names=names)
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


@pytest.mark.parametrize("make", [hugging_face, real_hugging_face])
def test_hugging_face_datasets(make):
    images = [[[i, 2], [3, 4]] for i in range(3)]
    fed = tf.Federation.of([make({"image": images, "label": [0, 1, 1]}, ["cat", "dog"])] * 2)
    assert fed.x.shape == (6, 2, 2)
    assert fed.labels == ("cat", "dog")
    assert fed.y.tolist() == [0, 1, 1] * 2
    tokens = {"ids": [[1, 2], [3, 4]], "mask": [[1, 1], [1, 0]], "sense": [1, 0]}
    fed = tf.Federation.of({"a": make(tokens)}, y="sense", test=make(tokens))
    assert fed.x["ids"].tolist() == [[1, 2], [3, 4]]
    assert fed.x["mask"].dtype == torch.int64
    assert fed.test[1].tolist() == [1, 0]
    with pytest.raises(DataError, match="'ids' must have values of one shape"):
        tf.Federation.of([make({"ids": [[1], [1, 2]], "label": [0, 1]})])


@pytest.mark.parametrize("label", [-1, 2])
def test_labels_that_name_no_class_are_refused(label):
    rows = hugging_face({"x": [1.0, 2.0, 3.0], "label": [0, 1, label]}, ["no", "yes"])
    said = rf"'label' has {label} in row 2, which is none of its 2 classes \(-1 marks"
    with pytest.raises(DataError, match=said):
        tf.Federation.of([rows])


@pytest.mark.parametrize("make", [hugging_face, real_hugging_face])
def test_forms_of_hugging_face_datasets(make):
    rows = {name: values for name, values in ROWS.items() if name != "hospital"}
    features = ("age", "bmi", "smoker", "city=Bonn", "city=Rome")
    forms = [make(rows), make(rows).with_format("numpy"), make(rows).to_iterable_dataset()]
    for form in forms:
        fed = tf.Federation.of({"a": form}, y="diagnosis")
        assert fed.features.names == features
        assert fed.labels == ("healthy", "ill")
        assert fed.x[0].tolist() == [40, 20.5, 1, 0, 1]


CSV = """age,bmi,smoker,city,hospital,diagnosis
40,20.5,true,Rome,south,ill
50,30,False,Bonn,north,healthy

60,25.0,false,"Rome",south,ill
70,21,True, Rome ,north,healthy
"""


def write(tmp_path, text, name="patients.csv"):
    (tmp_path / name).write_text(text)
    return tmp_path / name


@pytest.mark.parametrize("text", [CSV, CSV.replace(",", ";"), "﻿" + CSV.replace(",", "\t")])
def test_csv(tmp_path, text):
    table = read_file(write(tmp_path, text), {"--target": "diagnosis"})
    assert {n: c.values.tolist() for n, c in table.columns.items()} == ROWS
    assert [table.columns[n].values.dtype.kind for n in ROWS] == ["i", "f", "b", "O", "O", "O"]


def test_parquet(tmp_path):
    polars_frame().write_parquet(tmp_path / "patients.parquet")
    table = read_file(tmp_path / "patients.parquet", {"--owner": "hospital"})
    assert {n: c.values.tolist() for n, c in table.columns.items()} == ROWS


BAD = {
    "missing": (
        CSV.replace("30,", "NA,"),
        "The column 'bmi' has a missing value, in line 3 of patients.csv; fill or drop such rows "
        "first, or leave the column out with --drop.",
    ),
    "lengths": (CSV + "1,2\n", "patients.csv, line 7, has 2 values, but the header has 6 names."),
    "empty": ("a,b\n", "patients.csv must have a header and at least one row, got 1."),
    "twice": (CSV.replace("bmi", "age"), "patients.csv has the column 'age' twice; rename one"),
    "quote": (CSV + '"1,2', "patients.csv is not CSV in UTF-8 that can be read (unexpected end"),
}


@pytest.mark.parametrize(("text", "sentence"), BAD.values(), ids=BAD)
def test_bad_files(tmp_path, text, sentence):
    with pytest.raises(DataError) as caught:
        Features.find(read_file(write(tmp_path, text), {}))
    assert sentence in str(caught.value)


def test_files_that_are_none(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"a.csv is not CSV in UTF-8"):
        read_file(tmp_path / "a.csv", {})
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"a.parquet is not a Parquet file"):
        read_file(tmp_path / "a.parquet", {})
    with pytest.raises(ArgumentError, match=r"column of patients.csv \(--target\) 'age2'. Did you"):
        read_file(write(tmp_path, CSV), {"--target": "age2"})


def test_integers_beyond_64_bits():
    with pytest.raises(DataError, match="integers that are too large"):
        read_table(pandas.DataFrame({"a": [2**70, 1]}))


def test_an_empty_frame():
    with pytest.raises(DataError, match="no columns"):
        read_table(pandas.DataFrame())
    assert len(Table({})) == 0
