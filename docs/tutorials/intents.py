# %% [markdown]
# # An intent classifier that says "I don't know"
#
# A chat bot maps what users write to one of 150 intents. Some of what they write belongs to
# none. This tutorial trains a classifier on CLINC150 (Larson et al. 2019, CC BY 3.0) and
# lets it abstain: at most 5 % of its answers are wrong.
#
# The data are one file of [clinc/oos-eval](https://github.com/clinc/oos-eval), which is
# downloaded once. If you have it already, set the variable `CLINC150` to its path.

# %%
import json
import os

import keras
import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from keras_selcal import SelectiveClassifier, TemperatureScaling, functional, plots

# The tests set this, to run the script in seconds.
QUICK = bool(os.environ.get("KERAS_SELCAL_QUICK"))

URL = "https://raw.githubusercontent.com/clinc/oos-eval/master/data/data_full.json"
path = os.environ.get("CLINC150") or keras.utils.get_file("clinc150.json", URL)
with open(path, encoding="utf-8") as file:
    data = json.load(file)
names = sorted({intent for _, intent in data["train"]})
if QUICK:
    names = names[:10]
index = {name: i for i, name in enumerate(names)}


def read(part):
    kept = [(text, index[intent]) for text, intent in data[part] if intent in index]
    texts, labels = zip(*kept, strict=True)
    return list(texts), np.array(labels)


vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, max_features=6000)
texts, y_train = read("train")
vectorizer.fit(texts)


def features(texts):
    return vectorizer.transform(texts).toarray().astype("float32")


# %% [markdown]
# ## Train

# %%
keras.utils.set_random_seed(0)
model = keras.Sequential(
    [keras.Input((len(vectorizer.vocabulary_),)), keras.layers.Dense(len(names))]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
model.fit(features(texts), y_train, epochs=8, batch_size=128, verbose=0)

# %% [markdown]
# ## Abstain
#
# Half of the validation samples fit the temperature, the other half the threshold. With
# `delta=0.05`, the error rate of the answers is at most the target with probability 95 %,
# for questions like the ones in the validation set.
#
# `fit` warns that 62 questions have exactly the outputs of another question. "Speak
# arabic" and "speak navajo" differ only in words that the training data do not contain, and
# look the same to the model. They are different questions, not copies of one, so the
# guarantee holds and the warning can be ignored here.

# %%
classifier = SelectiveClassifier(model, calibrator=TemperatureScaling())
val, y_val = read("val")
risk = 0.2 if QUICK else 0.05
classifier.fit(features(val), y_val, risk=risk, delta=0.05, verbose=0)
test, y_test = read("test")
found = classifier.evaluate(features(test), y_test, verbose=0)
for name, value in found.items():
    print(f"{name:21} {100 * value:.1f} %")

# %% [markdown]
# ## What belongs to no intent
#
# The guarantee says nothing about questions of another kind. Some of the out-of-scope
# questions are answered all the same, and each such answer is wrong. The remedy is at the
# end of this page.

# %%
unknown = [text for text, _ in data["oos_test"]][: 100 if QUICK else None]
answered = classifier.predict(features(unknown), verbose=0).accepted
print(f"{100 * answered.mean():.1f} % of {len(unknown)} unknown questions are answered")

# %% [markdown]
# ## Look at the trade-off
#
# The curve shows the share of wrong answers at every share of answered questions, for the
# intents that the classifier knows.

# %%
p_test = classifier.predict_proba(features(test), verbose=0)
plots.risk_coverage_curve(y_test, p_test, coverage=float(found["coverage"]))
p_unknown = classifier.predict_proba(features(unknown), verbose=0)
auroc = functional.ood_auroc(p_test, p_unknown)
print(f"A known question has the higher confidence in {100 * auroc:.1f} % of the pairs")

# %% [markdown]
# ## Count unknown questions as errors
#
# The data have 200 other out-of-scope questions, which the model was not trained on. Suppose
# that one question in ten is out of scope. With these examples and this share, `fit` bounds the
# share of wrong answers among all answers, to known and to unknown questions.

# %%
examples = [text for part in ("oos_train", "oos_val") for text, _ in data[part]]
careful = SelectiveClassifier(model, calibrator=TemperatureScaling())
careful.fit(
    features(val),
    y_val,
    unknown=features(examples),
    unknown_share=0.1,
    risk=risk,
    delta=0.05,
    verbose=0,
)
x_test, x_unknown = features(test), features(unknown)
for name, each in (("before", classifier), ("counted as errors", careful)):
    found = each.evaluate(
        x_test, y_test, unknown=x_unknown, unknown_share=0.1, verbose=0
    )
    print(f"{name}:")
    for figure in ("known_coverage", "unknown_coverage", "selective_risk"):
        print(f"  {figure:17} {100 * found[figure]:.1f} %")

# %% [markdown]
# `selective_risk` is the risk of the mixture. The price is coverage: the classifier answers fewer of
# the known questions. If more than one question in ten is out of scope, the risk is higher; fit
# again with the larger share.
