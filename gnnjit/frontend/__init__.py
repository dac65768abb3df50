"""From a user's function to a program.

`trace_layer` takes a layer and the arguments of one call and gives a `gnnjit.ir.program`, with the
arrays that are its inputs; `trace_arrays` takes a streamed function of whole arrays. Both read
jaxprs, with one `walker`; nobody else does. `vocabulary` is what a layer may say beside plain JAX,
`mistakes`, `state` and `suspicions` say in a user's terms what is wrong. The compiler and the
lowerings, which trace per-edge functions of their own, call it.
"""
