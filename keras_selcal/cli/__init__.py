"""The command line `keras-selcal`: commands on files of predictions.

This module and `parser` import neither NumPy nor Keras: help and argument
errors appear at once.
"""

import io
import sys
from collections.abc import Sequence

from keras_selcal.cli.parser import make_parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line; errors are one line, with exit status 2. `check` has exit
    status 1 for an alarm.
    """
    # A pipe on Windows, or a terminal without UTF-8, lacks characters such as ↓.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    parser = make_parser()
    options = parser.parse_args(arguments)
    try:
        from keras_selcal.cli.commands import COMMANDS

        status = COMMANDS[options.command](options)
    except (ImportError, MemoryError, OSError, ValueError) as error:
        parser.error(" ".join(str(error).split()))
    if status:
        sys.exit(status)
