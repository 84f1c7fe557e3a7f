"""The memory that is free."""

import os

from tunefree.core.device import measure_free_ram


def test_free_ram_is_some_of_it():
    assert 0 < measure_free_ram() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
