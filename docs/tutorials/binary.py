# %% [markdown]
# # Is my binary classifier calibrated?
#
# A classifier of breast tumours states the probability that a tumour is benign. Is it right
# as often as it states? This tutorial measures that, corrects it, and shows what remains
# uncertain with a few hundred samples.

# %%
import keras
import numpy as np
from sklearn.datasets import load_breast_cancer

from keras_selcal import CalibrationReport, TemperatureScaling, functional

keras.utils.set_random_seed(0)
x, y = load_breast_cancer(return_X_y=True)
order = np.random.default_rng(0).permutation(len(y))
x, y = x[order].astype("float32"), y[order]
x = (x - x[:200].mean(axis=0)) / x[:200].std(axis=0)
train, fit, test = slice(0, 200), slice(200, 350), slice(350, None)

# %% [markdown]
# One sigmoid unit, trained for too long on few samples:

# %%
model = keras.Sequential([keras.layers.Dense(64, "relu"), keras.layers.Dense(1)])
model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True))
model.fit(x[train], y[train], epochs=60, verbose=0)
logits = model.predict(x, verbose=0)[:, 0]

# %% [markdown]
# The probability of class 1 is compared with its frequency by `kind="positive"`; the
# default is about the predicted class.

# %%
before = 1 / (1 + np.exp(-logits[test]))
print("positive-class ECE:", functional.ece(y[test], before, kind="positive"))
print("top-label ECE:     ", functional.ece(y[test], before))
print("log-likelihood:    ", -functional.nll(y[test], before))

# %% [markdown]
# ## Calibrate
#
# Temperature scaling divides the logit by one number, fitted on samples that the network
# has not seen.

# %%
calibrator = TemperatureScaling().fit(logits[fit], y[fit])
after = calibrator.predict_proba(logits[test])
print(calibrator)
print("log-likelihood:    ", -functional.nll(y[test], after))

# %% [markdown]
# ## Is the difference real?
#
# The report compares both on the same resamples of the test samples. Where the interval of
# a difference contains 0, these samples cannot tell. With two hundred of them, an ECE of
# some points is what a perfectly calibrated classifier would show by chance, and the page
# says so.

# %%
reports = [
    CalibrationReport(y[test], p, name=name, bootstrap=300)
    for name, p in (("before", before), ("after", after))
]
print(reports[1].compare(reports[0]))
print(reports[1].to_html("binary.html", others=reports[0]))
