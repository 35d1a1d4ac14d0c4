"""The report in a real browser: seen, used by keyboard, printed; nothing is fetched and nothing goes wrong."""

from __future__ import annotations

import pytest
from tests.report.browser import MISSING, RIGHT, SPACE, TAB, Browser, installed

from opportune.report.page import write_report

pytestmark = pytest.mark.skipif(not installed(), reason=MISSING)

WIDE, PHONE = 1400, 390
OVERFLOW = "const page = document.documentElement; return page.scrollWidth - page.clientWidth"
SHOWN = """
return [...document.querySelectorAll(".grids")].filter(e => e.checkVisibility())
  .map(e => e.innerText.match(/step (\\d+)/)[1]);
"""
BOXES = """
return [...document.querySelectorAll("img, figure > svg")].map(e => {
  const box = e.getBoundingClientRect();
  return [e.tagName, box.width, box.height, e.tagName != "IMG" || (e.complete && e.naturalWidth > 0),
          e.checkVisibility({visibilityProperty: true, opacityProperty: true}), box.left, box.right];
});
"""


@pytest.fixture(scope="module")
def browser():
    with Browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def page(trained, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_report(sorted(trained.iterdir()), path)
    return path


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [WIDE, PHONE])
def test_all_is_seen_and_nothing_is_fetched(browser, page, width, dark):
    browser.requests(), browser.console()
    browser.open(page, width=width, dark=dark)
    assert browser.console() == []
    assert [url for url in browser.requests() if not url.startswith("data:")] == [page.resolve().as_uri()]
    assert browser.run("return innerWidth") == width and browser.run(OVERFLOW) == 0
    boxes = browser.run(BOXES)
    shown = [box for box in boxes if box[4]]
    assert len(boxes) - len(shown) == 2  # the pictures of the step that is not chosen
    assert {box[0] for box in shown} == {"IMG", "svg"}
    assert all(
        w > 100 and h > 60 and loaded and left >= 0 and right <= width for _, w, h, loaded, _, left, right in shown
    )


def test_dark_is_dark_and_light_is_light(browser, page):
    found = {}
    for dark in (False, True):
        browser.open(page, dark=dark)
        found[dark] = browser.run(
            """
            const level = css => css.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0) / 765;
            const style = selector => getComputedStyle(document.querySelector(selector));
            return [level(style("body").backgroundColor), level(style("body").color),
                    level(style("figure > svg text").fill), level(style("figure > svg .m1 path").stroke)];
            """
        )
    light, dark = found[False], found[True]
    assert light[0] > 0.9 and max(light[1:3]) < 0.2 and dark[0] < 0.2 and min(dark[1:3]) > 0.8
    assert dark[3] > light[3]  # the same hue, lighter


def test_methods_are_hidden_and_shown_by_keyboard(browser, page):
    browser.open(page)
    seen = "return [...document.querySelectorAll('main .m1')].filter(e => e.getBoundingClientRect().width).length"
    other = seen.replace(".m1", ".m0")
    before, others = browser.run(seen), browser.run(other)
    assert before >= 10 and others >= 10
    for _ in range(40):
        browser.press(TAB)
        if browser.run("return document.activeElement.id") == "show-m1":
            break
    assert browser.run("return document.activeElement.id") == "show-m1"
    outline = browser.run("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"
    browser.press(SPACE)
    assert browser.run(seen) == 0 and browser.run(other) == others
    browser.press(SPACE)
    assert browser.run(seen) == before


def test_the_step_of_the_pictures_is_chosen_by_keyboard(browser, page):
    browser.open(page)
    assert browser.run(SHOWN) == ["12"]
    browser.run("document.getElementById('s0-grid-1').focus()")
    browser.press(RIGHT)  # from the last on to the first
    assert browser.run(SHOWN) == ["8"]


def test_the_summaries_open_by_keyboard(browser, page):
    browser.open(page)
    browser.run("document.querySelector('#reproduce summary').focus()")
    browser.press("\ue007")
    assert browser.run("return document.querySelector('#reproduce details').open")


def test_a_hostile_label_runs_nothing(browser, comparison, tmp_path):
    write_report([comparison], tmp_path / "report.html")
    browser.console()
    browser.open(tmp_path / "report.html", width=PHONE)
    assert browser.console() == []  # a blocked script or picture would be told here
    title = browser.run("return document.title")
    assert title.startswith("opportune report: uniform, <img src=x")
    assert browser.run("return innerWidth") == PHONE and browser.run(OVERFLOW) == 0


def test_it_prints_on_white(browser, page, tmp_path):
    browser.open(page, dark=True)
    browser.pdf(tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF") and (
        tmp_path / "report.pdf"
    ).stat().st_size > 50_000
    browser.tell(
        "Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}]
    )
    colours = browser.run("const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]")
    assert colours == ["rgb(255, 255, 255)", "rgb(32, 36, 43)"]
    assert browser.run("return getComputedStyle(document.querySelector('.methods')).position") == "static"
