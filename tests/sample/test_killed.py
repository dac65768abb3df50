"""A loop that is killed in the middle of an epoch goes on with the same batches and numbers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import hashlib, json, os, sys
import jax, jax.numpy as jnp, numpy as np
from gnnjit.data import communities
from gnnjit.sample import Loader, NeighborSampler

folder, dies = sys.argv[1], int(sys.argv[2])
data = communities(num_nodes=400, num_features=4)
saved = json.load(open(folder + "/state.json")) if os.path.exists(folder + "/state.json") else None
loader = Loader(
    NeighborSampler(data.graph, (4, 3)), data.x, data.y, batch_size=32, shapes=2, seed=7,
    state=saved and saved["loader"],
)
w = jnp.asarray(saved["w"], jnp.float32) if saved else jnp.zeros(4)
step = jax.jit(lambda w, x: 0.9 * w + jnp.mean(x, axis=0))
done = saved["done"] if saved else 0
while loader.epoch < 2:
    for batch in loader:
        if done == dies:
            os.kill(os.getpid(), 9)
        w, done = step(w, batch.x), done + 1
        digest = hashlib.sha256(np.asarray(batch.vertices).tobytes()).hexdigest()
        state = {"loader": loader.state(), "w": np.asarray(w).tolist(), "done": done}
        with open(folder + "/next.json", "w") as stream:
            json.dump(state, stream)
        os.replace(folder + "/next.json", folder + "/state.json")
        print(done, digest, np.asarray(w).tolist(), flush=True)
"""


def run(folder: Path, dies: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CODE, str(folder), str(dies)],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.long
def test_killed_in_the_middle_of_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    monkeypatch.setattr(sys, "argv", ["", str(whole), "-1"])
    exec(compile(CODE, "CODE", "exec"), {})
    first = run(parts, 17)
    assert first.returncode == -signal.SIGKILL, first.stderr
    assert 0 < json.loads((parts / "state.json").read_text())["loader"]["index"] < 13
    rest = run(parts, -1)
    assert rest.returncode == 0, rest.stderr
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 26
    assert first.stdout.splitlines() + rest.stdout.splitlines() == lines
