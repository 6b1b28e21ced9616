"""Losses and metrics of a batch that is split over devices and processes."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import keras
import pytest

WORKER = Path(__file__).parent / "distributed_worker.py"
BACKEND = keras.backend.backend()


def start(name, **environment):
    path = os.pathsep.join(path for path in sys.path if path)
    return subprocess.Popen(
        [sys.executable, WORKER, name],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(*processes):
    outputs = [process.communicate(timeout=600)[0] for process in processes]
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output


def devices(count):
    flags = os.environ.get("XLA_FLAGS", "")
    return {"XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count={count}"}


def free_port():
    with socket.socket() as server:
        server.bind(("localhost", 0))
        return server.getsockname()[1]


@pytest.mark.skipif(BACKEND != "jax", reason="of JAX")
def test_jax_devices():
    finish(start("jax_devices", **devices(4)))


@pytest.mark.skipif(BACKEND != "jax", reason="of JAX")
def test_jax_processes(tmp_path):
    environment = {
        "RESULTS": str(tmp_path / "results"),
        "COORDINATOR": f"localhost:{free_port()}",
        "WORLD_SIZE": "2",
        **devices(2),
    }
    finish(start("jax_alone", **environment))
    ranks = [start("jax_processes", RANK=str(rank), **environment) for rank in (0, 1)]
    finish(*ranks)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="of TensorFlow")
def test_tensorflow_replicas():
    finish(start("tensorflow_replicas"))


@pytest.mark.skipif(BACKEND != "torch", reason="of PyTorch")
def test_torch_processes():
    environment = {
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "2",
    }
    finish(
        *(start("torch_processes", RANK=str(rank), **environment) for rank in (0, 1))
    )
