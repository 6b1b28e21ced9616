"""Losses and metrics of a batch that is split over devices and processes."""

import os
from pathlib import Path

import keras
import pytest
from processes import finish, free_port, start

BACKEND = keras.backend.backend()
WORKER = Path(__file__).parents[1] / "distributed_worker.py"


def work(name, **environment):
    return start(WORKER, name, **environment)


def ranks(name, **environment):
    """Two processes that share the work."""
    return [
        work(name, RANK=str(rank), WORLD_SIZE="2", **environment) for rank in (0, 1)
    ]


def devices(count):
    flags = os.environ.get("XLA_FLAGS", "")
    return {"XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count={count}"}


@pytest.mark.skipif(BACKEND != "jax", reason="only JAX")
def test_jax_devices_give_the_step_of_one():
    finish(work("jax_devices", **devices(4)))


@pytest.mark.skipif(BACKEND != "jax", reason="only JAX")
def test_jax_processes_give_the_step_of_one():
    coordinator = f"localhost:{free_port()}"
    finish(*ranks("jax_processes", COORDINATOR=coordinator, **devices(2)))


@pytest.mark.skipif(BACKEND != "tensorflow", reason="only TensorFlow")
def test_tensorflow_replicas_give_the_step_of_one():
    finish(work("tensorflow_replicas"))


@pytest.mark.skipif(BACKEND != "torch", reason="only PyTorch")
def test_torch_processes_give_the_step_of_one():
    address = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    finish(*ranks("torch_processes", **address))
