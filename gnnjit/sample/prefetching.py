"""Memory that is asked for before it is read."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def _prefetch(typingctx: Any, array: Any, index: Any) -> Any:
    """Ask for `array[index]`, which need not be there, without waiting for it.

    Samplers read a graph at random, and a processor that does not know the next places waits for
    each; it knows them by this.
    """

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = signature.args[0]
        made = context.make_array(kind)(context, builder, args[0])
        place = cgutils.get_item_pointer(
            context, builder, kind, made, [args[1]], wraparound=False, boundscheck=False
        )
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        asks = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [byte, word, word, word]),
            "llvm.prefetch.p0",
        )  # fmt: skip
        read, keep, data = word(0), word(2), word(1)
        builder.call(asks, [builder.bitcast(place, byte), read, keep, data])
        return context.get_dummy_value()

    return types.void(array, types.intp), emit


prefetch: Any = _prefetch
"""`prefetch(array, index)`, in compiled functions; the type checker sees what makes the code."""
