"""Models in formats that are served without Keras.

Keras's own export is used where it is right. On PyTorch it fixes the batch size, or
traces the model, which makes constants of values; its ONNX has no names of outputs,
there and on JAX.
"""

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras

from keras_selcal._extras import require
from keras_selcal._validation import check_choice, refuse

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
        require(module, f"export-{backend}", f"Export as {format!r} on {backend}")
    if backend == "torch":
        _export_torch(model, path, format)
    elif backend == "jax" and format != "tf_saved_model":
        _export_jax(model, path, format)
    else:
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
        ).save(file)


def _export_jax(model: keras.Model, path: str, format: str) -> None:
    import jax
    import jax2onnx

    inputs = keras.tree.flatten(model.input)

    def call(*flat: Any) -> Any:
        return model(keras.tree.pack_sequence_as(model.input, flat), training=False)

    def shape(i: int, tensor: keras.KerasTensor) -> Any:
        # The batch is one size, which all inputs share.
        free = ["batch", *(f"size_{i}_{axis}" for axis in range(1, len(tensor.shape)))]
        named = zip(free, tensor.shape, strict=True)
        sizes = tuple(name if n is None else n for name, n in named)
        return jax.ShapeDtypeStruct(sizes, tensor.dtype)

    with _onnx_file(path, format) as file:
        jax2onnx.to_onnx(
            call,
            [shape(i, tensor) for i, tensor in enumerate(inputs)],
            input_names=[tensor.name for tensor in inputs],
            output_names=_output_names(model),
            return_mode="file",
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
        openvino.save_model(openvino.convert_model(file), path, compress_to_fp16=False)


def _output_names(model: keras.Model) -> list[str]:
    # The order in which all backends flatten a dict.
    return sorted(model.output) if isinstance(model.output, dict) else ["probabilities"]


def _spec(tensor: keras.KerasTensor) -> keras.InputSpec:
    shape = (None, *tensor.shape[1:])
    return keras.InputSpec(shape=shape, dtype=tensor.dtype, name=tensor.name)
