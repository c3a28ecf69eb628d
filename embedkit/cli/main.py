"""The command `embedkit`: dispatches to a command and maps errors to exit codes.

Only the module of the requested command is imported, and heavy packages are imported inside its ``run``. Help is
therefore fast, and a missing extra affects only the commands that need it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TextIO, cast

from embedkit import __version__
from embedkit.errors import EmbedkitError, MissingExtraError, did_you_mean
from embedkit.extras import install_command

logger = logging.getLogger("embedkit")


class Command(NamedTuple):
    """The module of a command, its page in docs/, and the extras of its dependencies, in pip's syntax."""

    module: str
    page: str
    extra: str | None = None


COMMANDS = {
    "train": Command("embedkit.cli.train", "training", extra="train"),
    "adapt": Command("embedkit.cli.adapt", "distil", extra="train,export"),
    "methods": Command("embedkit.cli.methods", "methods", extra="train"),
    "report": Command("embedkit.cli.report", "benchmarks", extra="train"),
    "export": Command("embedkit.cli.export", "models", extra="export"),
    "distill-static": Command("embedkit.cli.distill_static", "distil", extra="export"),
    "push": Command("embedkit.cli.push", "models", extra="export"),
    "models": Command("embedkit.cli.models", "choose"),
    "inspect": Command("embedkit.cli.inspect", "models"),
    "encode": Command("embedkit.cli.encode", "scale"),
    "evaluate": Command("embedkit.cli.evaluate", "evaluation", extra="export"),
    "bench": Command("embedkit.cli.bench", "benchmarks", extra="export"),
    "dedup": Command("embedkit.cli.dedup", "dedup", extra="serve"),
    "cluster": Command("embedkit.cli.cluster", "dedup", extra="serve"),
    "index": Command("embedkit.cli.index", "search", extra="serve"),
    "search": Command("embedkit.cli.search", "search", extra="serve"),
    "serve": Command("embedkit.cli.serve", "server", extra="serve"),
    "mcp": Command("embedkit.cli.mcp", "server", extra="mcp"),
    "doctor": Command("embedkit.cli.doctor", "install"),
}

_DOCS = "https://github.com/embedkit-onnx/embedkit/blob/main/docs"
_COMMON_OPTIONS = {
    ("--json",): "print the result as JSON",
    ("--debug",): "show the traceback of an error",
    ("-v", "--verbose"): "show all messages",
    ("-q", "--quiet"): "show only errors",
}

# The first matching row decides. 0 is success, 2 (wrong usage) comes from argparse. Anything else is a bug and
# shows its traceback.
EXIT_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (BrokenPipeError, 0),  # the reader, for example `head`, has exited
    (EmbedkitError, 1),
    (OSError, 1),
    (KeyboardInterrupt, 130),
)


class CommandModule(Protocol):
    """Interface of every `cli/<command>.py`."""

    HELP: str
    EXAMPLES: str

    def configure(self, parser: argparse.ArgumentParser, /) -> None:
        """Add the command's arguments."""

    def run(self, arguments: argparse.Namespace, /) -> int | None:
        """Run the command; None means success."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; as argparse does, exit with 2 for wrong usage."""
    _open_closed_streams()
    arguments = argparse.Namespace(json=False, debug=False, verbose=False, quiet=False)
    parser = _top_parser()
    parser.parse_args(argv, arguments)
    if arguments.command is None:
        parser.error(f"missing command; expected one of {', '.join(COMMANDS)}")
    command = COMMANDS.get(arguments.command)
    if command is None:
        hint = did_you_mean(arguments.command, COMMANDS, f"expected one of {', '.join(COMMANDS)}")
        parser.error(f"unknown command {arguments.command!r}; {hint}")
    module = _load(command)
    parser = command_parser(arguments.command)
    parser.parse_args(arguments.rest, arguments)
    with _messages(verbose=arguments.verbose, quiet=arguments.quiet):
        return _run(module, command, arguments, _flags(parser))


def _open_closed_streams() -> None:
    """Connect standard streams that were closed to the null device: files and sockets would get their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)  # the lowest that is free
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))


def _run(module: CommandModule, command: Command, arguments: argparse.Namespace, flags: Mapping[str, str]) -> int:
    try:
        with (
            _missing_packages_named(command),
            contextlib.redirect_stdout(cast(TextIO, _EscapedStream(sys.stdout))),
        ):
            code = module.run(arguments)
        sys.stdout.flush()
    except tuple(kind for kind, _ in EXIT_CODES) as error:
        if arguments.debug:
            traceback.print_exc()
        _report(error, flags)
        return next(code for kind, code in EXIT_CODES if isinstance(error, kind))
    return code or 0


def _report(error: BaseException, flags: Mapping[str, str]) -> None:
    """Print an error in one line on stderr; a closed pipe is not an error."""
    if isinstance(error, BrokenPipeError):
        # The interpreter flushes stdout again at exit; discard that output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    elif isinstance(error, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
    else:
        print(_printable(f"error: {_in_flags(error, flags)}"), file=sys.stderr)


def _in_flags(error: BaseException, flags: Mapping[str, str]) -> str:
    """Return an error's message with the command's flags in place of the parameters that the error names.

    Only a parameter's first mention as a word is replaced, outside of paths and quotations.
    """
    message = str(error)
    for name in error.parameters if isinstance(error, EmbedkitError) else ():
        if name in flags:
            mention = rf"(?<![\w./\\'\"-]){re.escape(name)}(?:=(?= ))?(?![\w./\\'\"-])"
            message = re.sub(mention, flags[name], message, count=1)
    return message


def _load(command: Command) -> CommandModule:
    return cast(CommandModule, importlib.import_module(command.module))


@contextlib.contextmanager
def _missing_packages_named(command: Command) -> Iterator[None]:
    """Turn the failed import of a third-party package into the pip command that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in {"", "embedkit"}:
            raise
        wanted = install_command(command.extra) if command.extra else f'pip install "{package}"'
        raise MissingExtraError(f"{package} is not installed; it comes with: {wanted}") from error


# Parsers


def _top_parser() -> argparse.ArgumentParser:
    parser = _TopParser(
        prog="embedkit",
        usage="embedkit COMMAND ... | embedkit COMMAND --help",
        description="Small, fast sentence encoders: train, export, encode, evaluate, search, serve.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"embedkit {__version__}")
    parser.add_argument("command", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    _add_common_options(parser)
    return parser


class _TopParser(argparse.ArgumentParser):
    """Loads the one-line descriptions of commands only when help is requested."""

    def format_help(self) -> str:
        lines = [f"  {name:<10} {_load(command).HELP}" for name, command in COMMANDS.items()]
        self.epilog = "\n".join(["commands:", *lines])
        return super().format_help()


def command_parser(name: str) -> argparse.ArgumentParser:
    """Build the parser of one of `COMMANDS`."""
    module = _load(COMMANDS[name])
    parser = argparse.ArgumentParser(prog=f"embedkit {name}", description=module.HELP, allow_abbrev=False)
    module.configure(parser)
    _end_help(name, parser, module.EXAMPLES, f"{_DOCS}/{COMMANDS[name].page}.md")
    _add_common_options(parser, shown=False)
    return parser


def _end_help(name: str, parser: argparse.ArgumentParser, examples: str, page: str) -> None:
    """End the help of a command and of each sub-command with common options, examples and the page."""
    lines = examples.strip().splitlines()
    ending = [
        f"also: {', '.join(flags[0] for flags in _COMMON_OPTIONS)} (embedkit --help)",
        "examples:",
        *(f"  {line.strip()}" for line in lines),
    ]
    parser.epilog = "\n".join([*ending, f"more: {page}"])
    parser.formatter_class = _HelpFormatter
    for word, sub_parser in _sub_parsers(parser):
        start = f"embedkit {name} {word} "
        own = [line for line in lines if line.startswith(start)]
        _end_help(f"{name} {word}", sub_parser, "\n".join(own), page)


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Short usage, and one metavar for an option and its short form: the help of a command fits a screen."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30)

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: Any = None) -> None:
        self._prog += " [options]"
        super().add_usage(
            usage,
            [action for action in actions if not action.option_strings or action.required],
            groups[:0],
            prefix,
        )

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        values = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {values}"


def _sub_parsers(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:  # noqa: SLF001 - argparse has no public way to its sub-parsers
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            yield from action.choices.items()


def _flags(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Map each parameter to its flag, including those of sub-commands."""
    flags = {action.dest: action.option_strings[-1] for action in parser._actions if action.option_strings}  # noqa: SLF001
    for _, sub_parser in _sub_parsers(parser):
        flags |= _flags(sub_parser)
    return flags


def _add_common_options(parser: argparse.ArgumentParser, *, shown: bool = True) -> None:
    """Add the options shared by all commands, also to the parsers of sub-commands.

    They set no defaults, so each can be given before or after the command's name.
    """
    group = parser.add_argument_group("common options")
    for flags, text in _COMMON_OPTIONS.items():
        said = text if shown else argparse.SUPPRESS
        group.add_argument(*flags, action="store_true", default=argparse.SUPPRESS, help=said)
    for _, sub_parser in _sub_parsers(parser):
        _add_common_options(sub_parser, shown=shown)


# Messages

_CONTROLS = {code: f"\\u{code:04x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}


def _printable(text: str) -> str:
    """Escape control characters, by which names and texts from files could command a terminal; in JSON's form."""
    return text.translate(_CONTROLS)


class _EscapedStream:
    """A stream that escapes control characters, and those that its encoding lacks, in everything printed to it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        text = _printable(text)
        try:
            return self._stream.write(text)
        except UnicodeEncodeError:
            return self._stream.write(re.sub(r"[^\x00-\x7f]+", lambda match: json.dumps(match[0])[1:-1], text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def _messages(*, verbose: bool, quiet: bool) -> Iterator[None]:
    """Send embedkit's log and Python's warnings to stderr while a command runs."""
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # its errors become ours, in one line
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_MessageFormatter())
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR if quiet else logging.DEBUG if verbose else logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _log_warning
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class _MessageFormatter(logging.Formatter):
    """Plain lines, prefixed with the level for warnings and errors."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return _printable(text if record.levelno == logging.INFO else f"{record.levelname.lower()}: {text}")


def _log_warning(message: Warning | str, *_: object, **__: object) -> None:
    logger.warning("%s", message)
