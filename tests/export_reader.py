"""Reads exported models where neither Keras nor this library can be imported: run by
`tests/export/test_formats.py` as `python export_reader.py FORMAT FOLDER`.

FOLDER has NAME.npz, with inputs `x` and the expected outputs, for each artifact NAME.
Prints as JSON how the answers of each differ.
"""

import json
import sys
from pathlib import Path

import numpy as np

for _module in ("keras", "keras_selcal"):
    sys.modules[_module] = None

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
    return lambda x: loaded.serve(x)  # keeps `loaded`, which has the weights


def onnx(path):
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    names = [output.name for output in session.get_outputs()]
    return lambda x: dict(zip(names, session.run(None, {given.name: x}), strict=True))


def litert(path):
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(model_path=path).get_signature_runner()
    (name,) = runner.get_input_details()
    return lambda x: runner(**{name: x})


def torch(path):
    import torch

    module = torch.export.load(path).module()
    return lambda x: module(torch.from_numpy(x))


def openvino(path):
    import openvino

    # Some processors would compute in half precision.
    exact = {"INFERENCE_PRECISION_HINT": "f32"}
    model = openvino.compile_model(openvino.Core().read_model(path), "CPU", exact)
    return lambda x: {
        name: value for key, value in model([x]).items() for name in key.names
    }


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
    x, wrong = data.pop("x"), []
    try:
        run = globals()[format](str(path))
        for rows in (slice(None), slice(7, 8), slice(3, 8)):
            expected = {name: value[rows] for name, value in data.items()}
            wrong += differences(run(x[rows]), expected)
    except Exception as error:
        wrong.append(repr(error))
    return wrong


def main(format, folder):
    names = [path.stem for path in sorted(Path(folder).glob("*.npz"))]
    paths = {name: Path(folder) / f"{name}{ENDINGS[format]}" for name in names}
    print(json.dumps({name: check(format, path) for name, path in paths.items()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
