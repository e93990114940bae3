"""The console script: one module per command, nothing heavy imported before a command runs."""

from __future__ import annotations

import os
import sys
import time
from typing import Annotated

import typer

from hf_ess import __version__
from hf_ess.cli import compare, compare_models, env, ls, plot, probe, report, retol, study, verify
from hf_ess.errors import BadInput, HfEssError

app = typer.Typer(
    name="hf-ess",
    help="How much of its memory a language model really uses: the effective state-size (ESS) of every layer.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"hf-ess {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of the program itself."""


app.command("probe")(probe.command)
app.command("compare")(compare.command)
app.command("compare-models")(compare_models.command)
app.command("study")(study.command)
app.command("verify")(verify.command)
app.command("plot")(plot.command)
app.command("report")(report.command)
app.command("retol")(retol.command)
app.command("ls")(ls.command)
app.command("env")(env.command)


def main() -> None:
    """Runs the command line; errors are one sentence on stderr and an exit status: 1 the work failed, 2 bad input."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """The exit status of a command line."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # an ASCII terminal must not end the run
    try:
        status = app(args=arguments, standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except SystemExit as stop:
        if stop.code == 130:
            _say("interrupted; what is finished is kept in DIR.partial, and the same command goes on from it")
        return stop.code if isinstance(stop.code, int) else 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (KeyboardInterrupt, typer.Abort):
        _say("interrupted; what is finished is kept in DIR.partial, and the same command goes on from it")
        return 130
    except Exception as error:
        if "--debug" in arguments:
            raise
        status, message = _explained(error)
        if status == 2:
            _let_the_first_speak()
        _say(message)
        return status


def _explained(error: Exception) -> tuple[int, str]:
    """Exit status and sentence of an exception."""
    if isinstance(error, BadInput):
        return 2, str(error)
    if isinstance(error, HfEssError):
        return 1, str(error)
    if type(error).__module__.startswith(("click", "typer")) and hasattr(error, "format_message"):
        return 2, f"{error.format_message()} (see hf-ess --help)"
    first = str(error).strip().partition("\n")[0]
    return 1, f"unexpected {type(error).__name__}: {first} (--debug shows where)"


def _let_the_first_speak() -> None:
    """Waits, in the other processes of a machine: what is wrong with a command the first finds too, and its launcher
    ends the others when it has said so."""
    from hf_ess.processes import processes

    if processes().local:
        time.sleep(3)


def _say(message: str) -> None:
    sys.stderr.write(f"hf-ess: {message}\n")
