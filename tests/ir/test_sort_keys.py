"""Keys are ordered as numbers are."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gnnjit.ir.sort_keys import key_bits, sort_key

FLOATS = [-np.inf, -3.5, -1e-40, 0.0, 1e-40, 2.0, np.inf, np.nan]
DTYPES = [jnp.float32, jnp.bfloat16, jnp.float16, jnp.float64, jnp.int8, jnp.int32, jnp.int64,
          jnp.uint8, jnp.uint32, jnp.uint64]  # fmt: skip


def rising(dtype: Any) -> Any:
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.array([x for x in FLOATS if abs(x) != 1e-40] if dtype != jnp.float64 else FLOATS,
                         dtype)  # fmt: skip
    info = jnp.iinfo(dtype)
    return jnp.array(sorted({info.min, info.min + 1, 0, 1, info.max}), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_they_rise_and_fall_as_numbers_do(dtype: Any) -> None:
    with jax.enable_x64(True):
        x = rising(dtype)
        key = np.asarray(sort_key(x, False))
        assert key.dtype.itemsize * 8 == key_bits(dtype)
        assert (key[1:] > key[:-1]).all()
        falling = np.asarray(sort_key(x, True))
        assert (falling[1:] < falling[:-1]).all()


def test_zeros_are_equal_and_nan_is_one_number() -> None:
    key = sort_key(jnp.array([0.0, -0.0, np.nan, -np.nan], jnp.float32), False)
    assert key[0] == key[1]
    assert key[2] == key[3] == np.iinfo(np.int32).max
