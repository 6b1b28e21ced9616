"""Every loss by name, its formula in float64, and logits to compute it on."""

import numpy as np
import reference

from keras_selcal import (
    AULoss,
    AURCLoss,
    DualFocalLoss,
    FocalLoss,
    InverseFocalLoss,
    KDECrossentropy,
)


def data(n, k, seed=0, scale=2.0):
    """Logits and labels; the truth is likelier where the logit is larger.

    Where the size does not matter it is (24, 5): JAX compiles every operation for each
    shape.
    """
    rng = np.random.default_rng([seed, n, k])
    logits = rng.normal(size=(n, k), scale=scale).astype("float32")
    labels = (logits + rng.gumbel(size=(n, k))).argmax(-1)
    return logits, labels


def au(csf, smoothing=2.0, **options):
    def values(p, log_p, log_p_y, y):
        u = reference.unit_score(p, csf)
        return reference.au_weights(u, smoothing=smoothing, **options) * -log_p_y

    return values


def aurc(csf, estimator):
    def values(p, log_p, log_p_y, y):
        s = reference.score(p, csf)
        # Scores that differ by less than float32 resolves are ties there.
        return reference.aurc_weights(s.astype("float32"), estimator) * -log_p_y

    return values


def au_brier(p, log_p, log_p_y, y):
    brier = np.sum((p - np.eye(p.shape[-1])[y]) ** 2, -1)
    u = reference.unit_score(p, "msp")
    return reference.au_weights(u, smoothing=2.0) * brier


def kde(kind, h=0.1, kde_weight=0.3, exponent=1):
    def values(p, log_p, log_p_y, y):
        errors = reference.kde_errors(p, log_p, y, kind, h, exponent)
        return kde_weight * errors - log_p_y

    return values


def focal_53(p, log_p, log_p_y, y):
    p_y = np.exp(log_p_y)
    return -((1 - p_y) ** np.where(p_y < 0.2, 5, 3)) * log_p_y


def dual(p_j, gamma=3.0):
    def values(p, log_p, log_p_y, y):
        return -((1 - np.exp(log_p_y) + p_j(p, y)) ** gamma) * log_p_y

    return values


CASES = {
    "au_msp": (AULoss, {}, au("msp")),
    "au_margin": (AULoss, {"csf": "margin"}, au("margin")),
    "au_neg_entropy": (AULoss, {"csf": "neg_entropy"}, au("neg_entropy")),
    "au_options": (
        AULoss,
        {"quantile": 0.4, "num_bins": 20, "smoothing": 0.02},
        au("msp", quantile=0.4, num_bins=20, smoothing=0.02),
    ),
    "au_threshold": (AULoss, {"threshold": 0.6}, au("msp", tau=0.6)),
    "au_brier": (AULoss, {"base_loss": "brier"}, au_brier),
    "aurc": (AURCLoss, {}, aurc("msp", "harmonic")),
    "aurc_log": (
        AURCLoss,
        {"csf": "margin", "estimator": "log"},
        aurc("margin", "log"),
    ),
    "focal": (
        FocalLoss,
        {"gamma": 2.0},
        lambda p, log_p, log_p_y, y: -((1 - np.exp(log_p_y)) ** 2) * log_p_y,
    ),
    "focal_53": (FocalLoss, {"gamma": "53"}, focal_53),
    "inverse_focal": (
        InverseFocalLoss,
        {"gamma": 2.5},
        lambda p, log_p, log_p_y, y: -((1 + np.exp(log_p_y)) ** 2.5) * log_p_y,
    ),
    "dual": (
        DualFocalLoss,
        {"gamma": 3.0},
        dual(reference.largest_other),
    ),
    "kde_canonical": (KDECrossentropy, {}, kde("canonical")),
    "kde_top_label": (
        KDECrossentropy,
        {"kind": "top_label", "bandwidth": 0.02, "block_size": 50},
        kde("top_label", 0.02),
    ),
    "kde_marginal": (
        KDECrossentropy,
        {"kind": "marginal", "exponent": 2, "kde_weight": 2.0},
        kde("marginal", kde_weight=2.0, exponent=2),
    ),
}

# The first case of each class.
FIRST = ["au_msp", "aurc", "focal", "inverse_focal", "dual", "kde_canonical"]
CLASSES = {
    "au_loss": AULoss,
    "aurc_loss": AURCLoss,
    "focal_loss": FocalLoss,
    "inverse_focal_loss": InverseFocalLoss,
    "dual_focal_loss": DualFocalLoss,
    "kde_crossentropy": KDECrossentropy,
}


def expected_values(case, logits, labels):
    log_p = reference.log_softmax(logits)
    log_p_y = log_p[np.arange(len(labels)), labels]
    return CASES[case][2](np.exp(log_p), log_p, log_p_y, labels)
