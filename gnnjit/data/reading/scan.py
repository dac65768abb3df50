"""Text in memory to columns of numbers: the loops over bytes, compiled by Numba."""

from __future__ import annotations

import numpy as np
from numba import njit

from gnnjit.shapes import HostArray

BLANKS = -1
"""The delimiter of columns with any number of blanks and tabs between them."""


NEWLINE, RETURN, TAB, BLANK, QUOTE = 10, 13, 9, 32, 34


@njit(nogil=True, cache=True)
def split(text, delimiter, comment, slot, begin, end):  # type: ignore[no-untyped-def]
    """Where the wanted fields of each line are. Blank lines and comments are left out.

    Args:
        text: uint8[B], whole lines; the last byte is a newline.
        delimiter: a byte, or `BLANKS`.
        comment: bool[256], bytes that a line of comment begins with.
        slot: int64[columns], the place of a column in `begin` and `end`, or -1.
        begin, end: int32[rows, wanted], which are written to; with quotes the bytes within.

    Returns:
        Rows found, and -1; or of the line that has too few fields its row, and where it begins.
    """
    rows, at = 0, 0
    while at < len(text):
        line, at = at, _after_blanks(text, at, delimiter)
        if not _at_end(text, at) and not comment[text[at]]:
            for column in range(len(slot)):
                at = _after_blanks(text, at, delimiter)
                if delimiter < 0 and _at_end(text, at):
                    return rows, line
                first, last, at = _field(text, at, delimiter)
                if slot[column] >= 0:
                    begin[rows, slot[column]], end[rows, slot[column]] = first, last
                if text[at] == NEWLINE and column + 1 < len(slot):
                    return rows, line
                at += text[at] != NEWLINE
            rows += 1
        while text[at] != NEWLINE:
            at += 1
        at += 1
    return rows, -1


@njit(nogil=True, cache=True)
def _after_blanks(text, at, delimiter):  # type: ignore[no-untyped-def]
    while text[at] == BLANK or (text[at] == TAB and delimiter != TAB):
        at += 1
    return at


@njit(nogil=True, cache=True)
def _at_end(text, at):  # type: ignore[no-untyped-def]
    """Whether a line ends here, with or without a carriage return."""
    return text[at] == NEWLINE or (text[at] == RETURN and text[at + 1] == NEWLINE)


@njit(nogil=True, cache=True)
def _field(text, at, delimiter):  # type: ignore[no-untyped-def]
    """A field from `at` on: its first byte, the one after its last, and the delimiter behind it."""
    first, last = at, -1
    if text[at] == QUOTE:
        at, first = at + 1, at + 1
        while text[at] != NEWLINE and (text[at] != QUOTE or text[at + 1] == QUOTE):
            at += 2 if text[at] == QUOTE else 1
        last = at
    while text[at] != NEWLINE and text[at] != delimiter:
        if delimiter < 0 and (text[at] == BLANK or text[at] == TAB):
            break
        at += 1
    if last < 0:
        last = at
        while last > first and (text[last - 1] == RETURN or text[last - 1] == BLANK):
            last -= 1
    return first, last, at


@njit(nogil=True, cache=True)
def whole_numbers(text, begin, end, out):  # type: ignore[no-untyped-def]
    """The fields as int64[rows] in `out`; the first row that is no whole number below 10**18, or
    -1."""
    for row in range(len(begin)):
        at, stop = begin[row], end[row]
        negative = at < stop and text[at] == 45
        if negative or (at < stop and text[at] == 43):
            at += 1
        if at >= stop or stop - at > 18:
            return row
        value = 0
        while at < stop:
            digit = np.int64(text[at]) - 48
            if digit < 0 or digit > 9:
                return row
            value = 10 * value + digit
            at += 1
        out[row] = -value if negative else value
    return -1


@njit(nogil=True, cache=True)
def real_numbers(text, begin, end, powers, out, odd):  # type: ignore[no-untyped-def]
    """The fields as float64[rows] in `out`, rounded as Python does; how many rows were left to
    Python, whose numbers are in `odd`."""
    left = 0
    for row in range(len(begin)):
        out[row], plain = _decimal(text, begin[row], end[row], powers)
        if not plain:
            odd[left] = row
            left += 1
    return left


@njit(nogil=True, cache=True)
def _decimal(text, at, stop, powers):  # type: ignore[no-untyped-def]
    """A decimal, and whether it is one of at most 15 digits without an exponent: it is one exact
    quotient of two floats then (Clinger 1990, section 2)."""
    negative = at < stop and text[at] == 45
    if negative or (at < stop and text[at] == 43):
        at += 1
    value, digits, scale, point = 0, 0, 0, False
    while at < stop:
        digit = np.int64(text[at]) - 48
        if 0 <= digit <= 9 and digits < 15:
            value = 10 * value + digit
            digits += 1
            scale += point
        elif text[at] == 46 and not point:
            point = True
        else:
            return 0.0, False
        at += 1
    number = value / powers[scale]
    return (-number if negative else number), digits > 0


POWERS = np.array([float(f"1e{n}") for n in range(23)])


@njit(nogil=True, cache=True)
def copy_fields(text, begin, end, out):  # type: ignore[no-untyped-def]
    """The fields as rows of uint8[rows, width], zeros behind them."""
    for row in range(len(begin)):
        for i in range(end[row] - begin[row]):
            out[row, i] = text[begin[row] + i]


def texts(text: HostArray, begin: HostArray, end: HostArray) -> HostArray:
    """The fields as bytes, `S[rows]`."""
    width = max(1, int((end - begin).max(initial=0)))
    out = np.zeros((len(begin), width), np.uint8)
    copy_fields(text, begin, end, out)
    return out.view(f"S{width}")[:, 0]
