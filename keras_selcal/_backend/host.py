"""Where NumPy computes instead of `keras.ops`: for eager PyTorch on a CPU.

NumPy shares the memory of its tensors. An operation of Keras checks and converts its
arguments before PyTorch runs, which takes several times as long as NumPy does for the
thousands of values of a batch. Formulas take the namespace as `xp`, or find it by the
type of what they are given: whoever calls them decides once. Its gradients, too, come
from NumPy, or from fewer operations of PyTorch, where these are faster.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops
from keras.src.backend.common.stateless_scope import in_stateless_scope
from numpy.typing import NDArray

# A tuple, since torch.compile cannot trace a union of NumPy's types.
_ARRAYS = (np.ndarray, np.generic)

# Up to this many columns PyTorch's own gradient of a maximum is as fast.
_FEW_COLUMNS = 16


def array_module(x: Any) -> Any:
    """Returns NumPy for arrays of NumPy, and `keras.ops` for tensors."""
    return np if isinstance(x, _ARRAYS) else ops


def cast(x: Any, dtype: Any) -> Any:
    """Returns an array or a tensor in another dtype."""
    if isinstance(x, _ARRAYS):
        return x.astype(dtype, copy=False)
    return ops.cast(x, dtype)


def is_host(x: Any) -> bool:
    """Returns whether a value is a NumPy array, a list or the like, not a tensor."""
    if isinstance(x, keras.KerasTensor | keras.Variable):
        return False
    return isinstance(x, np.ndarray) or not ops.is_tensor(x)


def to_numpy(x: Any) -> NDArray[Any]:
    """Returns an array or a tensor of any backend as a NumPy array, which shares the
    memory of the former if it can.
    """
    if isinstance(x, np.ndarray):
        return x
    if hasattr(x, "detach"):
        # NumPy cannot convert PyTorch tensors with gradients or of bfloat16, and Keras
        # copies them.
        x = x.detach().cpu()
        x = x.float() if x.is_floating_point() and x.itemsize == 2 else x
        return np.asarray(x)
    return ops.convert_to_numpy(x) if ops.is_tensor(x) else np.asarray(x)


def looks_at_values(x: Any) -> bool:
    """Returns whether looking at a tensor's values is cheap: for eager PyTorch on a
    CPU, where no device has to wait, and where each operation makes a new tensor.
    """
    if keras.backend.backend() != "torch" or x.device.type != "cpu" or x.numel() == 0:
        return False
    import torch

    if torch.compiler.is_compiling():
        return False
    try:
        x.data_ptr()
    except RuntimeError:  # inside `torch.func`, whose tensors stand for others
        return False
    return True


def is_eager(x: Any) -> bool:
    """Returns whether PyTorch computes with a tensor of a CPU as it stands, neither
    compiled nor inside `torch.func`, and at most with gradients backward.
    """
    if not looks_at_values(x):
        return False
    import torch

    # Dual tensors do not show that they carry derivatives.
    return bool(torch.autograd.forward_ad._current_level < 0)


def by_numpy(
    function: Callable[..., Any],
    *arguments: Any,
    pullback: bool = False,
    **options: Any,
) -> Any:
    """Returns `function(*arguments, **options, xp=xp)` as a tensor.

    `xp` is `keras.ops`. It is NumPy for eager PyTorch on a CPU if no gradient is asked
    for: arrays share the memory of the tensors among the arguments, and operations on
    thousands of values take a fraction of the time.

    Args:
        function: a function of `xp` that returns a tensor or an array.
        *arguments: tensors, the first one at least, and other values.
        pullback: whether NumPy computes as well if a gradient is asked for, that of
            the first argument alone. `function` then takes `pullback=True`, with which
            it returns another function too: it maps the gradient of the result to
            that of the first argument.
        **options: other values.
    """
    tensors = [x for x in (*arguments, *options.values()) if ops.is_tensor(x)]
    if not all(is_eager(x) for x in tensors):
        return function(*arguments, **options, xp=ops)
    graded = [x for x in tensors if x.requires_grad]
    if graded and not (pullback and len(graded) == 1 and graded[0] is arguments[0]):
        return function(*arguments, **options, xp=ops)
    import torch

    def shared(x: Any) -> Any:
        if not ops.is_tensor(x):
            return x
        return x.detach().numpy() if x.ndim else x.item()

    arrays = [shared(x) for x in arguments]
    shared_options = {name: shared(x) for name, x in options.items()}
    by_arrays = functools.partial(on_host, function, *arrays, **shared_options, xp=np)
    if not graded:
        return torch.from_numpy(by_arrays())

    def copied(x: Any) -> Any:
        return x.clone() if ops.is_tensor(x) else x

    # Whoever called this may change its tensors before the gradient is computed.
    others = [copied(x) for x in arguments[1:]]
    copied_options = {name: copied(x) for name, x in options.items()}

    def by_tensors(x: Any) -> Any:
        return function(x, *others, **copied_options, xp=ops)

    return _with_pullback().apply(arguments[0], by_arrays, by_tensors)


@functools.cache
def _with_pullback() -> Any:
    import torch

    class WithPullback(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, by_arrays: Any, by_tensors: Any) -> Any:
            value, ctx.pull = by_arrays(pullback=True)
            ctx.by_tensors = by_tensors
            ctx.save_for_backward(x)
            return torch.from_numpy(value)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> tuple[Any, None, None]:
            (x,) = ctx.saved_tensors
            again = torch.is_grad_enabled()
            if is_eager(gradient) and not again:
                pulled = torch.from_numpy(on_host(ctx.pull, gradient.numpy()))
            else:
                # This gradient is one of several at once, or differentiated in turn.
                with torch.enable_grad():
                    value = ctx.by_tensors(x)
                pulled = torch.autograd.grad(value, x, gradient, create_graph=again)[0]
            return pulled, None, None

    return WithPullback


def gains_by_eager_largest(x: Any) -> bool:
    """Returns whether `eager_largest` applies to a tensor of PyTorch, and pays."""
    return x.shape[-1] > _FEW_COLUMNS and x.requires_grad and is_eager(x)


def eager_largest(x: Any, seen: Any) -> Any:
    """Returns the largest of the last axis of `seen`, which is kept, with a gradient
    for x, which `seen` equals at all places but those that are left out.

    PyTorch's own backward pass counts equal values in int64, which takes longer than
    all else in a loss.
    """
    return _largest().apply(x, seen.detach())


@functools.cache
def _largest() -> Any:
    import torch

    class Largest(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, seen: Any) -> Any:
            most = seen.amax(-1, keepdim=True)
            ctx.save_for_backward(seen, most)
            return most

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> tuple[Any, None]:
            seen, most = ctx.saved_tensors
            # In place, a comparison gives floats.
            there = seen.clone().eq_(most)
            share = gradient / there.sum(-1, keepdim=True)
            # `there` must stay if this gradient is differentiated in turn, and cannot
            # hold several at once.
            if share.requires_grad or not is_eager(share):
                return there * share, None
            return there.mul_(share), None

    return Largest


def computes_on_host(x: Any) -> bool:
    """Returns whether NumPy may compute what concerns a tensor or array: for eager
    PyTorch on a CPU, which shares its memory, and takes longer for each operation.
    """
    if keras.backend.backend() != "torch" or in_stateless_scope():
        return False
    if isinstance(x, keras.Variable):
        return False
    from keras.src.backend.torch.core import get_device

    return get_device() == "cpu" and (is_host(x) or looks_at_values(x))


def on_host(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Returns what a function computes with NumPy for PyTorch."""
    return _uncompiled()(function, *arguments, **options)


@functools.cache
def _uncompiled() -> Any:
    import torch

    def call(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        # Tensors do not warn of NaN or ∞ either.
        with np.errstate(all="ignore"):
            return function(*arguments, **options)

    # Where torch.compile gives up on the caller, it would go on to compile `function`.
    return torch.compiler.disable(call)


def memory_of(variable: Any) -> NDArray[Any] | None:
    """Returns the memory of a variable as a NumPy array, to read and to write, or None
    if NumPy has no access to it.
    """
    if keras.backend.backend() != "torch" or in_stateless_scope():
        return None
    value = variable.value.detach()
    return value.numpy() if value.device.type == "cpu" else None
