"""The command line: `gnnjit train`, `explain`, `calibrate`, `launch` and `data`."""
