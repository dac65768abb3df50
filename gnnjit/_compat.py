"""Everything that differs between the JAX releases gnnjit runs on (0.10.2 to the newest)."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax import core
from jax._src import config as _config  # how arrays vary over a mesh is nowhere public
from jax._src import core as _core
from jax._src.interpreters import ad as _ad
from jax._src.interpreters import partial_eval as _pe
from jax._src.interpreters.ad import CustomVJPException
from jax._src.literals import TypedNdArray
from jax._src.named_sharding import UNSPECIFIED
from jax.core import Tracer
from jax.experimental import jet
from jax.extend import core as extend
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.extend.core import Literal as JaxprLiteral
from jax.interpreters import ad, batching, mlir
from jax.interpreters import partial_eval as pe

__all__ = [
    "JAX_VERSION",
    "ClosedJaxpr",
    "CustomVJPException",
    "Jaxpr",
    "JaxprLiteral",
    "Kept",
    "Primitive",
    "Tracer",
    "abstract_outputs",
    "ad",
    "alike",
    "as_function",
    "as_one_operation",
    "batching",
    "bound",
    "cast_varying",
    "current_trace",
    "derivative_parts",
    "devices_in_use",
    "drop_unused",
    "dropout_of",
    "expansion",
    "holds_arrays",
    "is_exported",
    "is_jaxpr",
    "is_numpy",
    "is_tracer",
    "is_users",
    "jit_is_disabled",
    "like",
    "lower_fun",
    "mlir",
    "open_jaxpr",
    "primitive_names",
    "pruned",
    "raised_at",
    "refuse_jet",
    "result_aval",
    "scan_counts",
    "shaped_array",
    "subjaxprs",
    "user_line",
    "value_of",
    "variable",
    "varying_axes",
    "varying_like",
    "with_inputs",
    "without_constants",
    "without_mesh",
    "zero_tangent",
]

JAX_VERSION: tuple[int, ...] = tuple(int(p) for p in jax.__version__.split(".")[:3] if p.isdigit())


def shaped_array(shape: tuple[int, ...], dtype: Any) -> Any:
    return core.ShapedArray(shape, dtype)


# Inside `jax.shard_map`, the type of an array says over which axes of the mesh its value varies.


class Primitive(extend.Primitive):
    """A primitive whose operands vary over the same axes, as those of JAX's own array functions."""

    def bind(self, *args: Any, **params: Any) -> Any:
        return super().bind(*alike(args), **params)


def alike(args: Sequence[Any]) -> Sequence[Any]:
    """Arrays cast so that each varies over the axes over which any of them does."""
    return _core.auto_insert_reshard(*args) if _config._check_vma.value else args


def varying_axes(args: Sequence[Any]) -> frozenset[Any]:
    """The axes of the mesh over which the values of some of the arrays are known to vary."""
    if not _config._check_vma.value:
        return frozenset()
    avals = [jax.typeof(x) for x in args]
    return frozenset().union(*(a.mat.varying for a in avals if isinstance(a, core.ShapedArray)))


def result_aval(avals: Sequence[Any], shape: tuple[int, ...], dtype: Any) -> Any:
    """The type of an array that a primitive makes of arrays of these types."""
    over = _core.standard_vma_rule("gnnjit", *avals)
    if not over:
        return core.ShapedArray(shape, dtype)
    first = next(a for a in avals if isinstance(a, core.ShapedArray))
    everywhere = jax.sharding.PartitionSpec(*(None,) * len(shape))
    return first.update(
        shape=shape, dtype=dtype, weak_type=False, sharding=first.sharding.update(spec=everywhere),
        manual_axis_type=first.manual_axis_type.update(varying=over),
    )  # fmt: skip


def cast_varying(x: Any, over: frozenset[Any]) -> Any:
    """`x` varying over these axes at least."""
    missing = over - varying_axes([x])
    return _core.pvary(x, tuple(missing)) if missing else x


def varying_like(kind: Any, over: frozenset[Any]) -> jax.ShapeDtypeStruct:
    """What `jax.make_jaxpr` takes in place of an array that varies over some axes."""
    here = jax.sharding.NamedSharding(
        jax.sharding.get_abstract_mesh(), jax.sharding.PartitionSpec()
    )
    varying = _core.ManualAxisType(varying=over)
    return jax.ShapeDtypeStruct(kind.shape, kind.dtype, sharding=here, manual_axis_type=varying)


@contextlib.contextmanager
def without_mesh() -> Iterator[None]:
    """Within it, functions are traced as where there is no mesh: what is found may be kept, and
    used where there is another."""
    if jax.sharding.get_abstract_mesh().empty:
        yield
        return
    with _config._check_vma(False), jax.sharding.use_abstract_mesh(_NO_MESH):
        yield


_NO_MESH = jax.sharding.AbstractMesh((), ())


def lower_fun(fn: Callable[..., Any], *, multiple_results: bool) -> Callable[..., Any]:
    """`mlir.lower_fun` for a function that speaks to no other device: inside `jax.shard_map` it is
    traced as anywhere else. How its results vary is said by the type of the primitive."""
    rule = mlir.lower_fun(fn, multiple_results=multiple_results)

    def lowered(ctx: Any, *args: Any, **params: Any) -> Any:
        if not _config._check_vma.value:
            return rule(ctx, *args, **params)
        same = _core.ManualAxisType()
        avals = [
            a.update(manual_axis_type=same) if isinstance(a, core.ShapedArray) else a
            for a in ctx.avals_in
        ]
        with _config._check_vma(False):
            return rule(ctx.replace(avals_in=avals), *args, **params)

    return lowered


def abstract_outputs(
    primitive: extend.Primitive,
    kinds: Sequence[tuple[tuple[int, ...], Any]],
    params: dict[str, Any],
) -> list[Any] | None:
    """The shapes and dtypes that a primitive makes of others, in a tenth of the time of
    `jax.eval_shape`; None for one that does not tell by itself."""
    try:
        outs, _ = primitive.abstract_eval(*[core.ShapedArray(*kind) for kind in kinds], **params)
    except NotImplementedError:
        return None
    return list(outs) if primitive.multiple_results else [outs]


Kept = tuple[Sequence[int], Sequence[int], dict[str, Any]]
"""The inputs and outputs of an equation that stay, by number, and its parameters then."""


def drop_unused(
    primitive: Primitive, rule: Callable[[tuple[int, ...], dict[str, Any]], Kept]
) -> None:
    """Let JAX leave out what is not read of an equation: `rule` is told which outputs are."""

    def dce(used: Sequence[bool], *rest: Any) -> tuple[list[bool], Any]:
        eqn = rest[-1]  # from JAX 0.12, which inputs are live comes before it
        read = tuple(k for k, is_used in enumerate(used) if is_used)
        if not read:
            return [False] * len(eqn.invars), None
        ins, outs, params = rule(read, dict(eqn.params))
        left = eqn.replace(
            invars=[eqn.invars[i] for i in ins], outvars=[eqn.outvars[k] for k in outs],
            params=params,
        )  # fmt: skip
        return [i in set(ins) for i in range(len(eqn.invars))], left

    pe.dce_rules[primitive] = dce


def as_one_operation(run: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, which `jax.debug_nans` does not look into: it would run the same primitive again."""
    run._apply_primitive = True  # type: ignore[attr-defined]
    return run


def refuse_jet(primitive: Primitive, refuse: Callable[..., Any]) -> None:
    """Let `jax.experimental.jet` call `refuse(**params)`, where a rule is missing."""
    jet.jet_rules[primitive] = lambda primals, series, **params: refuse(**params)


def devices_in_use() -> bool:
    """Whether JAX has started its backends, after which no other process can be joined."""
    from jax._src import xla_bridge  # asked for publicly, the devices would be started

    return xla_bridge.backends_are_initialized()


def open_jaxpr(jaxpr: Any) -> tuple[Any, list[Any]]:
    """Jaxpr and constants; from JAX 0.11 the open and the closed jaxpr are one class."""
    return getattr(jaxpr, "jaxpr", jaxpr), list(getattr(jaxpr, "consts", []))


def like(value: Any) -> jax.ShapeDtypeStruct:
    """What `jax.make_jaxpr` takes in place of an array."""
    weak = getattr(value, "weak_type", False)
    return jax.ShapeDtypeStruct(value.shape, value.dtype, weak_type=weak)


def subjaxprs(eqn: Any) -> Iterator[Any]:
    """The open jaxprs among an equation's parameters."""
    for param in jax.tree.leaves(list(dict(eqn.params).values()), is_leaf=is_jaxpr):
        if is_jaxpr(param):
            yield open_jaxpr(param)[0]


def primitive_names(eqn: Any) -> Iterator[str]:
    """The primitives inside an equation's parameters: a custom derivative, a loop, a condition."""
    for sub in subjaxprs(eqn):
        for inner in sub.eqns:
            yield inner.primitive.name
            yield from primitive_names(inner)


def holds_arrays(eqn: Any) -> bool:
    """Whether some jaxpr in an equation's parameters has constants, at whatever depth."""
    for param in jax.tree.leaves(list(dict(eqn.params).values()), is_leaf=is_jaxpr):
        if is_jaxpr(param):
            inner, consts = open_jaxpr(param)
            if consts or any(holds_arrays(e) for e in inner.eqns):
                return True
    return False


def is_jaxpr(x: Any) -> bool:
    return isinstance(x, (ClosedJaxpr, Jaxpr))


def bound(eqn: Any, args: Sequence[Any]) -> list[Any]:
    """The results of an equation of a jaxpr on other arguments."""
    params = eqn.primitive.get_bind_params(dict(eqn.params))
    with eqn.ctx.manager:
        out = eqn.primitive.bind(*args, **params)
    return list(out) if eqn.primitive.multiple_results else [out]


def as_function(closed: ClosedJaxpr) -> Callable[..., list[Any]]:
    """The function that a jaxpr stands for."""
    return extend.jaxpr_as_fun(closed)


def without_constants(closed: Any) -> tuple[ClosedJaxpr, list[Any]]:
    """The jaxpr whose first inputs are its constants, and these."""
    jaxpr, consts = open_jaxpr(closed)
    return ClosedJaxpr(_pe.convert_constvars_jaxpr(jaxpr), ()), consts


def variable(aval: Any) -> Any:
    """A new variable of a jaxpr."""
    return extend.Var(aval)


def with_inputs(eqn: Any, key: str, closed: ClosedJaxpr, variables: Sequence[Any]) -> Any:
    """The equation of a call whose function, the parameter `key`, takes these inputs first."""
    params = {**eqn.params, key: closed}
    for name, each in _OF_INPUTS.items():
        if name in params:
            params[name] = (each,) * len(variables) + tuple(params[name])
    if "num_consts" in params:  # of a function whose own derivative takes none of them
        params["num_consts"] += len(variables)
    if "out_trees" in params:
        params["out_trees"] = functools.partial(_moved, params["out_trees"], len(variables))
    return eqn.replace(invars=[*variables, *eqn.invars], params=params)


def _moved(out_trees: Callable[[], Any], by: int) -> Any:
    """What a function with its own transpose gives, where inputs that it only hands on moved."""
    outs, kept, handed_on = out_trees()
    return outs, kept, [i if i is None else i + by for i in handed_on]


_OF_INPUTS = {"in_shardings": UNSPECIFIED, "in_layouts": None, "donated_invars": False}
"""What `jit` says of each input, and says of one that nobody spoke of."""


def derivative_parts(
    closed: ClosedJaxpr, nonzero: Sequence[bool]
) -> tuple[ClosedJaxpr, ClosedJaxpr, list[bool]]:
    """The derivative of a jaxpr without constants along the inputs `nonzero`, in two parts: results
    and what the second part needs; tangents of results, of that and of the inputs' tangents. And
    which results have a tangent."""
    forward, live = _ad.jvp_jaxpr(closed, list(nonzero), False)
    unknown = [False] * len(nonzero) + [True] * sum(nonzero)
    outs = [False] * len(live) + [True] * sum(live)
    first, second, _, _ = _pe.partial_eval_jaxpr_nounits(forward, unknown, outs)
    return first, second, list(live)


def pruned(closed: ClosedJaxpr, read: Sequence[int]) -> tuple[ClosedJaxpr, list[int]]:
    """A jaxpr without constants for some of its results, and the inputs that it needs for them."""
    jaxpr = open_jaxpr(closed)[0]
    used = [k in set(read) for k in range(len(jaxpr.outvars))]
    left, inputs = _pe.dce_jaxpr(jaxpr, used)
    return ClosedJaxpr(left, ()), [i for i, live in enumerate(inputs) if live]


def scan_counts(params: Any) -> tuple[int, int]:
    """How many constants a scan has, and how many values it carries."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carried, _ = params["ft_in"].unpack()  # from JAX 0.12
    return len(list(consts)), len(list(carried))


def expansion(eqn: Any) -> Any:
    """The function that a primitive of a higher level stands for (from JAX 0.12), or None."""
    found = dict(eqn.params).get("_prim")
    return getattr(found, "expand", None)


def is_exported(ctx: Any) -> bool:
    """Whether a lowering rule's context is that of `jax.export`."""
    asked = getattr(ctx.module_context, "lowering_parameters", None)
    return bool(getattr(asked, "for_export", False))


def zero_tangent(aval: Any) -> Any:
    """The symbolic zero tangent of a value."""
    known = isinstance(aval, core.ShapedArray)
    return ad.Zero((aval if known else shaped_array(aval.shape, aval.dtype)).to_tangent_aval())


def is_numpy(x: Any) -> bool:
    """Whether it is an array of NumPy, also as JAX holds one that a function closed over."""
    return isinstance(x, (np.ndarray, TypedNdArray))


def value_of(x: Any) -> Any:
    """The array that a tracer stands for (in `jax.grad`), or None where it is not known."""
    return x.to_concrete_value() if is_tracer(x) else x


def jit_is_disabled() -> bool:
    """Whether `jax.disable_jit` is on."""
    return bool(getattr(jax.config, "jax_disable_jit"))  # noqa: B009  (it has no type)


def is_tracer(x: Any) -> bool:
    return isinstance(x, core.Tracer)


def current_trace() -> Any:
    """Which transformation runs just now: another object inside each `jax.vmap` or `jax.grad`."""
    from jax._src import core as inner  # no public name on any supported release

    return inner.trace_ctx.trace


def _folder(package: str) -> str:
    spec = importlib.util.find_spec(package)  # which imports nothing
    return "" if spec is None or spec.origin is None else os.path.dirname(spec.origin) + os.sep


_OURS = os.path.dirname(__file__) + os.sep
_OTHERS = tuple(filter(None, map(_folder, ("pallas_kernels", "jax", "jaxlib", "flax", "numpy"))))
_PYTHON = os.path.dirname(os.__file__) + os.sep
_AS_USERS_DO = tuple(f"{_OURS}{room}{os.sep}" for room in ("nn", "training"))
"""Rooms of ours that write layers and call them."""


def is_users(file: str) -> bool:
    """Whether code in a file is the user's, whose line a message names: none of Python, JAX, Flax,
    NumPy and this package, but for the layers that come with it."""
    if file.startswith(_OURS):
        return file.startswith(_AS_USERS_DO)
    if file.startswith((*_OTHERS, "<frozen ", "<string>")):
        return False
    return not file.startswith(_PYTHON) or "-packages" in file[len(_PYTHON) :]


def user_line(source_info: Any) -> tuple[str, int] | None:
    """File and line of the user's code that made an equation."""
    from jax._src import source_info_util  # the only way to a frame on all supported releases

    frames = source_info_util.user_frames(getattr(source_info, "traceback", source_info))
    first = next((f for f in frames if is_users(f.file_name)), None)
    return (first.file_name, first.start_line) if first else None


def raised_at(error: BaseException) -> str | None:
    """File and line of the user's code, the innermost that raised an error or that it passed."""
    frames = traceback.walk_tb(error.__traceback__)
    at = [(f.f_code.co_filename, line) for f, line in frames if is_users(f.f_code.co_filename)]
    return f"{os.path.basename(at[-1][0])}:{at[-1][1]}" if at else None


def dropout_of(source_info: Any) -> str | None:
    """The module of Flax that drew random numbers in an equation: "linen.Dropout", or None."""
    from jax._src import source_info_util  # as in `user_line`

    frames = source_info_util.user_frames(getattr(source_info, "traceback", source_info))
    files = [frame.file_name.replace(os.sep, "/") for frame in frames]
    for library, file in (("linen", "flax/linen/stochastic.py"), ("nnx", "nnx/nn/stochastic.py")):
        if any(name.endswith(file) for name in files):
            return f"{library}.Dropout"
    return None
