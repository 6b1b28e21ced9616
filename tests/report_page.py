"""A report page, parsed, and predictions for one."""

import json
import re
from html.parser import HTMLParser

import numpy as np


class Page(HTMLParser):
    """Text, attributes and nesting of a page; refuses tags that are not closed."""

    VOID = ("meta", "link", "input", "img")

    def __init__(self, source):
        super().__init__()
        self.source, self.open, self.elements, self.texts = source, [], [], []
        self.feed(source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"style", "script"} & set(self.open):
            self.texts.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.texts))

    def having(self, attribute):
        return [a[attribute] for _, a in self.elements if attribute in a]

    def tagged(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def slider(self):
        found = re.search(r'id="stops">(.*?)</script>', self.source, re.DOTALL)
        return json.loads(found[1])


def page_of(report, tmp_path, **options):
    path = report.to_html(tmp_path / "report.html", **options)
    return Page(path.read_text("utf-8"))


def classifier(rng, n=300, k=3, sharpness=1.0):
    """Labels drawn from probabilities, and these sharpened: calibrated at 1."""
    p = rng.dirichlet(np.full(k, 0.4), n)
    y = (rng.random((n, 1)) > p.cumsum(-1)).sum(-1).clip(max=k - 1)
    return y, sharpened(p, sharpness)


def sharpened(p, sharpness=2.0):
    return p**sharpness / (p**sharpness).sum(-1, keepdims=True)


def number(text):
    return float(text.replace(",", "").replace("−", "-").removesuffix("\xa0%"))
