"""`python -m gnnjit.cli`, where the command `gnnjit` is not on the path."""

import sys

from gnnjit.cli.main import console

if __name__ == "__main__":
    sys.exit(console())
