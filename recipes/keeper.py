"""Runs a command that cannot outlive its parent: `python keeper.py GRACE COMMAND ...`.

The parent holds the other end of standard input. When it closes that pipe, or dies in
whatever way, the command's process group is terminated, and killed after GRACE seconds.
The keeper writes the exit code to standard output, and exits, once every process of the
group has ended. The output of the command goes to standard error.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading


def main(grace: str, *command: str) -> int:
    """Runs the command and returns its exit code, or 128 + n if signal n ended it."""
    if sys.platform == "linux":
        # Orphans of the command become children of this process, which waits for them.
        set_child_subreaper = 36
        ctypes.CDLL(None).prctl(set_child_subreaper, 1)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            start_new_session=True,
        )
    except OSError as error:
        print(error, file=sys.stderr)
        return 127
    ended = threading.Event()

    def stop_with_parent() -> None:
        while os.read(0, 1):
            pass
        _signal(process.pid, signal.SIGTERM)
        if not ended.wait(float(grace)):
            _signal(process.pid, signal.SIGKILL)

    threading.Thread(target=stop_with_parent, daemon=True).start()
    code = process.wait()
    ended.set()
    _signal(process.pid, signal.SIGKILL)  # what the command has left behind
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-process.pid, 0)
    return code if code >= 0 else 128 - code


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


if __name__ == "__main__":
    # An orphan, since a Ray worker kills its children when it ends.
    if os.fork():
        os._exit(0)
    os.write(1, str(main(*sys.argv[1:])).encode())
