"""The review page in real headless Chromium: it shows, filters, takes keys, remembers, and runs no data."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import noisesieve as ns
from tests.conftest import Run, paint, validate
from tests.review.tab import Tab
from tests.runs import make_run

WRONG = {"red/0.png": "green", "red/1.png": "blue", "red/2.png": "green", "blue/2.png": "red", "green/7.png": "blue"}
HOSTILE = [
    "<script>window.hacked=1</script>",
    "</script><img src=x onerror=window.hacked=2>",
    '"onmouseover="window.hacked=3',
    "{{7*7}}",
    "<!--",
    "=HYPERLINK(1)",
    "javascript:alert(1)",
    "\u202egnp.exe",
]


@pytest.fixture
def run(colours: Path, tmp_path: Path) -> Path:
    return make_run(colours, tmp_path / "run", WRONG).path.parent


def test_keys_decide_the_page_remembers_and_apply_takes_the_download(
    inside: Run, run: Path, context: Any, tmp_path: Path
) -> None:
    done = inside("review", run, "--json")
    assert done.returncode == 0, done.stderr
    validate(json.loads(done.stdout), "review")
    suspects = ns.read_report(run).corrupted.to_pylist()
    tab = Tab(context, run / "review.html")
    assert tab.page.locator(".card").count() == 5
    assert tab.text("#given") == suspects[0]["label"]
    assert tab.text("#suggested") == suspects[0]["suggested_label"]
    assert tab.text("#path") == suspects[0]["path"]
    assert tab.page.evaluate("document.getElementById('image').naturalWidth") == 16
    tab.press("a")  # the first is what it looks like
    assert tab.text("#progress-text") == "1 of 5 decided"
    assert tab.text("#path") == suspects[1]["path"]  # on to the next
    tab.press("k", "x")
    assert tab.text("#progress-text") == "3 of 5 decided"
    tab.press("z")
    assert tab.text("#progress-text") == "2 of 5 decided"
    assert tab.text("#path") == suspects[2]["path"]  # undo goes back to it
    tab.press("c")
    tab.page.keyboard.type(str(suspects[2]["label"])[:3])
    tab.press("Enter")  # another class: the given one, so it is kept
    tab.press("ArrowRight", "ArrowLeft", "x")
    assert tab.text("#progress-text") == "4 of 5 decided", tab.text("#live")
    tab.page.fill("#reviewer", "Ann, =1")  # changes nothing that was decided before
    tab.page.reload()
    assert tab.text("#progress-text") == "4 of 5 decided"
    rows = tab.decisions(tmp_path)
    assert [row["decision"] for row in rows] == ["accept", "keep", "keep", "unusable"]
    assert [row["id"] for row in rows] == [suspect["id"] for suspect in suspects[:4]]
    assert {row["reviewer"] for row in rows} == {"ann"}
    assert tab.problems == []
    done = inside("apply", run, tmp_path / "decisions.csv", "-o", tmp_path / "new.csv", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["changed"], found["left_out"], found["decided"]) == (1, 1, 4)


def test_filters_sorting_and_the_heat_map_choose_what_is_shown(inside: Run, run: Path, context: Any) -> None:
    inside("review", run)
    tab = Tab(context, run / "review.html")
    tab.page.select_option("#filter-class", label="red (3)")
    assert tab.page.locator(".card").count() == 3
    tab.page.select_option("#filter-pair", label="red → green (2)")
    assert tab.text("#count") == "2 of 5"
    tab.page.click("#clear")
    assert tab.page.locator(".card").count() == 5
    tab.page.click(".heat button >> text=2")
    assert tab.page.locator(".card").count() == 2
    tab.page.click("#clear")
    tab.page.fill("#filter-text", "7.png")
    assert tab.text("#path") == "green/7.png"
    tab.page.fill("#filter-text", "no such thing")
    assert tab.page.locator(".card").count() == 0
    assert tab.page.is_visible("#nothing")
    tab.press("a")  # nothing to decide, nothing breaks
    tab.page.click("#clear")
    tab.page.select_option("#sort", "path")
    assert tab.text("#path") in [suspect["path"] for suspect in ns.read_report(run).corrupted.to_pylist()]
    tab.press("a")
    tab.page.select_option("#filter-state", "open")
    assert tab.page.locator(".card").count() == 4
    assert tab.problems == []


def test_single_keys_can_be_switched_off_and_buttons_do_the_same(inside: Run, run: Path, context: Any) -> None:
    inside("review", run)
    tab = Tab(context, run / "review.html")
    tab.press("?")
    tab.page.uncheck("#keys-on")
    tab.page.click("#help-close")
    tab.press("a")
    assert tab.text("#progress-text") == "0 of 5 decided"
    for button in ("#accept", "#keep", "#unusable", "#top button >> nth=2"):
        tab.page.click(button)
    assert tab.text("#progress-text") == "4 of 5 decided"
    tab.page.click("#undo")
    assert tab.text("#progress-text") == "3 of 5 decided"


def test_the_whole_page_works_from_the_keyboard_alone(inside: Run, run: Path, context: Any) -> None:
    inside("review", run)
    tab = Tab(context, run / "review.html")
    tab.press("a")  # with a decision there is something to download
    reached = set()
    for _ in range(120):
        tab.press("Tab")
        reached.add(tab.page.evaluate("document.activeElement.id || document.activeElement.className"))
    for control in ("download", "filter-class", "filter-text", "sort", "accept", "keep", "choose", "unusable", "card"):
        assert control in reached
    unnamed = tab.page.evaluate(
        """() => [...document.querySelectorAll("button, input, select")].filter((e) =>
          !(e.getAttribute("aria-label") || e.textContent.trim() || e.closest("label")))
          .map((e) => e.outerHTML)"""
    )
    assert unnamed == []
    assert "accepted" in tab.text("#live")  # a screen reader hears what was decided


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1400])
def test_it_fits_a_phone_and_a_desk_and_its_text_can_be_read(
    theme: str, width: int, inside: Run, run: Path, browser: Any
) -> None:
    inside("review", run)
    context = browser.new_context(color_scheme=theme, viewport={"width": width, "height": 800})
    tab = Tab(context, run / "review.html")
    assert tab.page.evaluate("document.documentElement.dataset.theme") == theme
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
    tab.press("a")
    poor = tab.page.evaluate(CONTRAST)
    assert poor == []
    context.close()


CONTRAST = """() => {
  const parse = (c) => (c.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const light = ([r, g, b]) => { const f = (v) => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
    return .2126 * f(r) + .7152 * f(g) + .0722 * f(b); };
  const behind = (e) => {
    const layers = [];
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      const alpha = c.length > 3 ? c[3] : 1;
      if (alpha > 0) layers.push([c, alpha]);
      if (alpha === 1) break;
    }
    let base = [255, 255, 255];
    for (const [c, a] of layers.reverse()) base = base.map((v, i) => v * (1 - a) + c[i] * a);
    return base;
  };
  const poor = [];
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.checkVisibility() || e.disabled || e.closest(":disabled, svg, .hidden, .skip, kbd")) continue;
    const style = getComputedStyle(e), ink = light(parse(style.color)), page = light(behind(e));
    const ratio = (Math.max(ink, page) + .05) / (Math.min(ink, page) + .05);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5)) poor.push(`${e.className || e.tagName} ${ratio.toFixed(2)}: ${e.textContent}`);
  }
  return poor;
}"""


def test_hostile_labels_and_names_are_inert_text(inside: Run, context: Any, tmp_path: Path) -> None:
    rows = []
    for c, label in enumerate(HOSTILE):
        for i in range(3):
            name = f"{c}{i}<img src=x onerror=window.hacked=9>&.png"
            paint(tmp_path / "data" / name, (20 * c, 90, 40), seed=i)
            rows.append((name, label))
    with (tmp_path / "data/t.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("path", "label"), *rows])
    wrong = {rows[3 * c][0]: HOSTILE[(c + 1) % len(HOSTILE)] for c in range(len(HOSTILE))}
    run = make_run(tmp_path / "data/t.csv", tmp_path / "<b>run", wrong).path.parent
    assert inside("review", run).returncode == 0
    tab = Tab(context, run / "review.html")
    assert tab.page.locator(".card").count() == len(HOSTILE)
    assert tab.page.evaluate("window.hacked") is None
    assert tab.page.locator("img[src=x]").count() == 0
    shown = set()
    for _ in range(len(HOSTILE)):
        shown.add(tab.text("#given"))
        tab.press("a")
    assert {" ".join(label.split()) for label in HOSTILE} == shown
    decided = tab.decisions(tmp_path)
    assert not [cell for row in decided for cell in row.values() if re.match(r"[=+\-@]", cell)]
    assert tab.problems == []
    done = inside("apply", run, tmp_path / "decisions.csv", "-o", tmp_path / "data/new.csv", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["decisions"] == {"accept": len(HOSTILE)}


def test_the_policy_forbids_everything_but_the_pages_own_code(inside: Run, run: Path, context: Any) -> None:
    inside("review", run)
    text = (run / "review.html").read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    assert "default-src &#39;none&#39;" in policy[1]
    assert "unsafe" not in policy[1]
    assert "http:" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https:" not in text
    tab = Tab(context, run / "review.html")
    tab.page.evaluate(
        """() => { const s = document.createElement("script"); s.textContent = "window.hacked = 1";
        document.body.append(s); const i = new Image(); i.src = "https://example.org/x.png"; }"""
    )
    tab.page.wait_for_timeout(100)
    assert tab.page.evaluate("window.hacked") is None
    refused = [problem for problem in tab.problems if "Content Security Policy" in problem]
    assert len(refused) == 2


def test_a_thousand_suspects_of_a_thousand_classes_stay_usable(inside: Run, context: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = []
    (tmp_path / "data").mkdir()
    for i in range(2000):
        Image.fromarray(rng.integers(0, 255, (4, 4, 3), dtype=np.uint8)).save(tmp_path / f"data/{i}.png")
        rows.append((f"{i}.png", f"class number {i // 2}"))
    with (tmp_path / "data/t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), *rows])
    wrong = {f"{2 * c}.png": f"class number {(c + 1) % 1000}" for c in range(1000)}
    run = make_run(tmp_path / "data/t.csv", tmp_path / "run", wrong).path.parent
    assert inside("review", run, "--limit", "1000").returncode == 0
    tab = Tab(context, run / "review.html")
    assert tab.page.locator(".card").count() < 100  # cards are made when they come into view
    assert tab.page.evaluate("document.querySelectorAll('*').length") <= 2000
    assert tab.page.locator(".heat tbody tr").count() == 16
    tab.press("c")
    assert tab.page.locator("#chooser-list [role=option]").count() == 200
    tab.page.keyboard.type("number 777")
    tab.press("Enter")
    assert tab.decisions(tmp_path)[0]["label"] == "class number 777"
    tab.page.evaluate(
        """() => { for (let i = 0; i < 20; i++)
        document.dispatchEvent(new KeyboardEvent("keydown", { key: "k", bubbles: true })); }"""
    )
    assert tab.text("#progress-text") == "21 of 1,000 decided"
    assert tab.problems == []


def test_images_keep_their_aspect_and_stand_upright(inside: Run, context: Any, tmp_path: Path) -> None:
    for i in range(3):
        paint(tmp_path / f"data/a/{i}.png", (200, 0, 0), seed=i)
        paint(tmp_path / f"data/b/{i}.png", (0, 200, 0), seed=i)
    wide = Image.new("RGB", (800, 400), (10, 20, 200))
    exif = Image.Exif()
    exif[0x0112] = 6
    wide.save(tmp_path / "data/a/9.jpg", exif=exif)
    run = make_run(tmp_path / "data", tmp_path / "run", {"a/9.jpg": "b"}).path.parent
    assert inside("review", run).returncode == 0
    tab = Tab(context, run / "review.html")
    tab.page.wait_for_function("document.getElementById('image').complete")
    size = tab.page.evaluate("[image.naturalWidth, image.naturalHeight]")
    assert size == [240, 480]


def test_images_outside_the_dataset_or_changed_since_are_not_in_the_page(
    inside: Run, context: Any, tmp_path: Path
) -> None:
    for i in range(3):
        paint(tmp_path / f"data/{i}.png", (200, 0, 0), seed=i)
        paint(tmp_path / f"secret/{i}.png", (0, 200, 0), seed=i)
    rows = [(f"{i}.png", "a") for i in range(3)] + [(f"../secret/{i}.png", "b") for i in range(3)]
    with (tmp_path / "data/t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), *rows])
    wrong = {"0.png": "b", "1.png": "b", "../secret/0.png": "a"}
    run = make_run(tmp_path / "data/t.csv", tmp_path / "run", wrong, allow_outside=True).path.parent
    paint(tmp_path / "data/1.png", (1, 1, 1), seed=77)
    done = inside("review", run)
    assert done.returncode == 0, done.stderr
    assert "1 image is missing or changed since the run" in done.stderr
    tab = Tab(context, run / "review.html")
    assert tab.page.locator(".card img").count() == 1
    assert tab.page.locator(".card >> text=no image").count() == 2


def test_a_run_without_suspects_has_a_page_that_says_so(
    inside: Run, colours: Path, context: Any, tmp_path: Path
) -> None:
    run = make_run(colours, tmp_path / "run").path.parent
    assert inside("review", run).returncode == 0
    tab = Tab(context, run / "review.html")
    assert tab.text("#closing-title") == "There is no suspect."
    assert tab.problems == []


def test_a_dataset_that_is_gone_is_named_with_the_next_step(inside: Run, run: Path, colours: Path) -> None:
    moved = colours.with_name("moved")
    colours.rename(moved)
    done = inside("review", run)
    assert done.returncode == 3
    assert "--data" in done.stderr
    assert inside("review", run, "--data", moved).returncode == 0


def test_nothing_is_overwritten_unasked(inside: Run, run: Path, colours: Path, tmp_path: Path) -> None:
    image = colours / "red/3.png"
    before = image.read_bytes()
    assert inside("review", run, "-o", image, "--force").returncode == 4
    assert image.read_bytes() == before
    (tmp_path / "mine.html").write_text("mine")
    assert inside("review", run, "-o", tmp_path / "mine.html").returncode == 4
    assert (tmp_path / "mine.html").read_text() == "mine"
    assert inside("review", run, "-o", ".").returncode == 4
    assert inside("review", run).returncode == 0
    assert inside("review", run).returncode == 0  # the run's own page is made anew


def test_a_smaller_page_of_the_same_run_keeps_what_was_decided_on_a_larger(
    inside: Run, run: Path, context: Any, tmp_path: Path
) -> None:
    inside("review", run)
    inside("review", run, "--limit", "2", "-o", tmp_path / "small.html")
    tab = Tab(context, run / "review.html")
    tab.press("a", "a", "a", "a")
    tab.visit(tmp_path / "small.html", "2 of 2 decided, 2 more on other pages of this run")
    tab.press("ArrowLeft", "k")
    tab.visit(run / "review.html", "4 of 5 decided")
    assert [row["decision"] for row in tab.decisions(tmp_path)] == ["accept", "keep", "accept", "accept"]


def test_every_decision_has_its_own_reviewer(inside: Run, run: Path, context: Any, tmp_path: Path) -> None:
    inside("review", run)
    tab = Tab(context, run / "review.html")
    for name in ("Ann", "Bob"):
        tab.page.fill("#reviewer", name)
        tab.page.click("#accept")
    assert [row["reviewer"] for row in tab.decisions(tmp_path)] == ["Ann", "Bob"]


def test_a_key_that_is_held_down_decides_once(inside: Run, run: Path, context: Any) -> None:
    inside("review", run)
    tab = Tab(context, run / "review.html")
    for _ in range(4):  # without a key up in between: repeats
        tab.page.keyboard.down("a")
    assert tab.text("#progress-text") == "1 of 5 decided"


def test_the_chooser_prefers_the_class_that_was_typed(inside: Run, context: Any, tmp_path: Path) -> None:
    for label in ("1", "10", "100"):
        for i in range(3):
            paint(tmp_path / f"data/{label}/{i}.png", (len(label) * 60, 0, 0), seed=i)
    run = make_run(tmp_path / "data", tmp_path / "run", {"100/0.png": "10"}).path.parent
    inside("review", run)
    tab = Tab(context, run / "review.html")
    tab.press("c")
    tab.page.keyboard.type("1")
    tab.press("Enter")
    assert [row["label"] for row in tab.decisions(tmp_path)] == ["1"]


def test_a_confusion_whose_suspects_are_not_shown_shows_none(
    inside: Run, run: Path, context: Any, tmp_path: Path
) -> None:
    inside("review", run, "--limit", "1", "-o", tmp_path / "one.html")
    tab = Tab(context, tmp_path / "one.html")
    shown = (tab.text("#given"), tab.text("#suggested"))
    for button in tab.page.locator(".heat button").all():
        button.click()
        pair = tab.page.locator("#filter-pair option:checked").inner_text()
        assert tab.page.locator(".card").count() == int(pair.startswith(f"{shown[0]} → {shown[1]}"))


def test_a_stop_while_the_page_is_made_leaves_a_complete_run(colours: Path, tmp_path: Path) -> None:
    from noisesieve.commands import scan as scan_command
    from noisesieve.commands.scan_settings import scan_settings
    from noisesieve.core.errors import Stopped
    from tests.conftest import QUICK_OPTIONS

    def stopped(*_: Any, **__: Any) -> None:
        raise Stopped("Stopped by SIGINT.", exit_code=130)

    settings = scan_settings(colours, output=tmp_path / "run", **QUICK_OPTIONS)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped):
        patch.setattr("noisesieve.commands._run.write_review", stopped)
        scan_command.scan(settings)
    assert ns.read_report(tmp_path / "run").summary.examples == 120
    assert not (tmp_path / "run/review.html").exists()
    scan_command.scan(settings)  # the same command again
    assert (tmp_path / "run/review.html").exists()
