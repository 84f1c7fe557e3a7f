"""The options of a run are documented in one place, the Args of their class."""

from dataclasses import fields

import pytest

from tunefree.core.text import read_argument_docs
from tunefree.flower import Settings
from tunefree.training.command import CommandConfig
from tunefree.training.config import GROUPS, OPTION_DOCS, OPTIONS, RunConfig


@pytest.mark.parametrize("kind", [RunConfig, CommandConfig, Settings, *GROUPS.values()])
def test_every_option_is_documented_and_nothing_else(kind):
    inherited = {f.name for f in fields(RunConfig)} if kind is Settings else set()
    documented = set(read_argument_docs(kind.__doc__))
    assert documented - inherited == {f.name for f in fields(kind)} - inherited
    assert documented <= {f.name for f in fields(kind)}


def test_options_of_all_groups_have_names_of_their_own():
    names = [option.name for _, option in OPTIONS]
    assert len(names) == len(set(names))
    assert set(OPTION_DOCS) == {*names, *GROUPS}
