"""Processes of their own, which are started and waited for together."""

import contextlib
import functools
import importlib.util
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time


def start(*command, python=sys.executable, **environment):
    """Starts Python with a command, and one thread.

    This Python, with the paths of this process, or another one with its own.
    """
    if python == sys.executable:
        paths = os.pathsep.join(filter(None, sys.path))
        environment = {"PYTHONPATH": paths, **environment}
    # A file, since a pipe that nobody reads would stop the process when it is full.
    output = tempfile.TemporaryFile("w+")  # noqa: SIM115
    process = subprocess.Popen(
        [python, *map(str, command)],
        env={
            **os.environ,
            "PYTHONFAULTHANDLER": "1",
            "OMP_NUM_THREADS": "1",
            **environment,
        },
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    return process, output


def finish(*started, seconds=1800):
    """Waits for processes that must all succeed, and returns what they print.

    When one fails or the time is over the others are stopped: they would wait for it.
    They take seconds; the bound is for those that hang, on a busy machine too.
    """
    processes = [process for process, _ in started]
    end = time.monotonic() + seconds
    while any(process.poll() is None for process in processes):
        if any(process.poll() for process in processes) or time.monotonic() > end:
            # With PYTHONFAULTHANDLER, each tells where it stands.
            _stop(processes, signal.SIGABRT)
            time.sleep(2)
            break
        time.sleep(0.05)
    _stop(processes, signal.SIGKILL)
    texts = []
    for process, output in started:
        process.wait()
        with output:
            output.seek(0)
            texts.append(output.read())
    text = "\n".join(texts)
    assert [process.returncode for process in processes] == [0] * len(processes), text
    return text


def _stop(processes, number):
    for process in processes:
        # Of the whole session: launchers have processes of their own.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def free_port():
    """Returns a port that nobody has, and that no socket gets by itself.

    The latter come from the upper half of the range, and between this call and the
    use of its answer other tests may open many.
    """
    for port in random.SystemRandom().sample(range(20_000, 30_000), 100):
        with socket.socket() as server:
            try:
                server.bind(("localhost", port))
            except OSError:
                continue
            return port
    raise OSError("No free port.")


def interpreters():
    """Returns the interpreter of each backend: of this environment, and those that
    KERAS_SELCAL_PYTHONS names (JSON: backend to interpreter).
    """
    pythons = json.loads(os.environ.get("KERAS_SELCAL_PYTHONS", "{}"))
    for backend in ("jax", "tensorflow", "torch"):
        if importlib.util.find_spec(backend):
            pythons.setdefault(backend, sys.executable)
    return pythons


HALF = """
import numpy as np
from keras import ops

a = ops.cast(ops.convert_to_tensor(np.ones((64, 64), "float32")), {dtype!r})
assert float(ops.sum(ops.cast(ops.matmul(a, a), "float32"))) == 64**3
ops.softmax(a)
"""


@functools.cache
def computes_in(dtype):
    """Returns whether this machine multiplies matrices of a dtype and has its softmax.

    Some hypervisors advertise instructions that trap, which would end the tests: a
    process of its own tries first. TensorFlow's softmax raises without AVX-512.
    """
    process, output = start("-W", "ignore", "-c", HALF.format(dtype=dtype))
    with output:
        return process.wait() == 0
