"""Several processes as one: where they are, how they connect, agree and end together.

In: the environment of a cluster or of `gnnjit launch`. Out: a `jax.distributed` runtime and a
control plane beside it, which notices a process that is gone. `training`, `store` and `cli` use it.
"""
