"""What commands write: a JSON file, and text for people who may stop reading."""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import sys
from pathlib import Path
from typing import Any, TextIO

from gnnjit.config import path_of
from gnnjit.errors import DataError, OutputError
from gnnjit.system.cache import write_atomically

STDOUT = "-"


def add_json_option(parser: Any, what: str) -> None:
    """`--json FILE`, the same for all commands."""
    parser.add_argument(
        "--json",
        metavar="FILE",
        help=f"write {what}; - is standard output (all else then goes to standard error)",
    )


def for_people(args: argparse.Namespace, *, to_the_end: bool = False) -> TextIO:
    """Where a command prints what is not JSON. `to_the_end`: the command has more to do than to
    print, and goes on when nobody reads any more, as in `... | head`."""
    stream = sys.stderr if args.json == STDOUT else sys.stdout
    keep = to_the_end or (args.json is not None and args.json != STDOUT)
    return _Unheard(stream) if keep else stream  # type: ignore[return-value]


def check_json(path: str | None) -> None:
    """Raises OutputError if `write_json` could not write there: known before the work."""
    if path is None or path == STDOUT:
        return
    target = path_of(path, "--json", OutputError)
    if target.is_dir():
        raise OutputError(f"--json {path} is a directory, expected a file name")
    if not target.parent.is_dir():
        raise OutputError(f"--json {path}: {target.parent} is no directory, make it first")


def write_json(path: str | None, data: Any) -> None:
    """`data` as JSON, atomically into a file, or to standard output where the path is "-"; None
    for numbers that JSON has no word for. Raises OutputError for what the disk refuses."""
    if path is None:
        return
    text = json.dumps(_finite(data), indent=2, allow_nan=False) + "\n"
    if path == STDOUT:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        write_atomically(Path(path).expanduser(), text.encode())
    except OSError as error:
        raise OutputError(f"--json {path} cannot be written ({error.strerror})") from error


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class _Unheard:
    """A text stream; once its reader has gone, what is written is dropped."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            drop_output(self._stream)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            drop_output(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def drop_output(stream: TextIO) -> None:
    """Nothing more is written: Python would complain once more when it closes the stream."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def named_options(what: str, options: list[str]) -> dict[str, Any]:
    """The values of a repeated option NAME=VALUE. Raises DataError for what has another form."""
    chosen = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or not key.isidentifier():
            raise DataError(f"{what} {option}: expected NAME=VALUE, as in num_nodes=1000")
        chosen[key] = _literal(value)
    return chosen


def _literal(text: str) -> Any:
    """A Python literal, or the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
