"""The paper's formulas in float64 NumPy, written independently of the library."""

import numpy as np
from scipy.special import expit, gammaln, logsumexp


def softmax(z):
    z = np.asarray(z, "float64")
    return np.exp(z - logsumexp(z, axis=-1, keepdims=True))


def log_softmax(z):
    z = np.asarray(z, "float64")
    return z - logsumexp(z, axis=-1, keepdims=True)


def score(p, csf):
    ordered = np.sort(p, axis=-1)
    if csf == "msp":
        return ordered[..., -1]
    if csf == "margin":
        return ordered[..., -1] - ordered[..., -2]
    if csf == "doctor":
        return np.sum(p * p, axis=-1)
    if csf == "gen":
        return (
            -np.sum((p * (1 - p))[np.argsort(p)[-100:]] ** 0.1, axis=-1)
            if (p.ndim == 1)
            else np.array([score(row, csf) for row in p])
        )
    return np.sum(p * np.log(np.where(p > 0, p, 1.0)), axis=-1)


def logit_score(z, csf, p=4):
    z = np.asarray(z, "float64")
    if csf == "max_logit":
        return z.max(axis=-1)
    if csf == "energy":
        return logsumexp(z, axis=-1)
    z = z - z.mean(axis=-1, keepdims=True)
    return z.max(axis=-1) / np.linalg.norm(z, p, axis=-1)


def unit_score(p, csf):
    s = score(p, csf)
    return 1 + s / np.log(p.shape[-1]) if csf == "neg_entropy" else s


def soft_cdf(u, at, num_bins=64, smoothing=0.1):
    n = len(u)
    h = np.bincount(
        np.minimum((u * num_bins).astype(int), num_bins - 1), None, num_bins
    )
    c = (np.arange(num_bins) + 0.5) / num_bins
    t = np.clip((np.asarray(at)[..., None] - c) / smoothing, -700, 700)
    return np.minimum((h / (1 + np.exp(-t))).sum(-1) / n, n / (n + 1))


def soft_cdf_slope(u, at, num_bins=64, smoothing=0.1):
    n = len(u)
    h = np.bincount(
        np.minimum((u * num_bins).astype(int), num_bins - 1), None, num_bins
    )
    c = (np.arange(num_bins) + 0.5) / num_bins
    t = np.clip((np.asarray(at)[..., None] - c) / smoothing, -350, 350)
    return (h / (2 + np.exp(-t) + np.exp(t))).sum(-1) / (n * smoothing)


def au_weights(u, quantile=0.75, tau=None, num_bins=64, smoothing=0.1):
    tau = np.quantile(u, quantile) if tau is None else tau
    at = np.where(u < tau, u, tau)
    cdf = soft_cdf(u, at, num_bins, smoothing)
    return -np.log1p(-cdf) / soft_cdf(u, tau, num_bins, smoothing)


def whole_au(u, losses, below, c, num_bins=64, smoothing=0.1):
    """(1/n) Σ β ℓ with counts that share each score between the two nearest centres; τ,
    C and the weights of samples that are not `below` τ are constants."""
    n = len(u)
    centers = (np.arange(num_bins) + 0.5) / num_bins
    near = np.maximum(1 - np.abs(u[:, None] - centers) * num_bins, 0)
    near[u <= centers[0]] = np.eye(num_bins)[0]
    near[u >= centers[-1]] = np.eye(num_bins)[-1]
    steps = expit((u[:, None] - centers) / smoothing)
    cdf = np.minimum(steps @ near.sum(0) / n, n / (n + 1))
    return np.sum(np.where(below, -c * np.log1p(-cdf) * losses, 0)) / n


def aurc_weights(s, estimator="harmonic"):
    """Ranks by a stable sort; ties share the mean."""
    n = len(s)
    r = np.empty(n, int)
    r[np.argsort(s, kind="stable")] = np.arange(1, n + 1)
    if estimator == "log":
        alpha = -np.log1p(-r / (n + 1))
    else:
        harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, n + 1))])
        alpha = harmonic[n] - harmonic[n - r]
    _, group = np.unique(s, return_inverse=True)
    return (np.bincount(group, alpha) / np.bincount(group))[group]


def largest_other(p, y):
    others = p.copy()
    others[np.arange(len(p)), y] = -1
    return others.max(-1)


def kde_errors(p, log_p, y, kind, h, exponent=1):
    """|Ê[y | p_j] − p_j|, leave-one-out, by explicit Dirichlet densities; y holds class
    indices or distributions."""
    n, k = p.shape
    if n == 1:
        return np.zeros(1)
    onehot = np.eye(k)[y] if np.ndim(y) == 1 else y
    if kind == "canonical":
        log_kernel = log_p @ (p / h).T + gammaln(k + 1 / h)
        log_kernel -= gammaln(p / h + 1).sum(-1)
        return (np.abs(_regress(log_kernel, onehot) - p) ** exponent).sum(-1)
    if kind == "top_label":
        right = onehot[np.arange(n), p.argmax(-1)]
        return _beta_errors(p.max(-1), right, h, exponent)
    return np.mean(
        [_beta_errors(p[:, c], onehot[:, c], h, exponent) for c in range(k)], 0
    )


def _beta_errors(p, y, h, exponent):
    a, b = p / h + 1, (1 - p) / h + 1
    q = np.maximum(1 - p, 1e-37)
    log_kernel = (a - 1) * np.log(np.maximum(p, 1e-37))[:, None]
    log_kernel += (
        (b - 1) * np.log(q)[:, None] + gammaln(a + b) - gammaln(a) - gammaln(b)
    )
    return np.abs(_regress(log_kernel, y[:, None])[:, 0] - p) ** exponent


def _regress(log_kernel, labels):
    log_kernel = log_kernel.copy()
    np.fill_diagonal(log_kernel, -np.inf)
    weight = np.exp(log_kernel - log_kernel.max(-1, keepdims=True))
    return weight @ labels / weight.sum(-1, keepdims=True)
