"""The command line: `gnnjit train`, `explain`, `opt`, `calibrate`, `launch` and `data`.

In: arguments. Out: text for people, JSON with `--json`, an exit code; an error is one line. `main`
has the table of commands, each in a file of its name. Nothing imports this room.
"""
