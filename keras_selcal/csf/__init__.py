"""Confidence score functions (CSFs).

A CSF g maps probabilities or logits of shape (..., k) to scores of shape (...); a
larger score means higher confidence. Each CSF has a support [lo, hi], with which the
soft CDF scales scores of every kind and every k to [0, 1].

| name                | g                                            | support     |
|---------------------|----------------------------------------------|-------------|
| `"msp"`             | max p                                        | [0, 1]      |
| `"margin"`          | largest p − second largest p                 | [0, 1]      |
| `"neg_entropy"`     | Σ p ln p                                     | [−ln k, 0]  |
| `"doctor"`          | Σ p²                                         | [1/k, 1]    |
| `"gen"`             | −Σ (p (1 − p))^0.1, over the largest 100 p   | [−k^0.9, 0] |
| `"max_logit"`       | max z                                        | unbounded   |
| `"energy"`          | ln Σ exp z                                   | unbounded   |
| `"max_logit_pnorm"` | max z̃ / ‖z̃‖_p, z̃ = z − mean z               | [0, 1]      |

The last three need logits z, that is `from_logits=True`, and raise ValueError without
them. `choose` finds the best of them all on held-out data. The support of `"gen"` is
[−m (1/m (1 − 1/m))^0.1, 0] with m = min(k, 100). Losses see an unbounded score as s/(4
+ |s|), and streaming metrics have cells that are uniform on this scale, so they
distinguish scores above about 100 only roughly: subtract the mean logit of a network
if its logits have a large common offset. Functions are exact. Use `"msp"` for one
sigmoid unit and independent labels: of their logits (0, z), `"max_logit"` and
`"energy"` see one side only, and `choose` leaves them out. `"max_logit_pnorm"` is
constant for two classes, and raises ValueError; it is constant, too, for rows in which
masks (−∞) leave two classes.

The argument `csf=` of this library takes one of these names, one of these objects, or
any callable:

```python
@keras.saving.register_keras_serializable("mine")
def collision(probabilities):
    return keras.ops.sum(probabilities**2, axis=-1)

collision.support = lambda num_classes: (1 / num_classes, 1.0)
loss = keras_selcal.AULoss(csf=collision)
```

`support` is a pair, a function of the number of classes that returns one, or None for
a score that is not bounded, and defaults to [0, 1]. Scores outside the support count as
its nearer end. A callable with the attribute `needs = "logits"` gets logits.

References:
- Hendrycks & Gimpel, [A Baseline for Detecting Misclassified and
  Out-of-Distribution Examples in Neural Networks](https://arxiv.org/abs/1610.02136)
- Belghazi & Lopez-Paz, [What classifiers know what they
  don't?](https://arxiv.org/abs/2107.06217)
- Granese et al., [DOCTOR: A Simple Method for Detecting Misclassification
  Errors](https://arxiv.org/abs/2106.02395)
- Liu et al., GEN: Pushing the Limits of Softmax-Based Out-of-Distribution Detection,
  CVPR 2023
- Hendrycks et al., [Scaling Out-of-Distribution Detection for Real-World
  Settings](https://arxiv.org/abs/1911.11132) (MaxLogit)
- Liu et al., [Energy-based Out-of-distribution
  Detection](https://arxiv.org/abs/2010.03759)
- Cattelan & Silva, [How to Fix a Broken Confidence
  Estimator](https://arxiv.org/abs/2305.15508) (MaxLogit with p-norm)
"""

from keras_selcal.csf.choice import Choice, choose, compare
from keras_selcal.csf.logits import MaxLogitPNorm, energy, max_logit, max_logit_pnorm
from keras_selcal.csf.names import get, name_of
from keras_selcal.csf.probabilities import doctor, gen, margin, msp, neg_entropy
from keras_selcal.csf.score import ConfidenceScore

__all__ = [
    "Choice",
    "ConfidenceScore",
    "MaxLogitPNorm",
    "choose",
    "compare",
    "doctor",
    "energy",
    "gen",
    "get",
    "margin",
    "max_logit",
    "max_logit_pnorm",
    "msp",
    "name_of",
    "neg_entropy",
]
