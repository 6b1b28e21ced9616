# %% [markdown]
# # Fine-tune and calibrate a vision model
#
# A convolutional network is pretrained on one task (digits 0 to 4), fine-tuned on another
# (digits 5 to 9) with 150 images, calibrated, and saved as one model. The images are so
# small that all of it takes seconds. For your own photographs, use a network of
# `keras.applications` with ImageNet weights as `features`; nothing else changes.

# %%
import os

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.utils import shuffle

from keras_selcal import AULoss, CalibrationReport, TemperatureScaling, plots

# The tests set this, to run the script in seconds.
EPOCHS = 2 if os.environ.get("KERAS_SELCAL_QUICK") else 20

keras.utils.set_random_seed(0)
images, y = shuffle(*load_digits(return_X_y=True), random_state=0)
images = images.reshape(-1, 8, 8, 1).astype("float32") / 16
old, new = y < 5, y >= 5
old_images, old_labels = images[old], y[old]
x, y = images[new], y[new] - 5
train, fit, test = slice(0, 150), slice(150, 400), slice(400, None)

# %% [markdown]
# ## Pretrain, and fine-tune on 150 images

# %%
layers = keras.layers
features = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        layers.Conv2D(16, 3, activation="relu"),
        layers.Conv2D(32, 3, activation="relu"),
        layers.GlobalAveragePooling2D(),
    ]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
pretrained = keras.Sequential([features, layers.Dense(5)])
pretrained.compile("adam", loss)
pretrained.fit(old_images, old_labels, epochs=EPOCHS, verbose=0)

model = keras.Sequential([features, layers.Dense(5)])
model.compile(keras.optimizers.Adam(0.003), loss)
model.fit(x[train], y[train], epochs=2 * EPOCHS, verbose=0)

# %% [markdown]
# ## Calibrate
#
# Two ways: temperature scaling on held-out images, or a few more epochs with a calibrating
# loss (the paper's post-hoc use of AU), which needs no held-out images.

# %%
calibrator = TemperatureScaling().fit_model(model, x[fit], y[fit], verbose=0)
calibrated = calibrator.wrap(model)
tuned = keras.models.clone_model(model)
tuned.set_weights(model.get_weights())
tuned.compile(keras.optimizers.SGD(1e-4, momentum=0.9), AULoss(from_logits=True))
tuned.fit(x[train], y[train], epochs=2, verbose=0)

outputs = {
    "as trained": (model.predict(x[test], verbose=0), True),
    "temperature scaling": (calibrated.predict(x[test], verbose=0), False),
    "fine-tuned with AU": (tuned.predict(x[test], verbose=0), True),
}
reports = [
    CalibrationReport(y[test], z, from_logits=logits, name=name, bootstrap=200)
    for name, (z, logits) in outputs.items()
]
for report in reports:
    print(f"{report.name:20} accuracy {report['accuracy']}  ECE {report['ece']}")

# %%
z = outputs["as trained"][0]
shown = {"as trained": z, "temperature scaling": z / calibrator.temperature}
plots.reliability_diagram(y[test], shown, from_logits=True)

# %% [markdown]
# Compare the intervals before you choose: where they overlap, as they easily do with 500
# test images, neither model can be called better calibrated than the other.
#
# ## Save
#
# The calibrated model is a Keras model of probabilities, in one file. A script that loads
# it needs `import keras_selcal`.

# %%
calibrated.save("calibrated.keras")
loaded = keras.saving.load_model("calibrated.keras")
both = [each.predict(x[:5], verbose=0) for each in (loaded, calibrated)]
assert np.allclose(*both, atol=1e-5)
