import pytest

from tunefree import penalties
from tunefree.core.errors import ArgumentError
from tunefree.penalties import (
    L1,
    L2,
    MCP,
    SCAD,
    Box,
    ElasticNet,
    GroupLasso,
    L1Ball,
    L2Ball,
    Nuclear,
    Penalty,
    Simplex,
    Zero,
    get,
    names,
)

TEXTS = {
    "none": Zero(),
    "l1": L1(),
    "l1:1e-3": L1(1e-3),
    " L1:0.5 ": L1(0.5),
    "l2:2": L2(2.0),
    "elastic-net:1e-4:1e-5": ElasticNet(1e-4, 1e-5),
    "mcp:1e-4": MCP(1e-4),
    "mcp:1e-4:3": MCP(1e-4, 3.0),
    "scad:1e-4:3.7": SCAD(1e-4, 3.7),
    "1e-3*scad:0.5": penalties.Scaled(1e-3, SCAD(0.5)),
    "group-lasso:1e-4": GroupLasso(1e-4),
    "group-lasso:1e-4:layer": GroupLasso(1e-4, "layer"),
    "group-lasso:1e-4:row:scaled": GroupLasso(1e-4, "row", True),
    "group-lasso:1e-4:scaled": GroupLasso(1e-4, "row", True),
    "mcp:gamma=4": MCP(gamma=4.0),
    "2*3*l1:1": penalties.Scaled(2.0, penalties.Scaled(3.0, L1(1.0))),
    "nuclear:1e-4": Nuclear(1e-4),
    "box:-1:1": Box(-1.0, 1.0),
    "box:0:inf": Box(0.0, float("inf")),
    "l1-ball:10": L1Ball(10.0),
    "l2-ball:10": L2Ball(10.0),
    "simplex:1": Simplex(1.0),
}


@pytest.mark.parametrize("text", TEXTS)
def test_texts(text):
    assert get(text) == TEXTS[text]
    assert repr(get(text)) == repr(TEXTS[text])  # 2.0, not 2


def test_a_penalty_is_itself():
    part = MCP(0.1)
    assert get(part) is part


def test_every_penalty_has_a_name():
    made = {type(get(name)) for name in names()}
    known = [getattr(penalties, name) for name in penalties.__all__]
    classes = {c for c in known if isinstance(c, type) and c not in (Penalty, penalties.Scaled)}
    assert made == classes
    assert names() == sorted(names())


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("mpc:1", "Unknown penalty 'mpc'. Did you mean 'mcp'? Known: box, elastic-net, "),
        ("", "Unknown penalty ''. Known: "),
        ("l1:strong", "l1: weight must be a number."),
        ("mcp:1e-4:", "mcp: gamma must be a number."),
        ("l1:1:2", "l1: '2' is one value too many; write KEY=VALUE."),
        ("none:1", "none: '1' is one value too many; it takes none."),
        ("two*l1:1", "The factor 'two' of a penalty must be a number."),
        ("2*" * 11 + "l1", "A penalty must have at most 10 factors before its name."),
        ("l1:-1", "L1(weight=...) must be a finite number >= 0, got -1.0."),
        ("l2:nan", "L2(weight=...) must be a finite number >= 0, got nan."),
        ("scad:1:2", "SCAD(a=...) must be a number between 2 and inf, got 2.0."),
        ("group-lasso:1:unit", "Unknown GroupLasso groups 'unit'. Known: layer, row."),
        ("group-lasso:1:row:yes", "group-lasso: scaled must be true or false."),
        (3, "A penalty must be a Penalty or text such as 'l1:1e-4', got 3."),
        (None, "A penalty must be a Penalty or text such as 'l1:1e-4', got None."),
    ],
)
def test_sentences(text, sentence):
    with pytest.raises(ArgumentError) as error:
        get(text)
    assert str(error.value).startswith(sentence)
    assert str(error.value).endswith(".")
