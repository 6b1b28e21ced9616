"""Reads exported models where neither Keras nor this library can be imported: run by
`tests/export/test_formats.py` as `python export_reader.py FORMAT FOLDER`.

FOLDER has NAME.npz, with inputs and the expected outputs, for each artifact NAME.
Prints as JSON how the answers of each differ.
"""

import json
import sys
from pathlib import Path

import numpy as np

ENDINGS = {
    "tf_saved_model": "",
    "onnx": ".onnx",
    "litert": ".tflite",
    "torch": ".pt2",
    "openvino": ".xml",
}


def tf_saved_model(path):
    import tensorflow as tf

    loaded = tf.saved_model.load(path)
    return lambda given: loaded.serve(alone(given))  # keeps the weights of `loaded`


def onnx(path):
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    return lambda given: dict(zip(names, session.run(None, given), strict=True))


def litert(path):
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(model_path=path).get_signature_runner()
    return lambda given: runner(**given)


def torch(path):
    import torch

    module = torch.export.load(path).module()
    return lambda given: module(
        alone({name: torch.from_numpy(x) for name, x in given.items()})
    )


def openvino(path):
    import openvino

    # Some processors would compute in half precision.
    exact = {"INFERENCE_PRECISION_HINT": "f32"}
    model = openvino.compile_model(openvino.Core().read_model(path), "CPU", exact)
    return lambda given: {
        name: value for key, value in model(given).items() for name in key.names
    }


def alone(given):
    """Returns the only one of the inputs, or a list."""
    inputs = list(given.values())
    return inputs[0] if len(inputs) == 1 else inputs


def differences(found, expected):
    """Returns what is wrong with the outputs of a batch."""
    if not isinstance(found, dict):  # a model with one output may return it alone
        found = {"probabilities": found}
    wrong = [f"no {name}" for name in expected.keys() - found.keys()]
    for name in expected.keys() & found.keys():
        value, other = np.asarray(found[name]), expected[name]
        if value.shape != other.shape or value.dtype != other.dtype:
            wrong.append(f"{name}: {value.dtype} of shape {value.shape}")
        elif other.dtype.kind == "f":
            if not np.allclose(value, other, rtol=1e-5, atol=1e-5, equal_nan=True):
                wrong.append(f"{name}: off by {np.nanmax(np.abs(value - other)):g}")
        elif (value != other).any():
            wrong.append(f"{name}: {(value != other).sum()} differ")
    return wrong


def check(format, path):
    """Returns what is wrong with the answers to batches of several sizes."""
    data = dict(np.load(path.with_suffix(".npz")))
    named = [name for name in data if name.startswith("input_")]
    inputs = {name.removeprefix("input_"): data.pop(name) for name in named}
    wrong = []
    try:
        run = globals()[format](str(path))
        for rows in (slice(None), slice(7, 8), slice(3, 8)):
            expected = {name: value[rows] for name, value in data.items()}
            batch = {name: x[rows] for name, x in inputs.items()}
            wrong += differences(run(batch), expected)
    except Exception as error:
        wrong.append(repr(error))
    return wrong


def main(format, folder):
    names = [path.stem for path in sorted(Path(folder).glob("*.npz"))]
    paths = {name: Path(folder) / f"{name}{ENDINGS[format]}" for name in names}
    print(json.dumps({name: check(format, path) for name, path in paths.items()}))


if __name__ == "__main__":
    for module in ("keras", "keras_selcal"):
        sys.modules[module] = None
    main(*sys.argv[1:])
