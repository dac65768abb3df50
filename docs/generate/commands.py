"""The options of `gnnjit` and its subcommands, from the parsers that read them."""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

from . import write_file

PARSER = "gnnjit.cli.main"
"""The module whose `parser()` is that of the command line."""


def write(docs: Path) -> None:
    """`docs/command-line-options.md`, which `docs/command-line.md` includes."""
    write_file(docs / "command-line-options.md", "\n".join(_page()))


def _page() -> Iterator[str]:
    top = importlib.import_module(PARSER).parser()
    (commands,) = [a for a in top._actions if isinstance(a, argparse._SubParsersAction)]
    summaries = {a.dest: a.help for a in commands._choices_actions}
    for name, parser in commands.choices.items():
        yield f"## gnnjit {name}\n"
        yield f"{_sentence(summaries[name])}\n"
        yield f"```text\n{_usage(parser)}\n```\n"
        for group in parser._action_groups:
            actions = [a for a in group._group_actions if a.help != argparse.SUPPRESS]
            actions = [a for a in actions if not isinstance(a, argparse._HelpAction)]
            if actions:
                yield f"**{_title(group)}**\n"
                yield from map(_option, actions)
        if parser.epilog:
            yield f"```text\n{parser.epilog.strip()}\n```\n"


def _usage(parser: argparse.ArgumentParser) -> str:
    """In lines that fit a page, whatever the terminal's width is."""
    formatter = argparse.HelpFormatter(parser.prog, width=80)
    formatter.add_usage(parser.usage, parser._actions, parser._mutually_exclusive_groups, "")
    return formatter.format_help().strip()


def _title(group: argparse._ArgumentGroup) -> str:
    return (group.title or "").capitalize()


def _option(action: argparse.Action) -> str:
    """A term and what it means. Choices are named; so is a default that the help does not name."""
    value = action.metavar or (action.dest.upper() if action.nargs != 0 else "")
    value = " ".join(value) if isinstance(value, tuple) else value
    if action.choices and action.option_strings:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    names = [f"{o} {value}".strip() if action.nargs != 0 else o for o in action.option_strings]
    term = ", ".join(f"`{n}`" for n in names or [str(action.metavar or action.dest)])
    text = (action.help or "") % {"default": action.default, "prog": "gnnjit"}
    silent = action.default in (None, False, argparse.SUPPRESS) or "default" in text
    text += "" if silent or action.nargs == argparse.REMAINDER else f" (default: {action.default})"
    return f"{term}\n: {_escaped(_sentence(text))}\n"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", ")")) else ".")


def _escaped(text: str) -> str:
    """Options and paths of files in code, and no markup by accident."""
    text = re.sub(r"([*_<>\[\]`])", r"\\\1", text)
    return re.sub(r"(?<![\w-])(--[a-z-]+)", r"`\1`", text)
