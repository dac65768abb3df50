"""A process of `bench_shard.py` with virtual devices: what a module yields, as JSON lines.

export XLA_FLAGS=--xla_force_host_platform_device_count=8
python -m shard.child shard.bytes < job.json      # in benchmarks/
"""

from __future__ import annotations

import importlib
import json
import sys

import gnnjit

if __name__ == "__main__":
    gnnjit.keep_memory()
    module = importlib.import_module(sys.argv[1])
    for found in module.child(json.load(sys.stdin)):
        print(json.dumps(found), flush=True)
