"""Unknown inputs: AUROC, AUPR, FPR at a TPR, and selection in their presence."""

import numpy as np
import pytest
import reference
from backends import every_on_torch, numpy
from keras import ops
from real_data import load_logits
from scipy.special import digamma
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from keras_selcal import functional as F  # noqa: N812
from keras_selcal import metrics as M  # noqa: N812
from keras_selcal.csf import get
from keras_selcal.csf.names import BUILT_IN


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_and_infinity_have_no_score(rng, name, bad):
    logits, y = rng.normal(size=(24, 5)).astype("float32"), np.arange(24) % 5
    logits[3, 2] = bad
    assert np.isnan(F.aurc(y, logits, csf=name, from_logits=True))
    metric = M.AURC(csf=name, from_logits=True)
    metric.update_state(y, logits)
    assert np.isnan(float(metric.result()))
    with pytest.raises(ValueError, match="known"):
        F.ood_auroc(logits, logits[10:], csf=name, from_logits=True)


def make_logits(rng, n=400, m=150, k=5):
    y = rng.integers(0, k, n)
    known = 3 * np.eye(k)[y] + rng.normal(size=(n, k))
    return y, known.astype("float32"), rng.normal(size=(m, k)).astype("float32")


@pytest.mark.parametrize("decimals", [1, 12])
def test_areas_equal_those_of_scikit_learn(rng, decimals):
    known = rng.normal(1, 1, 300).round(decimals)
    unknown = rng.normal(0, 1, 200).round(decimals)
    is_known = np.repeat([1, 0], [300, 200])
    scores = np.concatenate([known, unknown])
    assert F.ood_auroc(known, unknown) == pytest.approx(roc_auc_score(is_known, scores))
    expected = average_precision_score(is_known, scores)
    assert F.ood_aupr(known, unknown) == pytest.approx(expected)
    expected = average_precision_score(1 - is_known, -scores)
    assert F.ood_aupr(known, unknown, positive="unknown") == pytest.approx(expected)
    fpr, tpr, _ = roc_curve(is_known, scores, drop_intermediate=False)
    for wanted in (0.5, 0.95, 1.0):
        expected = fpr[np.argmax(tpr >= wanted)]
        found = F.fpr_at_tpr(known, unknown, tpr=wanted)
        assert found == pytest.approx(expected)


def half_known():
    """Logits of a real network for the first half of CIFAR-100's classes, and which
    samples belong to it: the others are unknown to these outputs.
    """
    data = load_logits("mukhoti_cifar100_resnet50_logits.npz")
    is_known = data["test_labels"].ravel() < 50
    return data["test_logits"][:, :50].astype("float64"), is_known


@pytest.mark.parametrize("csf", ["msp", "max_logit", "energy"])
@pytest.mark.backend_free
def test_areas_of_a_real_network_equal_those_of_scikit_learn(csf):
    logits, is_known = half_known()
    if csf == "msp":
        scores = reference.score(reference.softmax(logits), csf)
    else:
        scores = reference.logit_score(logits, csf)
    given = (logits[is_known], logits[~is_known])
    options = {"csf": csf, "from_logits": True}
    found = F.ood_auroc(*given, **options)
    assert found == pytest.approx(roc_auc_score(is_known, scores), abs=1e-6)
    found = F.ood_aupr(*given, **options)
    expected = average_precision_score(is_known, scores)
    assert found == pytest.approx(expected, abs=1e-6)
    fpr, tpr, _ = roc_curve(is_known, scores, drop_intermediate=False)
    expected = fpr[np.argmax(tpr >= 0.95)]
    assert F.fpr_at_tpr(*given, **options) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("csf", "detector"),
    [("msp", "MaxSoftmax"), ("max_logit", "MaxLogit"), ("energy", "EnergyBased")],
)
@pytest.mark.backend_free
def test_areas_of_a_real_network_equal_those_of_pytorch_ood(csf, detector):
    ood, torch = pytest.importorskip("pytorch_ood"), pytest.importorskip("torch")
    logits, is_known = half_known()
    # Theirs are outlier scores, with unknown inputs as the positive class.
    theirs = getattr(ood.detector, detector).score(torch.from_numpy(logits))
    if csf == "msp":
        ours = reference.score(reference.softmax(logits), csf)
    else:
        ours = get(csf).scores(logits, np)
    np.testing.assert_allclose(theirs.numpy(), -ours, rtol=1e-9)
    labels = torch.from_numpy(is_known.astype("int64") - 1)
    given = (logits[is_known], logits[~is_known])
    options = {"csf": csf, "from_logits": True}
    f = ood.metrics.functional
    expected = float(f.auroc(theirs, labels))
    assert F.ood_auroc(*given, **options) == pytest.approx(expected, abs=1e-6)
    for positive, name in (("known", "id"), ("unknown", "ood")):
        found = F.ood_aupr(*given, positive=positive, **options)
        # Theirs is the trapezoidal area, ours the average precision.
        expected = float(f.aupr(theirs, labels, positive=name))
        assert found == pytest.approx(expected, abs=1e-3)
    expected = float(f.fpr_at_tpr(theirs, labels, 0.95))
    found = F.fpr_at_tpr(-ours[~is_known], -ours[is_known])
    assert found == pytest.approx(expected, abs=1e-9)


def scod_aurc(y, known, unknown, copies=1):
    """The mean of the selective risks of the mixture, one sample after the other."""
    scores = [*known.max(axis=-1), *np.repeat(unknown.max(axis=-1), copies)]
    wrong = [*(known.argmax(axis=-1) != y), *[1] * (copies * len(unknown))]
    ordered = np.array(wrong, "float64")[np.argsort(-np.array(scores), kind="stable")]
    return np.mean(np.cumsum(ordered) / np.arange(1, len(ordered) + 1))


def test_accepting_an_unknown_input_is_an_error(rng):
    y, known, unknown = make_logits(rng)
    p, q = reference.softmax(known), reference.softmax(unknown)
    expected = scod_aurc(y, p, q)
    assert F.scod_aurc(y, p, q) == pytest.approx(expected)
    found = F.scod_aurc(y, known, unknown, from_logits=True)
    assert found == pytest.approx(expected)
    # AUGRC by its definition: pairs of a wrong sample and one of lower rank.
    s = np.concatenate([p.max(axis=-1), q.max(axis=-1)])
    wrong = np.concatenate([p.argmax(axis=-1) != y, np.ones(len(q), bool)])
    below = (s < s[wrong][:, None]).sum() + 0.5 * wrong.sum()
    assert F.scod_augrc(y, p, q) == pytest.approx(below / len(s) ** 2)


def test_the_share_of_unknown_inputs_is_an_argument(rng):
    y, known, unknown = make_logits(rng, n=400, m=100)
    p, q = reference.softmax(known), reference.softmax(unknown)
    assert F.scod_aurc(y, p, q, share=0.2) == pytest.approx(F.scod_aurc(y, p, q))
    tripled = F.scod_aurc(y, p, np.tile(q, (3, 1)))
    assert F.scod_aurc(y, p, q, share=300 / 700) == pytest.approx(tripled)


def scod_areas(scores, losses, weights):
    """AURC and AUGRC of weighted samples by the formulas of the docstrings."""
    total = weights.sum()

    def harmonic(x):
        return digamma(x + 1) + np.euler_gamma

    def upto(r):
        return r - (total - r) * (harmonic(total) - harmonic(total - r))

    a = (weights * (scores < scores[:, None])).sum(axis=-1)
    b = a + (weights * (scores == scores[:, None])).sum(axis=-1)
    mean = (upto(b) - upto(a)) / (b - a)
    aurc = (weights * losses * mean).sum() / total
    return aurc, (weights * losses * (a + b) / 2).sum() / total**2


@pytest.mark.parametrize("share", [None, 1e-3, 0.3, 0.999])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_share_is_that_of_the_formula(rng, share, weighted):
    y, known, unknown = make_logits(rng, n=60, m=25)
    # Rounded, so that there are ties.
    p, q = (reference.softmax(z.astype("float64")).round(1) for z in (known, unknown))
    p, q = (x / x.sum(axis=-1, keepdims=True) for x in (p, q))
    w = rng.integers(1, 4, 60).astype("float64") if weighted else np.ones(60)
    u = 1.0 if share is None else share / (1 - share) * w.sum() / 25
    expected = scod_areas(
        np.concatenate([p.max(axis=-1), q.max(axis=-1)]),
        np.concatenate([p.argmax(axis=-1) != y, np.ones(25)]),
        np.concatenate([w, np.full(25, u)]),
    )
    given = {"share": share, "sample_weight": w if weighted else None}
    found = F.scod_aurc(y, p, q, **given), F.scod_augrc(y, p, q, **given)
    assert found == pytest.approx(expected, rel=1e-9)
    # As a share tends to 0 or 1, the area tends to that of one kind alone.
    if share == 1e-3 and not weighted:
        assert found[0] == pytest.approx(F.aurc(y, p), abs=5e-3)
    if share == 0.999:
        assert found[0] > 0.99


STREAMING = {
    "auroc": (M.OODAUROC(from_logits=True), F.ood_auroc),
    "aupr": (M.OODAUPR(from_logits=True), F.ood_aupr),
    "fpr": (M.FPRAtTPR(from_logits=True, num_cells=2**18), F.fpr_at_tpr),
    "aurc": (M.SCODAURC(from_logits=True), F.scod_aurc),
    "aurc of a share": (M.SCODAURC(from_logits=True, share=0.4), F.scod_aurc),
    "augrc": (M.SCODAUGRC(from_logits=True), F.scod_augrc),
}


@pytest.mark.parametrize(
    ("name", "csf"),
    [
        *((name, "msp") for name in STREAMING),
        *((name, "energy") for name in every_on_torch(STREAMING, ["auroc", "aurc"])),
    ],
)
def test_streaming_metrics_equal_the_functions(rng, name, csf):
    metric, function = STREAMING[name]
    y, known, unknown = make_logits(rng, n=33, m=15)
    config = metric.get_config()
    metric = type(metric).from_config({**config, "csf": csf})
    order = rng.permutation(48)
    labels = np.concatenate([y, np.full(15, -1)])[order]
    logits = np.concatenate([known, unknown])[order]
    for rows in (slice(0, 24), slice(24, 48)):
        metric.update_state(labels[rows], logits[rows])
    options = {"csf": csf, "from_logits": True}
    if config.get("share"):
        options["share"] = config["share"]
    takes_labels = function in (F.scod_aurc, F.scod_augrc)
    data = (y, known, unknown) if takes_labels else (known, unknown)
    expected = function(*data, **options)
    found = float(metric.result())
    assert found == pytest.approx(expected, abs=2e-3)
    # Samples of weight 0 do not count, whatever they hold.
    metric.update_state(np.full(24, 7), logits[:24], np.zeros(24))
    assert float(metric.result()) == pytest.approx(found, abs=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: F.ood_auroc([0.5], []), "unknown"),
        (lambda: F.ood_auroc([0.5, np.nan], [0.5]), "known"),
        (lambda: F.ood_auroc([[3.0, -1.0]], [[0.5, 0.5]]), "known"),
        (lambda: F.ood_auroc([0.5], ["0.5"]), "unknown"),
        (lambda: F.ood_auroc([[0.2, 0.3, 0.5]], [[0.5, 0.5]]), "unknown"),
        (lambda: F.ood_aupr([0.5], [0.5], positive="both"), "positive"),
        (lambda: F.fpr_at_tpr([0.5], [0.5], tpr=0), "tpr"),
        (lambda: F.scod_aurc([0], [[0.5, 0.5]], [[0.2, 0.3, 0.5]]), "unknown"),
        (lambda: F.scod_aurc([0], [[0.2, 0.3, 0.5]], [[0.5, 0.5]]), "unknown"),
        (lambda: F.scod_aurc([0], [[0.5, 0.5]], [[0.5, 0.5]], share=1), "share"),
        (lambda: M.OODAUROC(multi_label=True), "multi_label"),
        (lambda: M.SCODAURC(share=0), "share"),
        (lambda: M.SCODAURC().update_state([[1, 0]], [[0.5, 0.5]]), "y_true"),
        (lambda: M.OODAUROC().update_state([0], [[0.5, 0.5]], [-1]), "sample_weight"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=f"`{message}` must be"):
        call()


@pytest.mark.parametrize("shape", [(24,), (24, 1)])
def test_weights_of_either_shape_count_copies(rng, shape):
    y, known, unknown = make_logits(rng, n=18, m=6)
    labels, logits = np.append(y, [-1] * 6), np.append(known, unknown, axis=0)
    weight = rng.permutation(np.repeat([1, 2, 3], 8))
    metrics = [M.SCODAURC(share=0.3, from_logits=True) for _ in range(2)]
    metrics[0].update_state(labels, logits, weight.reshape(shape))
    # The 48 copies in two batches.
    for rows in np.split(np.repeat(np.arange(24), weight), 2):
        metrics[1].update_state(labels[rows], logits[rows])
    found, expected = (float(metric.result()) for metric in metrics)
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", [M.OODAUROC, M.OODAUPR, M.FPRAtTPR, M.SCODAURC])
@pytest.mark.parametrize("ignored", every_on_torch([0, 1], [1]))
def test_ignoring_a_class_keeps_unknown_inputs(rng, kind, ignored):
    _, known, unknown = make_logits(rng, n=20, m=8)
    # Four of each class: 24 rows are left.
    labels = np.concatenate([np.arange(20) % 5, np.full(8, -1)])
    logits = np.concatenate([known, unknown])
    expected, found = (
        kind(from_logits=True),
        kind(from_logits=True, ignore_class=ignored),
    )
    expected.update_state(labels[labels != ignored], logits[labels != ignored])
    found.update_state(labels, logits)
    assert float(found.result()) == pytest.approx(float(expected.result()), abs=1e-6)


@pytest.mark.parametrize("label", [0, -1])
def test_one_kind_alone_has_no_share(label):
    for metric, expected in ((M.SCODAURC(share=0.2), np.nan), (M.OODAUROC(), np.nan)):
        metric.update_state(np.full(2, label), np.full((2, 2), 0.5))
        assert float(metric.result()) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("dtype", ["uint8", "bool"])
def test_labels_without_a_sign_are_known(dtype):
    metric = M.OODAUROC()
    y = ops.cast(ops.convert_to_tensor([0, 1]), dtype)
    metric.update_state(y, ops.convert_to_tensor([[0.9, 0.1], [0.2, 0.8]]))
    assert float(numpy(metric.variables[-1])[0, 0]) == 0.0
    if dtype == "uint8":
        y = ops.cast(ops.convert_to_tensor([0, 255]), dtype)
        metric.update_state(y, ops.convert_to_tensor([[0.9, 0.1], [0.2, 0.8]]))
        assert np.isnan(float(numpy(metric.result())))


def test_one_column_holds_predictions_and_no_column_scores():
    rng = np.random.default_rng(3)
    known, unknown = rng.normal(size=(40, 1)), rng.normal(size=(30, 1))
    pair = [np.concatenate([0 * z, z], axis=1) for z in (known, unknown)]
    expected = F.ood_auroc(*pair, from_logits=True)
    assert F.ood_auroc(known, unknown, from_logits=True) == pytest.approx(expected)
    with pytest.raises(ValueError, match=r"`known` must be of shape \(n, 1\)"):
        F.ood_auroc(known[:, 0], unknown[:, 0], from_logits=True)
