"""Machine code is kept for later processes; what is damaged or another's is compiled anew."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="CPU kernels are generated with llvmlite")

from gnnjit import config
from gnnjit.ir.program import Equation, Lax, Program, Reduce, Value
from gnnjit.lower.cpu import kept_code, kernel, registered

from .test_kernel import DST, EDGE, F32, SRC, check, compute, data, graph, trace

unavailable = kernel.unavailable()
pytestmark = pytest.mark.skipif(bool(unavailable), reason="; ".join(unavailable) or "available")

SUM = (Reduce("sum", DST),)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "gnnjit" / "kernels"


@pytest.fixture
def later(monkeypatch):
    """Forgets what this process has made, but for code that XLA holds addresses into."""

    def forget() -> None:
        for made in ("_emitted", "_registered", "_loaded"):
            monkeypatch.setattr(kernel, made, {})

    forget()
    return forget


def body(shift: float) -> Program:
    """Another program for each test: XLA knows a name for the life of a process."""
    return trace(lambda a, x: jnp.tanh(a + shift) * x, (SRC, (5,), F32), (EDGE, (5,), F32))


SCRIPT = """
import sys
import jax, jax.numpy as jnp, numpy as np
import gnnjit
from gnnjit.lower.cpu import compile

if sys.argv[1] == "later":
    def never(*args, **kwargs):
        raise AssertionError("code is made")
    compile.emit = compile.emit_sort = compile.object_code = never

@gnnjit.layer
def layer(v, e, w):
    return gnnjit.sum(jax.nn.relu(e.src + v) @ w)

rng = np.random.default_rng(0)
src, dst = rng.integers(0, 50, (2, 400))
x, w = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in [(50, 40), (40, 40)])

def loss(src, dst, x, w):
    graph = gnnjit.Graph.from_edges(src, dst, num_nodes=50)  # sorted in the compiled program
    return jnp.sum(layer(graph, x, w) ** 2)

value, grads = jax.jit(jax.value_and_grad(loss, (2, 3)))(src, dst, x, w)
print(np.asarray(value).tobytes().hex(), *(np.asarray(g).tobytes().hex() for g in grads))
"""


def test_a_later_process_makes_no_code(tmp_path, folder):
    def run(which: str) -> str:
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
        command = [sys.executable, "-c", SCRIPT, which]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    first = run("first")
    assert len(list(folder.iterdir())) >= 3
    assert run("later") == first


def cut(raw: bytes) -> bytes:
    return raw[:-7]


def edited(raw: bytes) -> bytes:
    return raw[:-1] + bytes([raw[-1] ^ 1])


def of_a_later_version(raw: bytes) -> bytes:
    head, _, code = raw.partition(b"\n")
    return json.dumps({**json.loads(head), "format": 9}).encode() + b"\n" + code


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (cut, "its checksum is wrong: it is damaged"),
        (edited, "its checksum is wrong: it is damaged"),
        (of_a_later_version, "it has the format 9, expected 1"),
        (lambda raw: b"", "JSONDecodeError"),
        (lambda raw: b"[]\n", "TypeError"),
    ],
)
def test_a_damaged_file_is_compiled_anew(change, why, later, folder):
    case, program = graph(), body(0.5 + len(why) / 100 + len(change(b"{}\n1234567890")) / 7)
    compute(program, SUM, case, data(case, program))
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(change(whole))
    later()
    with pytest.warns(UserWarning, match=rf"\.kernel: not a kernel of gnnjit \({why}"):
        check(program, SUM, case)
    registered.finish()
    assert file.read_bytes() == whole


def test_keys_tell_what_code_depends_on(monkeypatch):
    from gnnjit.lower.cpu.spec import INT32, Spec

    def key(program, **config_):
        return kept_code.key_of(Spec(program, SUM, DST, INT32, kernel.default_config(**config_)))

    assert key(body(1.0)) == key(body(1.0))
    keys = [key(body(1.0)), key(body(2.0)), key(body(1.0), piece=32), key(body(1.0), tile=0)]
    monkeypatch.setattr(kept_code, "_surroundings", lambda: ("another processor",))
    keys.append(key(body(1.0)))
    assert len(set(keys)) == 5


def test_what_no_text_tells_is_not_kept(folder):
    program = body(3.0)
    (first, *rest) = program.equations
    assert isinstance(first.op, Lax)
    op = Lax(first.op.primitive, (*first.op.params, ("secret", object())))
    secret = Program(program.inputs, (Equation(op, first.inputs, first.outputs), *rest),
                     program.outputs)  # fmt: skip
    from gnnjit.lower.cpu.spec import INT32, Spec

    assert kept_code.key_of(Spec(secret, SUM, DST, INT32, kernel.default_config())) is None
    assert kept_code.load(None) is None


def test_the_flag_keeps_nothing(folder, later, monkeypatch):
    monkeypatch.setattr(config, "KEEP_KERNELS", False)
    check(body(4.0), SUM)
    assert not folder.exists()


def test_where_nothing_can_be_written_it_runs_all_the_same(folder):
    folder.parent.parent.mkdir(exist_ok=True)
    folder.parent.write_text("a file")
    check(body(5.0), SUM)


def test_the_oldest_are_removed(folder, later, monkeypatch):
    monkeypatch.setattr(kept_code, "MOST", 2)
    x = Value((3,), np.dtype(np.float32), SRC)
    assert kept_code.key(["a"]) != kept_code.key(["b"])
    for name in "abc":
        kept_code.store(kept_code.key([name]), kept_code.KeptKernel(name, 1, x.name.encode()))
    left = [kept_code.load(kept_code.key([name])) for name in "abc"]
    assert left[0] is None
    assert [k.name for k in left[1:] if k] == ["b", "c"]
