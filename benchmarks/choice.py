"""Whether `AutoCalibration` and a floor of the probabilities pay.

    python -m benchmarks.choice

Predictions of real models, split at random into samples to fit on, 200 to 5,000, and
the rest to test on. The bar, set before any figure was seen. Log loss (NLL) in nats;
"gain" is the log loss of temperature scaling minus another calibrator's.

`AutoCalibration`:

1. Safe: on every bed and size, its mean log loss over the draws is at most 0.003 above
   temperature scaling's, and at most 0.003 above the uncalibrated model's.
2. Useful: over all beds and sizes, its mean gain is at least 60 % of the mean gain of
   the best candidate in hindsight (the identity among them).
3. Its mean log loss over all beds and sizes is lower than every single candidate's.
4. A candidate stays in the default list if leaving it out raises the mean log loss.

A floor, p = (1 − ε) softmax(z/T) + ε u, with u uniform or the frequencies of the fitting
labels, and T and ε of the least log loss: it becomes an option of the scaling family if,
against the same calibrator without it,

5. under shift (fitted on clean samples, tested on others: corrupted images, another
   part of the population) the log loss falls by 5 % on average over the beds, and rises
   on none by more than 0.5 %;
6. without shift it rises on none by more than 0.5 %.
"""
