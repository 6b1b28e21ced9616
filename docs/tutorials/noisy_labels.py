# %% [markdown]
# # Noisy labels
#
# 20 % of the training labels are drawn at random. This tutorial trains the same network with four
# losses, and compares their accuracy and calibration on clean labels.

# %%
import os

import keras
import numpy as np
from sklearn.datasets import load_digits

from keras_selcal import (
    AULoss,
    CalibrationReport,
    DualFocalLoss,
    FocalLoss,
    TemperatureScaling,
    plots,
)

# The tests set this, to run the script in seconds.
EPOCHS = 3 if os.environ.get("KERAS_SELCAL_QUICK") else 40

rng = np.random.default_rng(0)
x, y = load_digits(return_X_y=True)
order = rng.permutation(len(y))
x, y = x[order].astype("float32") / 16, y[order]
train, fit, test = slice(0, 900), slice(900, 1200), slice(1200, None)
noisy = np.where(rng.random(900) < 0.2, rng.integers(0, 10, 900), y[train])

# %% [markdown]
# ## Train

# %%
losses = {
    "cross-entropy": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    "focal": FocalLoss(gamma=2.0, from_logits=True),
    "dual focal": DualFocalLoss(from_logits=True),
    "AU": AULoss(from_logits=True),
}
logits = {}
for name, loss in losses.items():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(64, "relu"), keras.layers.Dense(10)])
    model.compile("adam", loss)
    model.fit(x[train], noisy, epochs=EPOCHS, batch_size=64, verbose=0)
    logits[name] = model.predict(x, verbose=0)

# %% [markdown]
# ## Compare
#
# One seed of one small network decides nothing about the losses; the
# [study](../study.md) repeats it. Look at the 95 % intervals.

# %%
reports = [
    CalibrationReport(y[test], z[test], from_logits=True, name=name, bootstrap=200)
    for name, z in logits.items()
]
for report in reports:
    print(f"{report.name:14} accuracy {report['accuracy']}  ECE {report['ece']}")

# %% [markdown]
# The networks are *under*confident on clean labels: they have learned that a fifth of the
# labels cannot be predicted. The focal losses, which lower the confidence of every network,
# make this worse.

# %%
shown = {name: logits[name][test] for name in ("cross-entropy", "dual focal", "AU")}
plots.reliability_diagram(y[test], shown, from_logits=True)

# %% [markdown]
# ## Correct it
#
# Temperature scaling does so, if a few hundred clean labels are at hand. A temperature
# below 1 raises the confidence.

# %%
for name, z in logits.items():
    calibrator = TemperatureScaling().fit(z[fit], y[fit])
    report = CalibrationReport(y[test], calibrator.predict_proba(z[test]), bootstrap=0)
    print(f"{name:14} T = {calibrator.temperature:.2f}  ECE {report['ece']}")
print(reports[0].to_html("noisy_labels.html", others=reports[1:]))
