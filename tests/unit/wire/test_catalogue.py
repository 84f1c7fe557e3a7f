import pytest

from tunefree import wire
from tunefree.core.errors import ArgumentError
from tunefree.wire import QSGD, Dense, ErrorFeedback, LowRank, Natural, RandK, Sign, TopK


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dense", Dense()),
        ("topk:0.05", TopK(0.05)),
        ("topk:0.05:global", TopK(0.05, per_layer=False)),
        ("TopK:1", TopK(1.0)),
        ("randk:0.1", RandK(0.1)),
        ("randk:0.1:contractive", RandK(0.1, unbiased=False)),
        ("qsgd:15", QSGD(15)),
        ("qsgd:1", QSGD(1)),
        (" natural ", Natural()),
        ("sign", Sign()),
        ("topk", TopK()),
        ("qsgd", QSGD()),
        ("topk:ratio=0.1", TopK(0.1)),
        ("randk:0.1:global", RandK(0.1, per_layer=False)),
        ("sign:global", Sign(per_layer=False)),
        ("lowrank:2", LowRank(2)),
        ("ef+topk:0.05", ErrorFeedback(TopK(0.05))),
        ("ef+topk:0.1:global", ErrorFeedback(TopK(0.1, per_layer=False))),
        ("EF+sign", ErrorFeedback(Sign())),
    ],
)
def test_words(text, expected):
    assert wire.parse(text) == expected


def test_a_wire_stands_for_itself():
    given = ErrorFeedback(TopK(0.1))
    assert wire.parse(given) is given


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("topkk:0.1", "Unknown wire 'topkk'. Did you mean 'topk'? Known: dense, ef+WIRE, "),
        ("", "Unknown wire ''. Known: dense, ef+WIRE, lowrank, natural, qsgd, randk, sign, topk."),
        ("ef", "The wire 'ef' goes in front of another one; write ef+dense, for example."),
        ("ef+", "Unknown wire ''."),
        ("ef+tpok:0.1", "Unknown wire 'tpok'. Did you mean 'topk'?"),
        ("topk+ef", "Unknown wire 'topk+ef'."),
        ("topk:x", "topk: ratio must be a number."),
        ("topk:0.1:layer", "topk: per_layer must be true or false."),
        ("topk:0.1:global:2", "topk: '2' is one value too many; write KEY=VALUE."),
        ("topk:rate=2", "Unknown setting of topk 'rate'. Did you mean 'ratio'?"),
        ("qsgd:1.5", "qsgd: levels must be an int."),
        ("lowrank:", "lowrank: rank must be an int."),
        ("sign:1", "sign: per_layer must be true or false."),
        ("dense:2", "dense: '2' is one value too many; it takes none."),
        ("topk:0", "TopK(ratio=...) must be a number in (0, 1], got 0.0."),
        ("topk:2", "TopK(ratio=...) must be a number in (0, 1], got 2.0."),
        ("randk:nan", "RandK(ratio=...) must be a number in (0, 1], got nan."),
        ("qsgd:0", "QSGD(levels=...) must be an int >= 1, got 0."),
        ("lowrank:-1", "LowRank(rank=...) must be an int >= 1, got -1."),
        ("ef+ef+sign", "Cannot use ErrorFeedback around ErrorFeedback."),
        (None, "A wire must be a Wire or text such as 'topk:0.05', got None."),
        (0.05, "A wire must be a Wire or text such as 'topk:0.05', got 0.05."),
    ],
)
def test_words_refused(text, sentence):
    with pytest.raises(ArgumentError) as error:
        wire.parse(text)
    assert sentence in str(error.value)
