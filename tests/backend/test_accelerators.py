"""What a GPU or TPU would run, on a machine that has none."""

import collections
import functools
import json
import re
from pathlib import Path

import accelerator_cases as cases
import keras
import numpy as np
import pytest
from backends import numpy
from keras import ops
from processes import computes_in, finish, start

BACKEND = keras.backend.backend()
WORKER = Path(__file__).parents[1] / "device_worker.py"

on_torch = pytest.mark.skipif(BACKEND != "torch", reason="only PyTorch")
on_jax = pytest.mark.skipif(BACKEND != "jax", reason="only JAX")
on_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="only TensorFlow")

# The most operations of a step, in units of those of Keras's cross-entropy.
MOST = {
    "losses": {"au-msp-logits": 6, "aurc-msp-logits": 7, "focal-logits": 4},
    "metrics": {
        "ece-logits": 4,
        "aurc-msp-logits": 6,
        "coverage_at_risk-msp-logits": 6,
    },
    "layers": {},
}
# The most copies to the device in a step: the host waits for each of them.
MOST_COPIES = 2


@on_torch
@pytest.mark.parametrize("kind", ["losses", "metrics", "layers"])
def test_nothing_reads_the_device(kind):
    """Results and gradients stay there, and little is copied to it."""
    printed = finish(start("-W", "ignore", WORKER, kind))
    costs = json.loads(printed.splitlines()[-1])
    errors = {name: cost["error"] for name, cost in costs.items() if "error" in cost}
    assert not errors
    copies = {name: cost["copies"] for name, cost in costs.items()}
    assert {name for name in copies if copies[name] > MOST_COPIES} == set()
    for name, most in MOST[kind].items():
        least = costs["crossentropy"]["operations"]
        assert costs[name]["operations"] <= most * least, name


def made(kind):
    """Returns functions of arrays by name, and the form of data of each."""
    steps = {
        "losses": (cases.loss_cases, cases.loss_of),
        "metrics": (cases.metric_cases, cases.result_of),
        "layers": (cases.layer_cases, cases.answer_of),
    }
    table, step = steps[kind]
    for name, (make, form) in cases.few(table()).items():
        yield name, functools.partial(step, make()), form


def made_once(kind):
    """Returns one of each kind, and those with weights and masks of one."""
    seen = set()
    for name, step, form in made(kind):
        first = name.partition("-")[0]
        if first not in seen or name in ("ece-weights", "ece-mask", "focal-weights"):
            seen.add(first)
            yield name, step, form


@on_torch
@pytest.mark.parametrize("kind", ["metrics", "layers"])
def test_torch_compiles_a_step_whole(kind):
    """Of losses, `test_compiled_equals_eager` tells."""
    import torch

    breaks = {}
    for name, step, form in made_once(kind):
        given = {k: ops.convert_to_tensor(x) for k, x in cases.arrays(form).items()}
        torch._dynamo.reset()
        found = torch._dynamo.explain(step)(**given)
        if found.graph_break_count:
            breaks[name] = [str(reason.reason) for reason in found.break_reasons]
    assert not breaks


def primitives(jaxpr):
    """Yields the names of the operations of a jaxpr, and of those inside it."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else [value]:
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from primitives(inner)


def jax_step(kind, step):
    """Returns a step as JAX runs it: with its gradient, or with its state."""
    import jax

    if kind == "metrics":
        metric = step.args[0]
        # Some have a state from the first batch on.
        return functools.partial(
            cases.stateless_result_of, metric, [v.value for v in metric.variables]
        )
    if kind == "layers":
        return step

    def value_and_gradient(y_pred, **given):
        return jax.value_and_grad(lambda z: step(y_pred=z, **given))(y_pred)

    return value_and_gradient


@on_jax
@pytest.mark.parametrize("kind", ["losses", "metrics", "layers"])
def test_jax_lowers_a_step_for_gpus_and_tpus(kind):
    import jax
    from jax import export

    wrong = {}
    for name, step, form in made(kind):
        given = cases.arrays(form)
        step = jax_step(kind, step)
        text = export.export(jax.jit(step), platforms=["cuda", "tpu"])(**given)
        text = text.mlir_module()
        found = {*re.findall(r"custom_call @(\w+)", text)}
        found |= {*re.findall(r"tensor<\S*(?:\?|f64)\S*>", text)}
        operations = {*primitives(jax.make_jaxpr(step)(**given).jaxpr)}
        # A loop whose length depends on values, and calls of Python.
        found |= {op for op in operations if op == "while" or "callback" in op}
        if found:
            wrong[name] = found
    assert not wrong


def rounded(jaxpr, constants, bits, *arguments):
    """Evaluates a jaxpr with products of operands that have few bits of mantissa,
    unless they ask for the highest precision.
    """
    from jax import lax

    plain = (None, (lax.Precision.DEFAULT, lax.Precision.DEFAULT))
    values = dict(zip(jaxpr.constvars, constants, strict=True))
    values |= dict(zip(jaxpr.invars, arguments, strict=True))

    def read(variable):
        # Numbers are literals.
        return variable.val if hasattr(variable, "val") else values[variable]

    for equation in jaxpr.eqns:
        given, options = [read(v) for v in equation.invars], equation.params
        inner = options.get("jaxpr", options.get("call_jaxpr"))
        name = equation.primitive.name
        if name == "scan":
            split = options["num_consts"], options["num_carry"]
            how = {key: options[key] for key in ("length", "reverse")}
            outputs = scanned(inner, given, bits, *split, **how)
        elif inner is not None:
            closed = getattr(inner, "consts", ())
            outputs = rounded(getattr(inner, "jaxpr", inner), closed, bits, *given)
        else:
            if name == "dot_general" and options["precision"] in plain:
                given = [lax.reduce_precision(x, 8, bits) for x in given]
            outputs = equation.primitive.bind(*given, **options)
            if not equation.primitive.multiple_results:
                outputs = [outputs]
        values |= dict(zip(equation.outvars, outputs, strict=True))
    return [read(v) for v in jaxpr.outvars]


def scanned(body, given, bits, constants, carries, **how):
    from jax import lax

    kept, carry = given[:constants], given[constants : constants + carries]

    def step(carry, rows):
        outputs = rounded(body.jaxpr, body.consts, bits, *kept, *carry, *rows)
        return outputs[:carries], outputs[carries:]

    rows = given[constants + carries :]
    carry, rows = lax.scan(step, carry, rows, **how)
    return [*carry, *rows]


@on_jax
@pytest.mark.parametrize("bits", [10, 7], ids=["TF32", "bfloat16"])
def test_gradients_bear_rounded_products(bits):
    """GPUs round the operands of products to TF32 by default, TPUs to bfloat16."""
    import jax

    errors = {}
    losses = {name: step for name, step, _ in made("losses") if "-logits" in name}
    # Where kernels are narrow, logarithms of large size cancel.
    narrow = cases.LOSSES["kde_canonical"](bandwidth=1e-3, from_logits=True)
    losses["kde_narrow"] = functools.partial(cases.loss_of, narrow)
    for name, step in losses.items():
        given = cases.arrays("logits")
        z = given.pop("y_pred")
        gradient = jax.grad(lambda z, step=step, g=given: step(y_pred=z, **g))
        closed = jax.make_jaxpr(gradient)(z)
        (found,) = jax.jit(
            functools.partial(rounded, closed.jaxpr, closed.consts, bits)
        )(z)
        expected = jax.jit(gradient)(z)
        error = np.abs(found - expected).max() / np.abs(expected).max()
        if not error < 0.01:
            errors[name] = float(error)
    assert not errors


@on_tensorflow
@pytest.mark.parametrize("kind", ["losses", "metrics", "layers"])
def test_tensorflow_graphs_and_xla_equal_eager(kind):
    import tensorflow as tf

    for name, step, form in made_once(kind):
        given = {k: tf.convert_to_tensor(x) for k, x in cases.arrays(form).items()}

        def run(y_pred, step=step, **given):
            with tf.GradientTape() as tape:
                tape.watch(y_pred)
                value = step(y_pred=y_pred, **given)
            if kind != "losses":
                return value
            return value, tape.gradient(value, y_pred)

        results = []
        for call in (run, tf.function(run), tf.function(run, jit_compile=True)):
            if kind == "metrics":
                step.args[0].reset_state()
            results.append([numpy(x) for x in keras.tree.flatten(call(**given))])
        for found in results[1:]:
            for one, other in zip(found, results[0], strict=True):
                np.testing.assert_allclose(
                    one, other, rtol=1e-4, atol=1e-6, err_msg=name
                )


# Arithmetic that TensorFlow's GPU kernels do on the host if it is with int32.
ARITHMETIC = {
    "AddV2",
    "Sub",
    "Mul",
    "FloorDiv",
    "FloorMod",
    "Maximum",
    "Minimum",
    "Less",
    "LessEqual",
    "Greater",
    "GreaterEqual",
    "Equal",
    "NotEqual",
    "Sum",
    "Max",
    "Min",
    "Prod",
    "Cumsum",
    "Neg",
    "Abs",
    "SelectV2",
}
# What Keras's `take` does with indices, which may be negative, and its `cumsum`.
OF_KERAS = {"Less": 2, "AddV2": 2, "SelectV2": 2, "Maximum": 2, "GreaterEqual": 2}


def depends_on_data(op, seen):
    if op.type == "Placeholder":
        return True
    seen.add(op)
    return any(depends_on_data(x.op, seen) for x in op.inputs if x.op not in seen)


@on_tensorflow
@pytest.mark.parametrize("kind", ["losses", "metrics"])
def test_tensorflow_computes_no_int32_on_the_host(kind):
    import tensorflow as tf

    for name, step, form in made_once(kind):
        given = {k: tf.convert_to_tensor(x) for k, x in cases.arrays(form).items()}

        def run(y_pred, step=step, **given):
            with tf.GradientTape() as tape:
                tape.watch(y_pred)
                value = step(y_pred=y_pred, **given)
            return value if kind == "metrics" else tape.gradient(value, y_pred)

        graph = tf.function(run).get_concrete_function(**given).graph
        found = collections.Counter(
            op.type
            for op in graph.get_operations()
            if op.type in ARITHMETIC
            and all(x.dtype in (tf.int32, tf.bool) for x in op.inputs[:2])
            and any(x.dtype == tf.int32 for x in op.inputs)
            and depends_on_data(op, set())
        )
        plain = name in ("au-msp-logits", "aurc-msp-logits", "focal-logits")
        assert found <= collections.Counter({} if plain else OF_KERAS), name


METRICS = {**cases.RANKING_METRICS, **cases.METRICS}
LOSSES = {**cases.RANKING_LOSSES, **cases.LOSSES}


def fitted(policy, loss, metrics):
    """Returns the history of four steps under a dtype policy."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 8)).astype("float32")
    y = rng.integers(0, 5, 32)
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    try:
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(5)])
    finally:
        keras.config.set_dtype_policy("float32")
    optimizer = keras.optimizers.SGD(0.05)
    if policy == "mixed_float16":
        # With Keras's scale of 2¹⁵, gradients of large losses overflow, and the first
        # steps are skipped.
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=256)
    model.compile(
        optimizer,
        LOSSES[loss](from_logits=True),
        metrics=[METRICS[name](from_logits=True, name=name) for name in metrics],
    )
    return model.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0).history


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize(
    "loss", ["au", "aurc", "focal", "inverse_focal", "dual_focal", "kde_canonical"]
)
def test_fit_in_mixed_precision(policy, loss):
    """The first loss with all metrics, the others with one of each kind."""
    dtype = policy.removeprefix("mixed_")
    if not computes_in(dtype):
        pytest.skip(f"this machine does not compute in {dtype}")
    metrics = [*METRICS] if loss == "au" else ["ece", "aurc"]
    found, expected = (fitted(each, loss, metrics) for each in (policy, "float32"))
    # A logit that is rounded moves a sample to another bin or rank.
    assert found["loss"] == pytest.approx(expected["loss"], rel=0.05)
    for name in metrics:
        assert found[name] == pytest.approx(expected[name], abs=0.1), name
