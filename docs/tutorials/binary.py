# %% [markdown]
# # Is my binary classifier calibrated?
#
# A network states the probability that a breast tumour is benign. Is it right as often as
# it states? This tutorial measures that, corrects it, and shows what a few hundred samples
# can and cannot tell.

# %%
import os

import keras
import numpy as np
from sklearn.datasets import load_breast_cancer

from keras_selcal import CalibrationReport, TemperatureScaling, functional, plots

# The tests set this, to run the script in seconds.
EPOCHS = 5 if os.environ.get("KERAS_SELCAL_QUICK") else 200

keras.utils.set_random_seed(0)
x, y = load_breast_cancer(return_X_y=True)
order = np.random.default_rng(0).permutation(len(y))
x, y = x[order].astype("float32"), y[order]
x = (x - x[:100].mean(axis=0)) / x[:100].std(axis=0)
train, fit, test = slice(0, 100), slice(100, 250), slice(250, None)

# %% [markdown]
# ## Train
#
# One sigmoid unit, trained for a long time on 100 samples. The setting was chosen to
# overfit, to leave something to calibrate:

# %%
model = keras.Sequential([keras.layers.Dense(64, "relu"), keras.layers.Dense(1)])
loss = keras.losses.BinaryCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(0.01), loss)
model.fit(x[train], y[train], epochs=EPOCHS, verbose=0)
logits = model.predict(x, verbose=0)[:, 0]

# %% [markdown]
# ## Measure
#
# `kind="positive"` compares the probability of class 1 with the frequency of class 1. The
# default compares the confidence in the predicted class with its accuracy. The negative
# log-likelihood (NLL) punishes confident mistakes most.


# %%
def show(name, outputs, from_logits):
    ece = functional.ece(y[test], outputs, kind="positive", from_logits=from_logits)
    nll = functional.nll(y[test], outputs, from_logits=from_logits)
    print(f"{name:7} positive-class ECE {100 * ece:.1f} points, NLL {nll:.3f}")


accuracy = ((logits[test] > 0) == y[test]).mean()
print(f"accuracy {100 * accuracy:.1f} %")
show("before:", logits[test], from_logits=True)

# %% [markdown]
# ## Calibrate
#
# Temperature scaling divides the logits by one number, fitted on samples that the network
# has not seen. A temperature above 1 means that the network was overconfident.

# %%
calibrator = TemperatureScaling().fit(logits[fit], y[fit])
after = calibrator.predict_proba(logits[test])
print(calibrator)
show("after:", after, from_logits=False)

# %%
before = 1 / (1 + np.exp(-logits[test].astype("float64")))
plots.reliability_diagram(y[test], {"before": before, "after": after}, kind="positive")

# %% [markdown]
# ## Is the difference real?
#
# The report compares both on the same resamples of the test samples. Where the interval of
# a difference contains 0, these samples cannot tell. Here NLL and ECE may disagree: a
# perfectly calibrated classifier would also show an ECE of a few points on so few samples,
# while one mistake that was made with 99.99 % confidence costs much NLL.

# %%
reports = [
    CalibrationReport(y[test], p, name=name, bootstrap=300)
    for name, p in (("before", before), ("after", after))
]
print(reports[1].compare(reports[0]))
print(reports[1].to_html("binary.html", others=reports[0]))
