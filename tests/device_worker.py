"""PyTorch on a device that stands in for a GPU: run by `backend/test_accelerators.py`
in a process of its own, `python device_worker.py losses|metrics|layers`.

Tensors are fake, and have shapes, dtypes and a device but no values: what looks at a
value fails. Prints for each case what it costs a step, or the error, as JSON.
"""

import functools
import json
import os
import sys

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_setup_privateuseone_for_python_backend("fakegpu")
DEVICE = "fakegpu:0"
torch.fakegpu.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
as_tensor, tensor = torch.as_tensor, torch.tensor


# The stand-in has no kernels that copy Python's numbers and arrays to it.
def copying_as_tensor(x, dtype=None, device=None):
    if device is None or str(device) == "cpu":
        return as_tensor(x, dtype=dtype, device=device)
    if isinstance(x, torch.Tensor):
        return x.to(device=device, dtype=dtype or x.dtype)
    out = as_tensor(x, dtype=dtype)
    return torch.empty(out.shape, dtype=out.dtype, device=device).copy_(out)


def copying_tensor(x, dtype=None, device=None, **options):
    if device is None or str(device) == "cpu":
        return tensor(x, dtype=dtype, device=device, **options)
    return copying_as_tensor(tensor(x, dtype=dtype), device=device)


torch.as_tensor, torch.tensor = copying_as_tensor, copying_tensor

import accelerator_cases as cases  # noqa: E402
import keras  # noqa: E402
from keras.src.backend.torch import core  # noqa: E402

core.DEFAULT_DEVICE = DEVICE
# Checkpoints ask the stand-in for the state of its random numbers.
keras.remat = lambda function: function

# What a GPU need not be asked for.
VIEWS = {
    *("detach", "view", "_unsafe_view", "expand", "unsqueeze", "squeeze", "t"),
    *("transpose", "permute", "slice", "select", "alias", "empty", "empty_strided"),
    *("empty_like", "lift_fresh", "_reshape_alias", "as_strided", "unbind", "split"),
}


class Watch(TorchDispatchMode):
    """Counts operations, and copies between host and device."""

    def __init__(self):
        super().__init__()
        self.operations = self.copies = self.reads = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func)
        self.operations += name.split(".")[1] not in VIEWS
        out = func(*args, **(kwargs or {}))
        if name in ("aten._to_copy.default", "aten.copy_.default"):
            source = args[1] if "copy_." in name else args[0]
            self.copies += source.device.type == "cpu" != out.device.type
            self.reads += source.device.type != "cpu" == out.device.type
        return out


def on_device(array):
    return torch.empty(array.shape, dtype=as_tensor(array).dtype, device=DEVICE)


def inputs(form):
    found = cases.arrays(form).items()
    return {name: on_device(array) for name, array in found}


def loss_step(loss, form):
    given = inputs(form)
    y_pred = given["y_pred"].requires_grad_()
    value = cases.loss_of(loss, **given)
    (gradient,) = torch.autograd.grad(value, y_pred)
    return value, gradient


def metric_step(metric, form):
    return (cases.result_of(metric, **inputs(form)),)


def layer_step(layer, form):
    return cases.answer_of(layer, **inputs(form))


def cost(make, step, form):
    """Returns what a step costs."""
    with FakeTensorMode(allow_non_fake_inputs=False):
        made = make()
        with Watch() as watch:
            results = step(made, form)
        for result in results:
            assert result.device.type == "fakegpu", "a result is on the host"
    assert not watch.reads, "the device is read"
    return {"operations": watch.operations, "copies": watch.copies}


def main(kind):
    step = {"losses": loss_step, "metrics": metric_step, "layers": layer_step}[kind]
    found = {
        "losses": cases.loss_cases,
        "metrics": cases.metric_cases,
        "layers": cases.layer_cases,
    }[kind]()
    if kind != "layers":
        crossentropy = functools.partial(
            keras.losses.SparseCategoricalCrossentropy, from_logits=True
        )
        report = {"crossentropy": cost(crossentropy, loss_step, "logits")}
    else:
        report = {}
    for name, (make, form) in found.items():
        try:
            report[name] = cost(make, step, form)
        except Exception as error:
            text = f"{type(error).__name__}: {str(error)[:300]}"
            report[name] = {"error": text}
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
    # The stand-in does not survive a normal end.
    os._exit(0)
