"""The lines of a program's text, as tokens."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from gnnjit.errors import GnnjitError
from gnnjit.ir.program import Location

_TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\]|\\.)*")
    |(?P<name>[A-Za-z_]\w*(?:\.\w+)*'*)
    |(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)
    |(?P<sign>->|<-|[<>=!]=|[-+*/@=<>()\[\],:&])
    |(?P<comment>\#.*)
    |(?P<unknown>\S))""",
    re.VERBOSE,
)
_LOCATION = re.compile(r"#\s*([^\s:]+):(\d+)\s*$")


class ParseError(GnnjitError, ValueError):
    """A text is not a program."""


class Token(NamedTuple):
    kind: str
    text: str


END = Token("end", "end of line")


def logical_lines(text: str) -> list[Line]:
    """The lines that are not empty; one that leaves a parenthesis open goes on in the next."""
    lines: list[Line] = []
    depth = 0
    for number, raw in enumerate(text.splitlines(), 1):
        if depth == 0:
            lines.append(Line(number, len(raw) - len(raw.lstrip()), []))
        for match in _TOKEN.finditer(raw.rstrip()):
            token = Token(str(match.lastgroup), match[str(match.lastgroup)])
            if token.kind == "unknown":
                raise ParseError(f"line {number}: cannot read {token.text!r}")
            if token.kind != "comment":
                lines[-1].tokens.append(token)
            elif found := _LOCATION.match(token.text):
                lines[-1].location = Location(found[1], int(found[2]))
            depth += (token.text in ("(", "[")) - (token.text in (")", "]"))
        if not lines[-1].tokens:
            lines.pop()
    return lines


@dataclasses.dataclass
class Line:
    """The tokens of one line, read from left to right."""

    number: int
    indent: int
    tokens: list[Token]
    location: Location | None = None
    at: int = 0

    def fail(self, message: str) -> NoReturn:
        raise ParseError(f"line {self.number}: {message}")

    def peek(self, ahead: int = 0) -> Token:
        i = self.at + ahead
        return self.tokens[i] if i < len(self.tokens) else END

    def next(self) -> Token:
        self.at += 1
        return self.peek(-1)

    def sees(self, *texts: str) -> bool:
        return all(self.peek(i).text == text for i, text in enumerate(texts))

    def skip(self, *texts: str) -> bool:
        """Read `texts` if they come next."""
        self.at += len(texts) * (seen := self.sees(*texts))
        return seen

    def expect(self, *texts: str) -> None:
        for text in texts:
            if not self.skip(text):
                self.fail(f"expected {text!r}, got {self.peek().text!r}")

    def name(self, what: str) -> str:
        token = self.next()
        if token.kind != "name":
            self.fail(f"expected {what}, got {token.text!r}")
        return token.text

    def integer(self) -> int:
        if not self.peek().text.isdigit():
            self.fail(f"expected a whole number, got {self.peek().text!r}")
        return int(self.next().text)

    def listed(self, item: Callable[[], Any], close: str) -> list[Any]:
        """Items between commas, up to `close`, which is read."""
        items = []
        while not self.skip(close):
            items.append(item())
            if not self.sees(close):
                self.expect(",")
        return items
