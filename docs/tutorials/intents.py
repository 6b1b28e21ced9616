# %% [markdown]
# # An intent classifier that says "I don't know"
#
# A chat bot maps what users write to one of 150 intents. Some of what they write belongs to
# none. This tutorial trains a classifier on CLINC150 (Larson et al. 2019, CC BY 3.0) and
# lets it abstain, so that at most 5 % of its answers are wrong.
#
# The data are one file, `data_full.json` of
# [clinc/oos-eval](https://github.com/clinc/oos-eval). `CLINC150` names its path.

# %%
import json
import os

import keras
import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from keras_selcal import SelectiveClassifier, TemperatureScaling

# The tests set this, to run the script in seconds.
QUICK = bool(os.environ.get("KERAS_SELCAL_QUICK"))

with open(os.environ.get("CLINC150", "data_full.json"), encoding="utf-8") as file:
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
# for questions like those of the validation set.

# %%
classifier = SelectiveClassifier(model, calibrator=TemperatureScaling())
val, y_val = read("val")
risk = 0.2 if QUICK else 0.05
classifier.fit(features(val), y_val, risk=risk, delta=0.05, verbose=0)
test, y_test = read("test")
found = classifier.evaluate(features(test), y_test, verbose=0)
print({name: round(float(value), 4) for name, value in found.items()})

# %% [markdown]
# ## What belongs to no intent
#
# The guarantee says nothing about questions of another kind. The share of out-of-scope
# questions that is answered all the same is printed here; each such answer is wrong.

# %%
unknown = [text for text, _ in data["oos_test"]][: 100 if QUICK else None]
answered = classifier.predict(features(unknown), verbose=0).accepted
print(f"{100 * answered.mean():.1f} % of {len(unknown)} unknown questions are answered")
