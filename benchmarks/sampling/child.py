"""One side of one question, in a process of its own:

    python -m sampling.child SIDE WHAT FOLDER OPTIONS      # in benchmarks/

SIDE is "gnnjit" or "pyg", WHAT a function of `with_gnnjit` or `with_pyg`, FOLDER what `graphs.save`
wrote, OPTIONS its other arguments as JSON. It prints its result as a JSON line.
"""

from __future__ import annotations

import importlib
import json
import pathlib
import sys
from collections.abc import Sequence

from sampling import graphs


def main(argv: Sequence[str]) -> int:
    side, what, folder, options = argv
    module = importlib.import_module(f"sampling.with_{side}")
    result = getattr(module, what)(graphs.load(pathlib.Path(folder)), **json.loads(options))
    facts = module.facts() if hasattr(module, "facts") else {}
    print(json.dumps({**result, **facts}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
