"""Which runs are found on disk, and which belong together."""

import json
import os

import pytest

from tunefree.core.errors import ArgumentError, CheckpointError
from tunefree.report import collect

from .runs import folder, row, run, settings


def shape(groups):
    return {label: [r.settings["seed"] for r in runs] for label, runs in groups.items()}


def test_runs_that_differ_only_in_the_seed_are_one_group(tmp_path):
    for name, seed in (("a", 2), ("b", 0), ("c", 10)):
        folder(tmp_path / name, run(seed=seed))
    folder(tmp_path / "d", run("scaffold", seed=0))
    assert shape(collect.load_groups([tmp_path])) == {"fedavg": [0, 2, 10], "scaffold": [0]}


def test_what_differs_is_in_the_label(tmp_path):
    for i, lr in enumerate((0.1, 1.0)):
        made = run()
        made.settings["method"]["step"]["lr"] = lr
        folder(tmp_path / str(i), made)
    folder(tmp_path / "2", run("auto"))
    assert list(collect.load_groups([tmp_path])) == ["fedavg lr=0.1", "fedavg lr=1.0", "auto"]


def test_versions_and_devices_make_no_group(tmp_path):
    folder(tmp_path / "a", run(seed=0))
    folder(tmp_path / "b", run(seed=1, torch="3", device="cuda", memory="device"))
    assert shape(collect.load_groups([tmp_path])) == {"fedavg": [0, 1]}


def test_a_setting_that_older_runs_do_not_know_makes_no_group(tmp_path):
    folder(tmp_path / "a", run(seed=0))
    folder(tmp_path / "b", run(seed=1, new=False, newer=None))
    folder(tmp_path / "c", run(seed=2, new=True))
    assert list(shape(collect.load_groups([tmp_path])).values()) == [[0, 1], [2]]


def test_the_split_counts_though_only_the_command_names_it():
    def one(split, seed):
        words = settings()["command"] | {"split": split}
        return run(seed=seed, command=words)

    groups = collect.group_runs([one("iid", 0), one("iid", 1), one("shards:2", 2)])
    assert shape(groups) == {"fedavg split=iid": [0, 1], "fedavg split=shards:2": [2]}


def test_a_repeated_run_is_a_group_of_its_own(tmp_path):
    folder(tmp_path / "digits-1", run(seed=0))
    folder(tmp_path / "digits-2", run(seed=0))
    assert shape(collect.load_groups([tmp_path])) == {
        "fedavg digits-1": [0],
        "fedavg digits-2": [0],
    }


def test_folders_of_seeds_name_the_group(tmp_path):
    for label in ("fedavg tuned", "auto"):
        for seed in (0, 1):
            folder(tmp_path / label / f"seed-{seed}", run(seed=seed))
    assert shape(collect.load_groups([tmp_path])) == {"auto": [0, 1], "fedavg tuned": [0, 1]}


def test_runs_that_tuned_a_method_of_a_comparison_are_left_out(tmp_path):
    folder(tmp_path / "study" / "fedavg" / "seed-0", run())
    folder(tmp_path / "study" / "tuning" / "fedavg" / "lr=1" / "seed-0", run())
    (tmp_path / "study" / "compare.json").write_text("{}")
    folder(tmp_path / "tuning" / "seed-0", run())  # a folder of that name that is no comparison's
    assert shape(collect.load_groups([tmp_path])) == {"fedavg": [0], "tuning": [0]}
    assert len(list(collect.find_run_folders(tmp_path / "study"))) == 2  # `watch` shows both


def test_labels_are_unique(tmp_path):
    for parent in ("x", "y"):
        folder(tmp_path / parent / "label" / "seed-0", run())
    assert len(collect.load_groups([tmp_path])) == 2


def test_a_folder_named_twice_is_read_once(tmp_path):
    folder(tmp_path / "a", run())
    assert shape(collect.load_groups([tmp_path, tmp_path / "a"])) == {"fedavg": [0]}


def test_folders_that_are_no_runs(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArgumentError, match=r"empty' holds none\.$"):
        collect.load_groups([tmp_path / "empty"])
    with pytest.raises(ArgumentError, match=r"missing' is no folder\.$"):
        collect.load_groups([tmp_path / "missing"])


def test_damaged_settings(tmp_path):
    place = folder(tmp_path / "a", run())
    (place / "settings.json").write_text("{")
    with pytest.raises(CheckpointError, match="is damaged"):
        collect.load_groups([tmp_path])


def test_a_history_that_cannot_be_read(tmp_path):
    place = folder(tmp_path / "a", run())
    (place / "history.jsonl").write_bytes(b"\xff\xfe\n")
    with pytest.raises(CheckpointError, match="cannot be read"):
        collect.load_groups([tmp_path])


@pytest.mark.parametrize("status", ["finished", "diverged", "stopped early"])
def test_the_status_is_that_of_the_checkpoint(tmp_path, status):
    assert collect.read_run(folder(tmp_path / "a", run(status=status))).status == status


def test_a_run_without_a_checkpoint(tmp_path):
    place = folder(tmp_path / "a", run(rounds=2), checkpoint=False)
    with (place / "history.jsonl").open("a") as file:
        file.write("not JSON\n[1]\n" + json.dumps(row(2))[:20])  # the last line is being written
    found = collect.read_run(place)
    assert (found.status, [r["round"] for r in found.history]) == ("unfinished", [0, 1])
    assert collect.is_running(found)
    (place / "history.jsonl").unlink()
    assert collect.read_run(place).history == []


def test_a_run_that_is_silent_for_long_is_not_running(tmp_path):
    place = folder(tmp_path / "a", run(), checkpoint=False)
    os.utime(place / "history.jsonl", (1e9, 1e9))
    assert not collect.is_running(collect.read_run(place))


def test_what_fit_writes_is_what_is_read(tmp_path):
    import torch

    import tunefree as tf

    fed = tf.Federation(
        [[float(i), 1.0] for i in range(12)], [i % 2 for i in range(12)], [0, 1] * 6
    )
    fed.test = (fed.x, fed.y)
    made = tf.fit(torch.nn.Linear(2, 2), fed, "fedavg", rounds=2, steps=1, out=tmp_path / "r")
    found = collect.read_run(tmp_path / "r")
    assert found.history == made.history
    assert (found.status, found.summary) == ("finished", made.summary)
    assert collect.load_groups([tmp_path]).keys() == {"fedavg"}
