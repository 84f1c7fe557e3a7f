"""Files of users are read, or refused with a sentence."""

from contextlib import suppress

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tunefree.cli.config import expand_config, to_toml
from tunefree.core.errors import TunefreeError
from tunefree.data.tables import Features, read_file

WORDS = ["", "1", "-2", "3.5", "true", "x y", '"', '"a,b"', "nan", "1e999", "é", "\x00"]
LINES = st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(",".join), max_size=6)
FILES = st.one_of(st.binary(max_size=60), LINES.map("\n".join).map(str.encode))
VALUES = st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8))
NAMES = st.text("abcx_", min_size=1, max_size=8)
calm = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))


@calm
@given(FILES)
def test_tables(tmp_path, data):
    for name in ("a.csv", "a.parquet"):
        (tmp_path / name).write_bytes(data)
        with suppress(TunefreeError):  # and no other error
            table = read_file(tmp_path / name, {})
            assert len(Features.find(table).encode(table)) == len(table) > 0


@calm
@given(st.binary(max_size=60))
def test_configs(tmp_path, data):
    (tmp_path / "a.toml").write_bytes(data)
    with suppress(TunefreeError):
        expand_config(["run", "--config", str(tmp_path / "a.toml")])


@calm
@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_options_that_are_written_are_read_again(tmp_path, options):
    (tmp_path / "a.toml").write_text(to_toml(options), newline="")
    want = ["run"]
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            want.append(option)
        elif value is not False:
            want += [option, str(value)]
    assert expand_config(["run", "--config", str(tmp_path / "a.toml")]) == want
