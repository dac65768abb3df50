"""What the features know of a device."""

from __future__ import annotations

import pytest

from gnnjit.cost.machine import machine_of


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
def test_a_machine_says_which_platform_it_is(platform):
    assert machine_of(platform).platform == platform
    assert (machine_of(platform).fresh == float("inf")) == (platform != "cpu")
