"""The run of a streamed function: transfers beside the computation, and what was measured.

In: a `Layout`, its executables, and where the arrays are. Out: results in the store, and `Traffic`.
Imports all other rooms of `streaming`; `compile` calls it.
"""
