"""Models in formats that are served without Keras.

Keras's own export is used where it is right. On PyTorch it fixes the batch size, or
traces the model, which makes constants of values. Its ONNX has no names of outputs
there and on JAX, and is wrong for infinite values on TensorFlow.
"""

import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras

from keras_selcal._extras import require
from keras_selcal._validation import check_choice, refuse

# The name of the output of a calibrated model, which has one.
_ALONE = "probabilities"
# The endings of files; a SavedModel is a folder.
ENDINGS = {
    "tf_saved_model": "",
    "onnx": ".onnx",
    "litert": ".tflite",
    "torch": ".pt2",
    "openvino": ".xml",
}
# By backend: formats, with the packages that write them.
WRITERS = {
    "tensorflow": {
        "tf_saved_model": (),
        "onnx": ("tf2onnx",),
        "litert": (),
        "openvino": ("openvino",),
    },
    "torch": {
        "torch": (),
        "onnx": ("onnxscript",),
        "openvino": ("onnxscript", "openvino"),
    },
    "jax": {
        "tf_saved_model": ("tensorflow",),
        "onnx": ("jax2onnx",),
        "openvino": ("jax2onnx", "openvino"),
    },
}


def export(model: keras.Model, path: str, format: str) -> None:
    """Writes a functional model to a file of a format, or refuses before it does."""
    backend = keras.backend.backend()
    check_choice("format", format, tuple(ENDINGS))
    offered = WRITERS[backend]
    if format not in offered:
        listed = ", ".join(repr(name) for name in offered)
        others = [name for name, writers in WRITERS.items() if format in writers]
        refuse(
            "format",
            format,
            f"one of {listed} on {backend} (or save the model, load the file on "
            f"{' or '.join(others)}, and export it there)",
        )
    if not path.endswith(ENDINGS[format]):
        refuse("path", path, f"a path that ends in {ENDINGS[format]}")
    for module in offered[format]:
        require(module, f"Export as {format!r} on {backend}")
    if backend == "torch":
        _export_torch(model, path, format)
    elif format == "onnx" or (backend == "jax" and format == "openvino"):
        with _onnx_file(path, format) as file:
            (_jax_to_onnx if backend == "jax" else _tensorflow_to_onnx)(model, file)
    else:
        if format != "tf_saved_model" and not isinstance(model.output, dict):
            # Or else the name of the output is a number.
            model = keras.Model(model.input, {_ALONE: model.output})
        # The signature is what Keras would find; without it, Keras refuses a model
        # that was never called.
        keras.Model.export(
            model,
            path,
            format=format,
            verbose=False,
            input_signature=[keras.tree.map_structure(_spec, model.input)],
        )


def _export_torch(model: keras.Model, path: str, format: str) -> None:
    import torch

    def sample(tensor: keras.KerasTensor) -> Any:
        # Sizes of 1 would be taken for constants.
        return keras.ops.ones(
            [2 if n is None else n for n in tensor.shape], tensor.dtype
        )

    def free(tensor: keras.KerasTensor) -> dict[int, Any]:
        sizes = enumerate(tensor.shape)
        return {axis: torch.export.Dim.DYNAMIC for axis, n in sizes if n is None}

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*not properly registered as a submodule.*")
        program = torch.export.export(
            model,
            (keras.tree.map_structure(sample, model.input),),
            # Keras's `forward` takes `*args`: one argument, a tuple.
            dynamic_shapes=[(keras.tree.map_structure(free, model.input),)],
            strict=False,
        )
    if format == "torch":
        torch.export.save(program, path)
        return
    with _onnx_file(path, format) as file:
        torch.onnx.export(
            program,
            dynamo=True,
            verbose=False,
            input_names=[tensor.name for tensor in keras.tree.flatten(model.input)],
            output_names=_output_names(model),
            custom_translation_table={torch.ops.aten.sort.stable: _stable_sort},
        ).save(file)


def _stable_sort(
    x: Any, stable: bool = False, dim: int = -1, descending: bool = False
) -> Any:
    """Writes PyTorch's stable sort, which its exporter does not know, in ONNX.

    Of equal values, `TopK` puts the one with the lower index first.
    """
    from onnxscript import opset18

    k = opset18.Gather(opset18.Shape(x), opset18.Constant(value_ints=[dim]))
    return opset18.TopK(x, k, axis=dim, largest=descending, sorted=True)


def _jax_to_onnx(model: keras.Model, file: str) -> None:
    import jax
    import jax2onnx

    inputs = keras.tree.flatten(model.input)

    def shape(i: int, tensor: keras.KerasTensor) -> Any:
        # The batch is one size, which all inputs share.
        free = ["batch", *(f"size_{i}_{axis}" for axis in range(1, len(tensor.shape)))]
        named = zip(free, tensor.shape, strict=True)
        sizes = tuple(name if n is None else n for name, n in named)
        return jax.ShapeDtypeStruct(sizes, tensor.dtype)

    jax2onnx.to_onnx(
        _flat(model),
        [shape(i, tensor) for i, tensor in enumerate(inputs)],
        input_names=[tensor.name for tensor in inputs],
        output_names=_output_names(model),
        return_mode="file",
        output_path=file,
    )


def _tensorflow_to_onnx(model: keras.Model, file: str) -> None:
    import tensorflow as tf
    import tf2onnx

    inputs = keras.tree.flatten(model.input)
    specs = [tf.TensorSpec(each.shape, each.dtype, each.name) for each in inputs]

    def to_where(context: Any, node: Any, name: str, args: Any) -> None:
        node.type = "Where"

    tf2onnx.convert.from_function(
        tf.function(_flat(model), input_signature=specs, autograph=False),
        specs,
        # By default it becomes a sum of products with 0 and 1, in which an infinite
        # value that is not chosen makes NaN.
        custom_op_handlers={"SelectV2": (to_where, [])},
        output_path=file,
    )


@contextmanager
def _onnx_file(path: str, format: str) -> Iterator[str]:
    """Gives a file to write ONNX to, from which OpenVINO makes its own if asked to."""
    if format == "onnx":
        yield path
        return
    import openvino

    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "model.onnx")
        yield file
        converted = openvino.convert_model(file)
        for operation in converted.get_ops():
            if operation.get_type_name() == "TopK":
                # Equal values keep their order in ONNX.
                operation.set_attribute("stable", True)
        openvino.save_model(converted, path, compress_to_fp16=False)


def _flat(model: keras.Model) -> Callable[..., dict[str, Any]]:
    """Returns the model as a function of its inputs one by one, to named outputs."""

    def call(*inputs: Any) -> dict[str, Any]:
        found = model(keras.tree.pack_sequence_as(model.input, inputs), training=False)
        return found if isinstance(found, dict) else {_ALONE: found}

    return call


def _output_names(model: keras.Model) -> list[str]:
    # The order in which all backends flatten a dict.
    return sorted(model.output) if isinstance(model.output, dict) else [_ALONE]


def _spec(tensor: keras.KerasTensor) -> keras.InputSpec:
    shape = (None, *tensor.shape[1:])
    return keras.InputSpec(shape=shape, dtype=tensor.dtype, name=tensor.name)
