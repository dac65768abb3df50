"""The command line: `gnnjit train`, `explain`, `opt`, `calibrate`, `launch` and `data`."""
