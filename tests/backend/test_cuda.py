"""On a GPU, where there is one: nothing in a step makes the host wait for it."""

import functools

import accelerator_cases as cases
import keras
import pytest


def available():
    if keras.backend.backend() != "torch":
        return False
    import torch

    return torch.cuda.is_available()


pytestmark = pytest.mark.skipif(not available(), reason="only PyTorch with CUDA")


def unreduced(make):
    """Returns a loss without its reduction: Keras's own copies a number to the GPU."""
    loss = make()
    return type(loss).from_config({**loss.get_config(), "reduction": None})


def gradient_of(loss, **given):
    import torch

    y_pred = given.pop("y_pred").requires_grad_()
    values = cases.loss_of(loss, y_pred=y_pred, **given)
    return torch.autograd.grad(values.sum(), y_pred)


STEPS = {
    "losses": (cases.loss_cases, unreduced, gradient_of),
    "metrics": (cases.metric_cases, lambda make: make(), cases.result_of),
    "layers": (cases.layer_cases, lambda make: make(), cases.answer_of),
}


@pytest.mark.parametrize("kind", STEPS)
def test_no_step_waits_for_the_gpu(kind):
    import torch

    table, prepare, step = STEPS[kind]
    waits = {}
    for name, (make, form) in table().items():
        arrays = cases.arrays(form).items()
        given = {key: torch.as_tensor(array, device="cuda") for key, array in arrays}
        run = functools.partial(step, prepare(make))
        run(**given)  # The first step loads kernels and makes the state.
        torch.cuda.set_sync_debug_mode("error")
        try:
            run(**given)
        except RuntimeError as error:
            waits[name] = str(error)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert not waits
