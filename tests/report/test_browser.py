"""The report page in Chromium: what a reader does with it, and what it must not do.

Skips where Chromium, its driver or Selenium are not installed, unless
`KERAS_SELCAL_BROWSER` is set.
"""

import base64
import json
import os
import re
import shutil

import numpy as np
import pytest

from keras_selcal import CalibrationReport, functional
from keras_selcal.report.html import numbers

pytestmark = pytest.mark.backend_free

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MARKUP = "<script>document.title = 'broken'</script><b>bold</b>"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    try:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service
    except ImportError:
        webdriver = None
    if not (webdriver and CHROMIUM and DRIVER):
        missing = "Chromium, chromedriver or Selenium is not installed"
        if os.environ.get("KERAS_SELCAL_BROWSER"):
            pytest.fail(missing)
        pytest.skip(missing)
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    profile = tmp_path_factory.mktemp("profile")
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability(
        "goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"}
    )
    driver = webdriver.Chrome(options, Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(3, 0.4), 150)
    y = (rng.random((150, 1)) > p.cumsum(-1)).sum(-1).clip(max=2)
    # Two digits: many samples tie.
    return y, p, np.round(p, 1) / np.round(p, 1).sum(-1, keepdims=True)


@pytest.fixture(scope="module")
def pages(data, tmp_path_factory):
    """One model and two, with images, and with markup wherever there is text."""
    folder = tmp_path_factory.mktemp("pages")
    y, p, rounded = data
    one = CalibrationReport(y, p, bootstrap=50, name=MARKUP)
    two = CalibrationReport(y, rounded, bootstrap=50, name="W" * 60)
    options = {
        "class_names": [MARKUP, "a class with a long name", "x" * 80],
        "images": np.random.default_rng(0).random((150, 8, 8, 3)),
    }
    return {
        "one": one.to_html(
            folder / "one.html", title="One", class_names=["a", "b", "c" * 80]
        ),
        "two": one.to_html(folder / "two.html", others=two, title=MARKUP, **options),
    }


def look(browser, path, width=1200, scheme="light"):
    """Opens a page anew, with the logs emptied."""
    for log in ("browser", "performance"):
        browser.get_log(log)
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600},
    )
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    browser.get(path.as_uri())


FIGURES = """() => [...document.querySelectorAll(".chosen")].map(model =>
    Object.fromEntries([...model.querySelectorAll("[data-field]")].map(
    cell => [cell.dataset.field, cell.innerText])))"""


def figures(browser):
    """Returns what the page shows of each model."""
    return browser.execute_script(f"return ({FIGURES})()")


def marks(browser):
    return browser.execute_script(
        """return [...document.querySelectorAll(".mark circle")].map(
        mark => [mark.getBoundingClientRect().x, mark.getBoundingClientRect().y])"""
    )


def check(shown, y, p):
    """Compares what is shown with the exact metric, by the threshold as printed."""
    accepted = p.max(-1) >= float(shown["threshold"])
    count = int(accepted.sum())
    risk = functional.risk_at_coverage(y, p, count / len(y))
    assert shown["answered"] == str(count)
    assert shown["left"] == str(len(y) - count)
    assert shown["wrong"] == str(int((p.argmax(-1) != y)[accepted].sum()))
    assert shown["risk"] == numbers.percent(risk, 2)
    return count


def test_keyboard_moves_the_slider_and_the_numbers_follow(browser, pages, data):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    y, p, rounded = data
    for name, models in (("one", [p]), ("two", [p, rounded])):
        look(browser, pages[name])
        slider = browser.find_element(By.ID, "coverage")
        assert slider.accessible_name.startswith("Share of cases that it answers")
        assert slider.aria_role == "slider"
        # By keyboard alone: tabs lead there.
        for _ in range(20):
            if browser.switch_to.active_element == slider:
                break
            browser.switch_to.active_element.send_keys(Keys.TAB)
        assert browser.switch_to.active_element == slider
        first = [
            check(*x) for x in zip(figures(browser), [y] * 2, models, strict=False)
        ]
        assert first[0] == 120
        seen = {tuple(first)}
        for key in (
            Keys.ARROW_RIGHT,
            Keys.ARROW_UP,
            Keys.ARROW_LEFT,
            Keys.PAGE_DOWN,
            Keys.HOME,
            Keys.PAGE_UP,
            Keys.END,
        ):
            before = marks(browser)
            slider.send_keys(key)
            shown = figures(browser)
            counts = tuple(
                check(of_model, y, pred)
                for of_model, pred in zip(shown, models, strict=True)
            )
            assert counts not in seen - {tuple(first)} or key == Keys.ARROW_LEFT
            assert marks(browser)[0] != before[0]
            seen.add(counts)
            share = browser.find_element(By.ID, "share").get_attribute("innerText")
            assert share == numbers.percent(counts[0] / 150)
            told = slider.get_attribute("aria-valuetext")
            assert told == f"{share} answered, {shown[0]['risk']} of these wrong"
            said = browser.find_element(By.ID, "said")
            assert said.aria_role == "status"
            for of_model in shown:
                value = of_model["risk"] if len(models) > 1 else of_model["wrong"]
                assert value in said.get_attribute("innerText")
        assert counts == (150,) * len(models)
        assert not browser.get_log("browser")


def test_every_stop_shows_its_numbers_and_marks_the_curve(browser, pages, data):
    y, p, rounded = data
    look(browser, pages["two"])
    shown, off = browser.execute_script(
        """const slider = document.getElementById("coverage");
        const curve = document.querySelector("#abstain figure > svg path.curve");
        const points = [...Array(2001).keys()].map(
          i => curve.getPointAtLength(i / 2000 * curve.getTotalLength()));
        const shown = [], off = [];
        for (let i = 0; i <= slider.max; i++) {
          slider.value = i;
          slider.dispatchEvent(new Event("input"));
          shown.push(("""
        + FIGURES
        + """)());
          const mark = document.querySelector(".mark circle");
          const [x, y] = [mark.cx.baseVal.value, mark.cy.baseVal.value];
          off.push(Math.min(...points.map(p => Math.hypot(p.x - x, p.y - y))));
        }
        return [shown, off];"""
    )
    counts = [(check(one, y, p), check(two, y, rounded)) for one, two in shown]
    assert [count for count, _ in counts] == list(range(1, 151))
    assert all(one <= two for one, two in counts)
    # Above the axis, where the surest few may be, a mark stands at its end.
    assert max(off[10:]) < 1


@pytest.mark.parametrize("name", ["one", "two"])
def test_nothing_is_asked_for_and_nothing_complains(browser, pages, name):
    look(browser, pages[name])
    asked = [
        message["params"]["request"]["url"]
        for entry in browser.get_log("performance")
        for message in [json.loads(entry["message"])["message"]]
        if message["method"] == "Network.requestWillBeSent"
    ]
    assert asked
    outside = {url for url in asked if not url.startswith("data:")}
    assert outside == {pages[name].as_uri()}
    assert not browser.get_log("browser")


def test_markup_is_shown_as_text(browser, pages):
    look(browser, pages["two"])
    assert browser.title == MARKUP
    text, scripts, bold = browser.execute_script(
        """const bold = [...document.querySelectorAll("b")];
        return [document.body.innerText, document.scripts.length,
          bold.filter(b => b.innerText == "bold").length]"""
    )
    assert text.count(MARKUP) > 10
    assert scripts == 2
    assert bold == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 360, 1200])
@pytest.mark.parametrize("name", ["one", "two"])
def test_fits_the_screen(browser, pages, name, width, scheme):
    look(browser, pages[name], width, scheme)
    wide, beyond, ground, smallest = browser.execute_script(
        """document.querySelectorAll("details").forEach(d => d.open = true);
        const width = document.documentElement.clientWidth;
        const beyond = [...document.querySelectorAll("body *")].filter(e =>
          e.getBoundingClientRect().right > width + 1 && !e.closest(".scroll, nav ul"));
        const texts = "p, td, th, dd, dt, small, svg text";
        const sizes = [...document.querySelectorAll(texts)]
          .filter(e => e.getBoundingClientRect().width > 0)
          .map(e => {
            const {a, b} = e.ownerSVGElement ? e.getScreenCTM() : {a: 1, b: 0};
            return parseFloat(getComputedStyle(e).fontSize) * Math.hypot(a, b);
          });
        return [document.documentElement.scrollWidth, beyond.map(e => e.outerHTML),
          getComputedStyle(document.body).backgroundColor, Math.min(...sizes)]"""
    )
    assert wide <= width
    assert beyond == []
    assert ground == {"light": "rgb(246, 247, 249)", "dark": "rgb(18, 22, 26)"}[scheme]
    assert smallest >= 9


def test_tables_fit_a_phone(browser, pages):
    look(browser, pages["one"], 390)
    wide = browser.execute_script(
        """document.querySelectorAll("details").forEach(d => d.open = true);
        return [...document.querySelectorAll(".scroll")]
          .filter(e => e.scrollWidth > e.clientWidth).map(e => e.innerText)"""
    )
    assert wide == []


def test_navigation_stays_in_sight(browser, pages):
    look(browser, pages["one"], 390)
    top, links, headings = browser.execute_script(
        """document.documentElement.style.scrollBehavior = "auto";
        window.scrollTo(0, document.body.scrollHeight);
        return [document.querySelector("nav").getBoundingClientRect().top,
          [...document.querySelectorAll("nav a")].map(a => a.hash.slice(1)),
          [...document.querySelectorAll("section")].map(s => s.id)]"""
    )
    assert top == 0
    assert links == headings


def test_paper_has_whole_tables_on_few_pages(browser, pages):
    for name, most in (("one", 5), ("two", 8)):
        look(browser, pages[name])
        printed = browser.execute_cdp_cmd("Page.printToPDF", {})["data"]
        found = re.findall(rb"/Type /Page\b", base64.b64decode(printed))
        assert 1 < len(found) <= most
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        whole, after, closed, shown = browser.execute_script(
            """const styles = (selector, name) => [...new Set([
              ...document.querySelectorAll(selector)].map(
                e => getComputedStyle(e)[name]))];
            return [styles("figure, .scroll:not(:has(.metrics)), .card", "breakInside"),
              styles("h2, h3, h4", "breakAfter"),
              styles("details:not([open])", "display"), styles("nav", "display")]"""
        )
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert (whole, after, closed, shown) == (["avoid"], ["avoid"], ["none"], ["none"])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_colour_has_one_meaning(browser, pages, scheme):
    look(browser, pages["two"], scheme=scheme)
    colours = browser.execute_script(
        """const of = (selector, name) => getComputedStyle(
          document.querySelector(selector))[name];
        return [of(".curve.s0", "stroke"), of(".curve.s1", "stroke"),
          of("svg .said", "stroke"), of(".split .right", "fill"),
          of(".split .wrong", "fill"), of(".split .left", "fill")]"""
    )
    assert len(set(colours)) == 6
    assert (
        browser.execute_script(
            """return ["s0", "s1"].map(style => getComputedStyle(
          document.querySelector(`.bar.${style}`)).fill)"""
        )
        == colours[:2]
    )


def test_without_javascript_a_table_stands_in(browser, pages):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        look(browser, pages["one"])
        tree = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})
    finally:
        browser.execute_cdp_cmd(
            "Emulation.setScriptExecutionDisabled", {"value": False}
        )
    shown = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in tree["nodes"]
        if not node["ignored"]
    ]
    roles = {role for role, _ in shown}
    assert "slider" not in roles
    assert any("The slider needs JavaScript" in name for _, name in shown)
    assert ("heading", "At a glance") in shown
    assert {"table", "rowheader", "columnheader", "navigation", "main"} <= roles
