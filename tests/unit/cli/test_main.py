"""The command `embedkit` itself: commands are found, options added, errors turned into exit codes."""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import subprocess
import sys
import types
import warnings
from pathlib import Path

import pytest

import embedkit
from embedkit import errors
from embedkit.cli import main as cli
from embedkit.cli.main import COMMANDS, Command, command_parser, main
from embedkit.extras import install_command

ROOT = Path(__file__).parents[3]
ERRORS = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]


@pytest.fixture
def play(monkeypatch):
    """Add a command, `play`, that runs the given function."""

    def install(run, configure=lambda _parser: None):
        module = types.ModuleType("embedkit.cli.play")
        module.HELP, module.EXAMPLES = "plays", "embedkit play one\nembedkit play two"
        module.configure, module.run = configure, run
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(COMMANDS, "play", Command(module.__name__, "quickstart", extra="toys"))

    return install


def raising(error):
    def run(_arguments):
        raise error

    return run


def make(kind):
    return kind("out of luck", {}) if kind is errors.GateError else kind("out of luck")


class TestExitCodes:
    @pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (1, 1), (3, 3)])
    def test_the_exit_code_is_what_the_command_returns(self, play, returned, code):
        play(lambda _arguments: returned)
        assert main(["play"]) == code

    @pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
    def test_every_embedkit_error_prints_one_line_and_exits_with_1(self, play, kind, capsys):
        play(raising(make(kind)))
        assert main(["play"]) == 1
        assert capsys.readouterr() == ("", "error: out of luck\n")

    @pytest.mark.parametrize(
        ("message", "shown"),
        [
            ("name it with text_column", "name it with --text-column"),
            ("text_column must be a text, not text_column", "--text-column must be a text, not text_column"),
            ("text_column needs precision= and ranges", "--text-column needs --precision and ranges"),
            ("no column 'text_column'; set text_column", "no column 'text_column'; set --text-column"),
            ("in/text_column.txt: set text_column to one", "in/text_column.txt: set --text-column to one"),
            ("corpus[0].text_column is a text", "corpus[0].text_column is a text"),
            ('cut them with precision="int8"', 'cut them with --precision="int8"'),
            ("other_column is no flag", "other_column is no flag"),
        ],
    )
    def test_an_error_names_parameters_as_flags(self, play, capsys, message, shown):
        def configure(parser):
            nested = parser.add_subparsers(dest="action").add_parser("one")
            nested.add_argument("-t", "--text-column")
            parser.add_argument("--precision")

        named = ("text_column", "precision", "other_column")
        play(raising(errors.DataError(message, parameters=named)), configure)
        assert main(["play", "one"]) == 1
        assert capsys.readouterr().err == f"error: {shown}\n"

    def test_words_that_are_no_parameters_of_the_error_stay(self, play, capsys):
        message = "config.json sets truncate_dim; allow it by trust_remote_code = true"

        def configure(parser):
            parser.add_argument("--truncate-dim")
            parser.add_argument("--trust-remote-code")

        play(raising(errors.ModelError(message)), configure)
        assert main(["play"]) == 1
        assert capsys.readouterr().err == f"error: {message}\n"

    def test_an_os_error_prints_one_line_and_exits_with_1(self, play, capsys):
        play(raising(PermissionError(13, "Permission denied", "texts.txt")))
        assert main(["play"]) == 1
        assert capsys.readouterr().err == "error: [Errno 13] Permission denied: 'texts.txt'\n"

    def test_ctrl_c_is_130(self, play, capsys):
        play(raising(KeyboardInterrupt()))
        assert main(["play"]) == 130
        assert capsys.readouterr().err == "interrupted\n"

    def test_a_bug_keeps_its_traceback(self, play):
        play(raising(ZeroDivisionError("ours")))
        with pytest.raises(ZeroDivisionError):
            main(["play"])

    @pytest.mark.parametrize("argv", [[], ["nonsense"], ["play", "--nonsense"], ["--nonsense"], ["play", "more"]])
    def test_wrong_usage_is_2(self, play, argv):
        play(lambda _arguments: 0)
        with pytest.raises(SystemExit) as exit_:
            main(argv)
        assert exit_.value.code == 2

    def test_debug_shows_the_traceback(self, play, capsys):
        play(raising(errors.InputError("out of luck")))
        assert main(["play", "--debug"]) == 1
        assert "Traceback" in capsys.readouterr().err

    @pytest.mark.skipif(os.name != "posix", reason="pipes of another kind")
    def test_a_closed_pipe_is_no_error(self):
        command = f"'{sys.executable}' -m embedkit doctor --json"
        script = f"set -o pipefail; {command} | true"
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


class TestMissingPackages:
    def test_names_the_extra_of_the_command(self, play, capsys):
        play(raising(ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn")))
        assert main(["play"]) == 1
        expected = f"error: torch is not installed; it comes with: {install_command('toys')}\n"
        assert capsys.readouterr().err == expected

    def test_names_the_package_if_there_is_no_extra(self, play, monkeypatch, capsys):
        play(raising(ModuleNotFoundError("No module named 'numpy'", name="numpy")))
        monkeypatch.setitem(COMMANDS, "play", COMMANDS["play"]._replace(extra=None))
        assert main(["play"]) == 1
        assert capsys.readouterr().err.endswith('pip install "numpy"\n')

    def test_a_missing_embedkit_module_is_a_bug(self, play):
        play(raising(ModuleNotFoundError("No module named 'embedkit.gone'", name="embedkit.gone")))
        with pytest.raises(ModuleNotFoundError):
            main(["play"])


def assert_ends_in_examples(shown, command):
    *examples, _page = shown.rstrip().partition("\nexamples:\n")[2].splitlines()
    assert len(examples) >= 2
    assert all(line.startswith(f"  {command}") for line in examples)


class TestUsage:
    def test_a_typo_gets_a_suggestion(self, capsys):
        with pytest.raises(SystemExit):
            main(["evalaute"])
        assert "did you mean 'evaluate'?" in capsys.readouterr().err

    def test_version(self, capsys):
        with pytest.raises(SystemExit) as exit_:
            main(["--version"])
        assert exit_.value.code == 0
        assert capsys.readouterr().out == f"embedkit {embedkit.__version__}\n"

    @pytest.mark.parametrize("name", COMMANDS)
    def test_help_of_a_command_ends_in_its_examples(self, name, capsys):
        with pytest.raises(SystemExit) as exit_:
            main([name, "--help"])
        assert exit_.value.code == 0
        assert_ends_in_examples(capsys.readouterr().out, f"embedkit {name}")

    @pytest.mark.parametrize("name", COMMANDS)
    def test_help_fits_a_screen_and_names_a_page_that_exists(self, name, monkeypatch):
        monkeypatch.setenv("COLUMNS", "100")
        parser = command_parser(name)
        sub_parsers = [
            action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)
        ]
        for each in [parser, *(each for choices in sub_parsers for each in choices.values())]:
            *lines, page = each.format_help().splitlines()
            assert len(lines) < 45
            assert (ROOT / "docs" / page.rpartition("/")[2]).is_file()

    @pytest.mark.parametrize("name", COMMANDS)
    def test_options_of_commands_are_not_guessed(self, name):
        with pytest.raises(SystemExit):
            main([name, "--jso"])


class TestCommonOptions:
    @pytest.fixture
    def seen(self, play):
        seen = []
        play(seen.append)
        return seen

    @pytest.mark.parametrize("argv", [["--json", "play"], ["play", "--json"]])
    def test_stand_before_or_after_the_command(self, seen, argv):
        main(argv)
        assert (seen[0].json, seen[0].debug, seen[0].verbose, seen[0].quiet) == (True, False, False, False)

    @pytest.mark.parametrize(
        "argv", [["play", "small", "--json"], ["play", "--json", "small"], ["--json", "play", "small"]]
    )
    def test_they_reach_the_parsers_of_subcommands(self, play, argv):
        def configure(parser):
            parser.add_subparsers(dest="size").add_parser("small")

        seen = []
        play(seen.append, configure)
        main(argv)
        assert (seen[0].json, seen[0].size) == (True, "small")


class TestMessages:
    LEVELS = ("debug", "info", "warning", "error")

    @pytest.fixture(autouse=True)
    def talk(self, play):
        def run(_arguments):
            for level in self.LEVELS:
                getattr(logging.getLogger("embedkit.play"), level)("from %s", level)
            warnings.warn("this will go", FutureWarning, stacklevel=1)

        play(run)

    @pytest.mark.filterwarnings("default")
    @pytest.mark.parametrize(
        ("options", "shown"),
        [
            ([], ["from info", "warning: from warning", "error: from error", "warning: this will go"]),
            (["-q"], ["error: from error"]),
            (
                ["-v"],
                [
                    "debug: from debug",
                    "from info",
                    "warning: from warning",
                    "error: from error",
                    "warning: this will go",
                ],
            ),
        ],
    )
    def test_go_to_stderr_as_far_as_wanted(self, options, shown, capsys):
        main(["play", *options])
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.splitlines() == shown

    @pytest.mark.filterwarnings("default")
    def test_leave_no_handler_behind(self, capsys):
        logger, shown = logging.getLogger("embedkit"), warnings.showwarning
        before = (list(logger.handlers), logger.level)
        main(["play", "-v"])
        main(["play", "-q"])
        assert (list(logger.handlers), logger.level) == before
        assert warnings.showwarning is shown
        assert capsys.readouterr().err.count("from debug") == 1


def test_python_dash_m_is_the_same_command():
    done = subprocess.run(
        [sys.executable, "-m", "embedkit", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"embedkit {embedkit.__version__}\n"


@pytest.mark.skipif(sys.platform == "win32", reason="closes streams with a shell")
def test_standard_streams_may_be_closed():
    """Files and sockets get none of their numbers, with which uvloop aborts."""
    code = "import os, sys; from embedkit.cli.main import main; main(['models']); sys.exit(os.dup(2) - 3)"
    command = ["sh", "-c", 'exec "$0" -c "$1" <&- >&-', sys.executable, code]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_names_and_texts_cannot_command_the_terminal(monkeypatch, capsys):
    def run(_):
        sys.stdout.write("a name\x1b[31m\x9b2J\ttab\r\n")
        sys.stdout.write(json.dumps({"name": "\x9b"}, ensure_ascii=False) + "\n")
        logging.getLogger("embedkit").warning("\x1b]0;title\x07")
        raise errors.InputError("there is no \x1b[2J")

    module = types.SimpleNamespace(HELP="h", EXAMPLES="", configure=lambda parser: None, run=run)
    monkeypatch.setattr(cli, "_load", lambda command: module)
    assert main(["doctor"]) == 1
    printed = capsys.readouterr()
    name, encoded = printed.out.splitlines()
    assert name == "a name\\u001b[31m\\u009b2J\ttab\\u000d"
    assert json.loads(encoded) == {"name": "\x9b"}
    assert printed.err == "warning: \\u001b]0;title\\u0007\nerror: there is no \\u001b[2J\n"


def test_what_the_encoding_of_the_output_lacks_is_escaped(monkeypatch):
    output = io.TextIOWrapper(io.BytesIO(), encoding="cp1252", newline="\n")
    names = {"name": 'caf\xe9 "\u65e5" \U0001f41d'}

    def run(_):
        sys.stdout.write("caf\xe9\n")
        sys.stdout.write(json.dumps(names, ensure_ascii=False))

    module = types.SimpleNamespace(HELP="h", EXAMPLES="", configure=lambda parser: None, run=run)
    monkeypatch.setattr(cli, "_load", lambda command: module)
    monkeypatch.setattr(sys, "stdout", output)
    assert main(["doctor"]) == 0
    plain, encoded = output.buffer.getvalue().decode("cp1252").splitlines()
    assert plain == "caf\xe9"
    assert json.loads(encoded) == names
