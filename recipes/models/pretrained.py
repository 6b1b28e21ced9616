"""Loads weights of PyTorch networks into Keras networks of the same architecture."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_selcal._validation import refuse

State = dict[str, np.ndarray]

# Buffers that follow from the architecture, and the pooler of Hugging Face's ViT, which
# its classifier does not use.
_IGNORED = re.compile(
    r"(^|\.)(num_batches_tracked|relative_position_index|attn_mask|pooler\..*)$"
)

# Patterns and their names in timm, applied in this order.
_RENAMES = (
    (r"^module\.", ""),
    (r"^(vit|swin)\.", ""),
    (r"^encoder\.layers\.", "layers."),
    (r"^(encoder\.layer|layers)\.(\d+)\.(?!blocks\.|downsample\.)", r"blocks.\2."),
    (r"^embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
    (r"^embeddings\.norm\.", "patch_embed.norm."),
    (r"^(embeddings\.)?cls_token$", "tokens.cls_token"),
    (r"^(embeddings\.position_embeddings|pos_embed)$", "tokens.pos_embed"),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"^layernorm\.", "norm."),
    (r"\.attention\.(output\.dense|o_proj)\.", ".attn.proj."),
    (r"\.attention\.((attention|self|relative_position_bias)\.)?", ".attn."),
    (r"\.attn\.(query|q_proj)\.", ".attn.q."),
    (r"\.attn\.(key|k_proj)\.", ".attn.k."),
    (r"\.attn\.(value|v_proj)\.", ".attn.v."),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"\.output\.dense\.", ".mlp.fc2."),
    (r"^(classifier|linear|fc|head\.fc)\.", "head."),
)

# Names of weights in Keras, and in PyTorch where they differ.
_WEIGHTS = {
    "kernel": "weight",
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}


def load_pretrained(model: Any, path: str | Path) -> None:
    """Loads a state dict file into a model of `recipes.models`.

    The names may be those of timm or of Hugging Face (ViT and Swin), or those of the
    CIFAR ResNets (`conv1.weight`, `layer1.0.bn1.weight`, …). The weights of the file
    and of the model must match; otherwise an error is raised and nothing is changed.
    The exception is a head for another number of classes: it is not loaded, and a
    message says so.

    | file                         | read by                |
    |------------------------------|------------------------|
    | `.safetensors`               | safetensors, and NumPy |
    | `.npz`                       | NumPy                  |
    | `.pth`, `.pt`, `.th`, `.bin` | torch                  |

    `python -m recipes.models.convert` converts the last kind to the first.

    Args:
        model: a model from `recipes.models.build`.
        path: the file.
    """
    found = read(path)
    state, variables = _canonical(found), _variables(model)
    headless = _drop_other_head(state, variables)
    for name in state.keys() & variables.keys():
        state[name] = _keras_layout(state[name], variables[name])
    if problems := _problems(state, variables):
        raise ValueError(f"{path} does not fit the model:\n  " + "\n  ".join(problems))

    for name, variable in variables.items():
        variable.assign(state[name])
    if any(name.endswith("embeddings.cls_token") for name in found):
        _set_epsilon(model, 1e-12)  # Hugging Face's ViT; timm's has 1e-6
    if headless:
        print(f"{path}: {headless}; the head of the model keeps its initial weights.")


def read(path: str | Path) -> State:
    """Returns the arrays of a state dict file, by their names in it."""
    path = Path(path)
    if path.suffix not in _READERS:
        refuse("path", str(path), "a file that ends in " + ", ".join(_READERS))
    if not path.is_file():
        raise FileNotFoundError(f"There is no weights file at {path}")
    try:
        return _READERS[path.suffix](path)
    except (ImportError, OSError):
        raise
    except Exception as error:  # each format has errors of its own
        reason = " ".join(str(error).split()[:30])
        raise ValueError(f"{path} cannot be read as weights: {reason}") from error


def _read_npz(path: Path) -> State:
    with np.load(path) as arrays:
        return dict(arrays)


def _read_safetensors(path: Path) -> State:
    return dict(safetensors().load_file(path))


def _read_torch(path: Path) -> State:
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            f"Only torch can read {path}. Where it is installed, run\n  python -m "
            f"recipes.models.convert {path} {path.with_suffix('.safetensors')}"
        ) from error
    state = torch.load(path, map_location="cpu", weights_only=True)
    for wrapper in ("state_dict", "model", "net"):
        if isinstance(state, dict) and isinstance(state.get(wrapper), dict):
            state = state[wrapper]
    tensors = isinstance(state, dict) and map(torch.is_tensor, state.values())
    if not tensors or not all(tensors):
        raise ValueError(f"{path} does not hold a state dict, a dict of tensors")
    return {
        name: (value.float() if value.is_floating_point() else value).detach().numpy()
        for name, value in state.items()
    }


_READERS: dict[str, Callable[[Path], State]] = {
    ".safetensors": _read_safetensors,
    ".npz": _read_npz,
    ".pth": _read_torch,
    ".pt": _read_torch,
    ".th": _read_torch,
    ".bin": _read_torch,
}


def safetensors() -> Any:
    """Returns the module `safetensors.numpy`, or says how to install it."""
    try:
        from safetensors import numpy
    except ImportError as error:
        raise ImportError(
            "`.safetensors` files require safetensors: `pip install safetensors`."
        ) from error
    return numpy


def _canonical(state: Mapping[str, np.ndarray]) -> State:
    """Returns the weights under timm's names, with queries, keys and values fused."""
    named: State = {}
    for name, value in state.items():
        if not _IGNORED.search(name):
            for pattern, replacement in _RENAMES:
                name = re.sub(pattern, replacement, name)
            named[name] = value

    # Except in newer versions of timm, patches are merged at the end of a stage.
    if any(name.startswith("layers.0.downsample.") for name in named):
        named = {
            re.sub(
                r"^layers\.(\d+)\.downsample\.",
                lambda match: f"layers.{int(match[1]) + 1}.downsample.",
                name,
            ): value
            for name, value in named.items()
        }

    for name in [name for name in named if ".attn.q." in name]:
        parts = [name.replace(".attn.q.", f".attn.{part}.") for part in "qkv"]
        if all(part in named for part in parts):
            fused = np.concatenate([named.pop(part) for part in parts])
            named[name.replace(".attn.q.", ".attn.qkv.")] = fused
    # PyTorch separates layers by dots, Keras names by underscores.
    return {_key(*name.rpartition(".")[::2]): value for name, value in named.items()}


def _variables(model: Any) -> dict[str, Any]:
    """Returns the variables of a model by the names of `_canonical`."""
    return {
        _key(layer.name, _WEIGHTS.get(variable.name, variable.name)): variable
        for layer in model.layers
        for variable in layer.variables
        # The state of dropout is not a weight.
        if variable.name != "seed_generator_state"
    }


def _key(layer: str, weight: str) -> str:
    return f"{layer.replace('.', '_')}.{weight}"


def _drop_other_head(state: State, variables: dict[str, Any]) -> str | None:
    """Removes the head from both if they differ, and returns why."""
    mine = variables["head.bias"].shape[0]
    theirs = state.get("head.bias")
    if theirs is not None and len(theirs) == mine:
        return None
    heads = [name for name in state if name.startswith("head.")]
    if theirs is None and heads:
        return None
    for name in heads:
        del state[name]
    for name in ("head.weight", "head.bias"):
        del variables[name]
    if theirs is None:
        return "the file has no head"
    return f"the file's head is for {len(theirs)} classes, not {mine}"


def _problems(state: State, variables: dict[str, Any]) -> list[str]:
    """Returns a line for each mismatch between the weights and the model."""
    lines = []
    for name in sorted(state.keys() | variables.keys()):
        if name not in state:
            lines.append(f"{name} is not in the file")
        elif name not in variables:
            lines.append(f"{name} is not in the model")
        elif state[name].shape != (shape := tuple(variables[name].shape)):
            lines.append(f"{name} has shape {state[name].shape} instead of {shape}")
    return lines


def _set_epsilon(model: Any, epsilon: float) -> None:
    import keras  # takes seconds, which `list` does not need to spend

    for layer in model.layers:
        if isinstance(layer, keras.layers.LayerNormalization):
            layer.epsilon = epsilon


def _keras_layout(value: np.ndarray, variable: Any) -> np.ndarray:
    """Moves the channels from first, as in PyTorch, to last."""
    if variable.name != "kernel":
        return value
    return value.transpose((2, 3, 1, 0)) if value.ndim == 4 else value.T
