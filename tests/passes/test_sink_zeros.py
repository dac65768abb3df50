"""`sink-zeros` leaves a table of zeros to those who add an edge's rows to it."""

import pytest

from gnnjit.passes.sink_zeros import SinkZeros

from .golden import fires, refuses

UPDATE = """\
    layer f(i: i32[edge], m: f32[edge, 1, 4])
      z: f32[{space}5, 4] = broadcast_in_dim({number}, broadcast_dimensions=())
      d: f32[edge, 5, 4] = dynamic_update_slice(z, m, {index}, 0)
      return d
    """


def test_fires_on_a_table_of_zeros():
    before = UPDATE.format(space="", number="0.0", index="i")
    fires(SinkZeros(), before, UPDATE.format(space="edge, ", number="0.0", index="i"))


def test_refuses_other_numbers():
    refuses(SinkZeros(), UPDATE.format(space="", number="1.0", index="i"))


@pytest.mark.parametrize("update", ["f32[edge, 2, 4]", "f32[edge, 1, 3]"])
def test_refuses_what_is_no_whole_row(update):
    text = UPDATE.format(space="", number="0.0", index="i")
    refuses(SinkZeros(), text.replace("f32[edge, 1, 4]", update))
