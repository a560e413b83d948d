"""The console script: interrupted before anything has begun, it just ends, without a traceback of imports."""

from __future__ import annotations

import signal


def main() -> None:
    """Import the command line and run it."""
    is_heard = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN  # a shell's background job does not hear it
    if is_heard:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from infra import cli, interrupts  # noqa: PLC0415  # the imports are what may be interrupted

    if is_heard:
        interrupts.listen()
    cli.main()


if __name__ == "__main__":
    main()
