"""The command line: typed options, nothing else. Heavy libraries load only inside a command."""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from types import FrameType

from vlnbench.errors import GpuMemoryError, RunError, UsageError
from vlnbench.util.gpu_memory import first_line, is_gpu_memory, settle_allocator
from vlnbench.util.progress import say
from vlnbench.util.visible import Visible, visible
from vlnbench.version import __version__

_OF_THE_FILE_SYSTEM = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ESTALE, errno.EDQUOT, errno.ENOLCK, errno.ENOSPC, errno.EIO),
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO, errno.ENODEV),
    *(errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENOTCONN, errno.EMFILE, errno.ENFILE),
)
"""No mistake of the program: files of others on servers where root is nobody, quotas, full and damaged disks,
files that another machine has removed or that are something else."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code: 0 done, 1 stopped, 2 user mistake, 3 out of memory, 130 interrupted."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if "LOCAL_RANK" in os.environ:  # the deepspeed launcher says it twice
        arguments = [argument for argument in arguments if not argument.startswith("--local_rank=")]
    _open_streams()
    _show_and_not_obey()
    _end_at_the_second_interrupt()
    settle_allocator()
    description = (
        "Benchmark and evaluation harness for vision-and-language navigation agents. Begin with `vlnbench eval`, "
        "which needs no download; `vlnbench COMMAND --help` tells the options of a command, "
        "`vlnbench --version` the version."
    )
    try:
        if [*arguments] == ["--version"]:  # `list` is a module here
            print(f"vlnbench {__version__}", flush=True)
            return 0
        # Here, not above: a package of another distribution is found while commands are imported.
        from vlnbench.cli.commands import Command
        from vlnbench.cli.selected import parse

        command = parse(Command, arguments, description)
        with redirect_stdout(Visible(sys.stdout)):
            command.run()
        sys.stdout.flush()
    except UsageError as error:
        say(f"vlnbench: error: {error}")
        return 2
    except RunError as error:
        say(f"vlnbench: stopped: {error}")
        return 1
    except GpuMemoryError as error:
        say(f"vlnbench: {error}")
        return 3
    except RuntimeError as error:
        if not is_gpu_memory(error):
            raise
        say(f"vlnbench: out of GPU memory: {first_line(error)}")
        return 3
    except BrokenPipeError:  # whoever read the output, `head` say, has gone
        _discard_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.filename is not None and error.errno in _OF_THE_FILE_SYSTEM:
            say(f"vlnbench: error: {error.filename}: {error.strerror}")
            return 2
        if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EIO, errno.EDQUOT):
            raise
        _discard_output()
        with suppress(OSError):
            print(f"vlnbench: stopped: the output cannot be written ({error.strerror})", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("vlnbench: interrupted; run the same command again to resume", file=sys.stderr)
        return 130
    return 0


def _end_at_the_second_interrupt() -> None:
    """Of two Ctrl-C the first has everything closed, which may take long; the second does not wait for that."""

    def first(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, second)
        raise KeyboardInterrupt

    def second(number: int, frame: FrameType | None) -> None:
        os.write(2, b"vlnbench: interrupted twice, ended at once; run the same command again to resume\n")
        os._exit(128 + signal.SIGINT)  # child processes die with this one

    with suppress(ValueError):  # in a thread, which gets no signals
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored, as after nohup
            signal.signal(signal.SIGINT, first)


def _show_and_not_obey() -> None:
    """Have tracebacks and warnings shown with control characters written out: they quote texts of others."""
    plain = warnings.formatwarning
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = lambda kind, error, trace: say("".join(traceback.format_exception(error)).rstrip())
        warnings.formatwarning = lambda *arguments, **more: visible(plain(*arguments, **more))


def _open_streams() -> None:
    """Open what the caller closed of standard input, output and error, so that no other file takes their place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115 - to the end


def _discard_output() -> None:
    """Send what is left of the output nowhere, at exit too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
