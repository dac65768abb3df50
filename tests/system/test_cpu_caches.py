"""What Linux says about caches."""

from __future__ import annotations

import pytest

from gnnjit.system.cpu_caches import Caches, caches, read_caches


def write(folder, *found):
    for number, (level, kind, size, cores) in enumerate(found):
        index = folder / f"index{number}"
        index.mkdir()
        for name, text in zip(
            ("level", "type", "size", "shared_cpu_list"), (level, kind, size, cores), strict=True
        ):
            (index / name).write_text(f"{text}\n")
    return folder


L1 = (1, "Data", "32K", "0"), (1, "Instruction", "256K", "0")


def test_the_share_of_a_core_and_the_last_cache(tmp_path):
    found = write(tmp_path, *L1, (2, "Unified", "1024K", "0,8"), (3, "Unified", "32M", "0-3,8-11"))
    assert read_caches(found) == Caches(512 << 10, 32 << 20, 8)


def test_a_virtual_machine_that_is_told_of_a_whole_chip(tmp_path):
    found = write(tmp_path, *L1, (2, "Unified", "2048K", "0"), (3, "Unified", "491520K", "0-1"))
    assert read_caches(found) == Caches(2 << 20, 32 << 20, 2)


def test_two_levels(tmp_path):
    assert read_caches(write(tmp_path, *L1, (2, "Unified", "2M", "0-1"))) == Caches(
        32 << 10, 2 << 20, 2
    )


@pytest.mark.parametrize("found", [(), L1, (*L1, (2, "Unified", "", "0"))])
def test_where_the_system_does_not_say(found, tmp_path):
    assert read_caches(write(tmp_path, *found)) is None


def test_without_such_a_folder(tmp_path):
    assert read_caches(tmp_path / "missing") is None


def test_of_this_machine():
    found = caches()
    assert found is None or 0 < found.near < found.last
