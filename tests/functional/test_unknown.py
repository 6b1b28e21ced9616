"""Unknown inputs: AUROC, AUPR, FPR at a TPR, and selection in their presence."""

import numpy as np
import pytest
import reference
from metric_data import known_and_unknown
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
    y, known, unknown = known_and_unknown(rng)
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
    y, known, unknown = known_and_unknown(rng, n=400, m=100)
    p, q = reference.softmax(known), reference.softmax(unknown)
    assert F.scod_aurc(y, p, q, unknown_share=0.2) == pytest.approx(
        F.scod_aurc(y, p, q)
    )
    tripled = F.scod_aurc(y, p, np.tile(q, (3, 1)))
    assert F.scod_aurc(y, p, q, unknown_share=300 / 700) == pytest.approx(tripled)


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
    y, known, unknown = known_and_unknown(rng, n=60, m=25)
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
    given = {"unknown_share": share, "sample_weight": w if weighted else None}
    found = F.scod_aurc(y, p, q, **given), F.scod_augrc(y, p, q, **given)
    assert found == pytest.approx(expected, rel=1e-9)
    # As a share tends to 0 or 1, the area tends to that of one kind alone.
    if share == 1e-3 and not weighted:
        assert found[0] == pytest.approx(F.aurc(y, p), abs=5e-3)
    if share == 0.999:
        assert found[0] > 0.99


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
        (
            lambda: F.scod_aurc([0], [[0.5, 0.5]], [[0.5, 0.5]], unknown_share=1),
            "unknown_share",
        ),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=f"`{message}` must be"):
        call()


def test_one_column_holds_predictions_and_no_column_scores():
    rng = np.random.default_rng(3)
    known, unknown = rng.normal(size=(40, 1)), rng.normal(size=(30, 1))
    pair = [np.concatenate([0 * z, z], axis=1) for z in (known, unknown)]
    expected = F.ood_auroc(*pair, from_logits=True)
    assert F.ood_auroc(known, unknown, from_logits=True) == pytest.approx(expected)
    with pytest.raises(ValueError, match=r"`known` must be of shape \(n, 1\)"):
        F.ood_auroc(known[:, 0], unknown[:, 0], from_logits=True)
