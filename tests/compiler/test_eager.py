"""Outside `jax.jit`, transformations of a layer compile in their first call and never again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

import gnnjit
import gnnjit.nn
from gnnjit.compiler.call import recorded_calls
from gnnjit.frontend import interned
from gnnjit.lower import primitives
from gnnjit.lower.vertex_matmul import rows_p

pytestmark = pytest.mark.usefixtures("loops_stay")

RNG = np.random.default_rng(3)
GRAPH = gnnjit.Graph.from_edges(*RNG.integers(0, 20, (2, 70)), 20)
X, W = (jnp.asarray(RNG.normal(size=s), jnp.float32) for s in ((20, 5), (5, 5)))


def compilations(f: Callable[[], Any]) -> list[str]:
    """The names of the functions that XLA compiles, or loads from its cache, in a call."""
    found: list[str] = []

    def listen(event: str, _: float, **known: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(str(known.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        jax.block_until_ready(f())
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    return found


def attend(v: Any, e: Any, w: Any) -> Any:
    score = jax.nn.leaky_relu(jnp.sum(e.src @ w * v))
    return gnnjit.sum(gnnjit.softmax(score) * e.src) + gnnjit.max(jnp.tanh(e.src + v))


LAYER = gnnjit.layer(attend)


def loss(w: Any, x: Any = X) -> Any:
    return jnp.sum(jnp.sin(LAYER(GRAPH, x, w)))


@jax.custom_vjp
def custom(x: Any) -> Any:
    return jnp.sin(x)


custom.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct * jnp.cos(x),))

TRANSFORMS: dict[str, Callable[[], Any]] = {
    "grad": lambda: jax.grad(lambda w: loss(w))(W),
    "vjp": lambda: jax.vjp(lambda w: LAYER(GRAPH, X, w), W)[1](X),
    "jvp": lambda: jax.jvp(lambda w: LAYER(GRAPH, X, w), (W,), (W,)),
    "vmap": lambda: jax.vmap(loss)(jnp.stack([W, W])),
    "vmap of grad": lambda: jax.vmap(jax.grad(loss))(jnp.stack([W, W])),
    "checkpoint": lambda: jax.grad(jax.checkpoint(loss))(W),
    "hvp": lambda: jax.jvp(jax.grad(loss), (W,), (W,)),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_nothing_is_compiled_again(name):
    f = TRANSFORMS[name]
    f()
    assert compilations(f) == []


def test_hessian():
    layer = gnnjit.layer(lambda v, e, w: gnnjit.sum(w * e.src))

    def f() -> Any:
        return jax.hessian(lambda w: jnp.sum(layer(GRAPH, X, w) ** 2))(W[0])

    f()
    assert compilations(f) == []


def test_modules():
    model = gnnjit.nn.GCN(5, 3, rngs=nnx.Rngs(0))

    def f() -> Any:
        return nnx.grad(lambda m: jnp.sum(m(GRAPH, X) ** 2))(model)

    f()
    assert compilations(f) == []


LOOPS: dict[str, Callable[[Any], Any]] = {
    "fori": lambda x: lax.fori_loop(0, 3, lambda i, y: jnp.sin(y), x),
    "scan": lambda x: lax.scan(lambda c, _: (jnp.tanh(c), c), x, length=2)[0],
    "relu": lambda x: lax.fori_loop(0, 2, lambda i, y: jax.nn.relu(y) + i, x),
    "while": lambda x: lax.while_loop(lambda c: c[1] < 2, lambda c: (-c[0], c[1] + 1), (x, 0))[0],
    "cond": lambda x: lax.cond(x[0] > 0, lambda y: y * 2, jnp.cos, x),
    "custom_vjp": custom,
    "softplus": jax.nn.softplus,
}


@pytest.mark.parametrize("name", LOOPS)
def test_functions_with_jaxprs_inside(name):
    """They are other objects in each trace."""
    layer = gnnjit.layer(lambda v, e: gnnjit.sum(LOOPS[name](e.src * v)))

    def f() -> Any:
        return layer(GRAPH, X)

    f()
    assert compilations(f) == []


@pytest.mark.parametrize("name", [n for n in LOOPS if n != "while"])
def test_their_gradients(name):
    layer = gnnjit.layer(lambda v, e: gnnjit.sum(LOOPS[name](e.src * v)))

    def f() -> Any:
        return jax.grad(lambda x: jnp.sum(layer(GRAPH, x)))(X)

    def plain() -> Any:
        return jax.grad(lambda x: jnp.sum(jax.vmap(LOOPS[name])(x)))(X)

    f(), plain()
    # JAX 0.10 compiles an eager gradient of a loop in each call.
    assert len(compilations(f)) <= len(compilations(plain))


# ------------------------------------------------------------------------------- which are the same


def same(f: Callable[..., Any], g: Callable[..., Any]) -> bool:
    """Whether layers that differ in a function are one program."""
    programs = []
    for fn in (f, g):
        staged = []
        with recorded_calls() as calls:
            jax.eval_shape(lambda fn=fn: gnnjit.layer(lambda v, e: gnnjit.sum(fn(e.src)))(GRAPH, X))
        staged += calls
        programs.append(staged[0].program)
    return programs[0] == programs[1]


def loop(fn: Callable[..., Any], steps: int = 3) -> Callable[..., Any]:
    return lambda x: lax.fori_loop(0, steps, lambda i, y: fn(y), x)


def with_slope(slope: float) -> Callable[..., Any]:
    @jax.custom_jvp
    def f(x: Any) -> Any:
        return jnp.sin(x)

    f.defjvp(lambda p, t: (jnp.sin(*p), slope * t[0]))
    return f


def with_slope_back(slope: float) -> Callable[..., Any]:
    @jax.custom_vjp
    def f(x: Any) -> Any:
        return jnp.sin(x)

    f.defvjp(lambda x: (jnp.sin(x), None), lambda _, ct: (slope * ct,))
    return f


@pytest.mark.parametrize(
    ("f", "g", "equal"),
    [
        (loop(jnp.sin), loop(jnp.sin), True),
        (loop(jnp.sin), loop(jnp.cos), False),
        (loop(jnp.sin), loop(jnp.sin, 4), False),
        (loop(lambda x: x * 0.1), loop(lambda x: x * (0.1 + 1e-8)), False),
        (loop(with_slope(1.0)), loop(with_slope(1.0)), True),
        (loop(with_slope(1.0)), loop(with_slope(2.0)), False),
        (with_slope(1.0), with_slope(2.0), False),
        (loop(with_slope_back(1.0)), loop(with_slope_back(2.0)), False),
        (with_slope_back(1.0), with_slope_back(1.0), True),
    ],
)
def test_only_equal_functions_are_one(f, g, equal):
    assert same(f, g) is equal


def test_a_slope_of_its_own_reaches_the_gradient():
    for slope in (1.0, 2.0, 1.0):
        fn = loop(with_slope(slope), 1)
        layer = gnnjit.layer(lambda v, e, fn=fn: gnnjit.sum(fn(e.src)))
        grad = jax.grad(lambda x, layer=layer: jnp.sum(layer(GRAPH, x)))(X)
        want = slope * jnp.broadcast_to(GRAPH.out_degree[:, None], X.shape)
        np.testing.assert_allclose(grad, want, rtol=1e-6)


# ------------------------------------------------------------------------------------------ bounded


def test_what_is_kept_is_bounded(monkeypatch):
    assert primitives._jitted.cache_info().maxsize == primitives.MOST
    monkeypatch.setattr(interned, "MOST", 2)
    monkeypatch.setattr(interned, "_seen", {})
    for steps in range(5):
        same(loop(jnp.sin, steps + 2), loop(jnp.sin, steps + 2))
    assert len(interned._seen) == 2


@pytest.mark.parametrize("forget", [primitives._jitted.cache_clear, jax.clear_caches])
def test_what_is_forgotten_is_compiled_again(forget):
    def f() -> Any:
        return rows_p.bind(X, W, turned=False, place=None, precision=None)

    want = f()
    assert compilations(f) == []
    forget()
    assert len(compilations(f)) == 1
    assert compilations(f) == []
    np.testing.assert_array_equal(f(), want)
