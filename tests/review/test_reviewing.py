"""Deciding five hundred suspects: nothing is lost, nothing happens by accident, sheets decide many at once."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from noisesieve.report.report import read_report
from tests.conftest import Run, paint
from tests.review.tab import Tab
from tests.runs import make_run

COLOURS = {"red": (200, 40, 40), "green": (40, 200, 40), "blue": (40, 40, 200)}


@pytest.fixture
def many(colours: Path, tmp_path: Path) -> Path:
    """A run with 60 suspects: 30 reds that look green, 20 that look blue … the most suspicious first."""
    wrong = {f"red/{i}.png": "green" if i < 25 else "blue" for i in range(40)}
    wrong |= {f"blue/{i}.png": "green" for i in range(20)}
    return make_run(colours, tmp_path / "run", wrong).path.parent


def rows_of(run: Path) -> list[dict[str, Any]]:
    return read_report(run).corrupted.to_pylist()


def wait_for_sheet(tab: Tab) -> None:
    tab.page.wait_for_timeout(650)  # Enter is not taken within 600 ms


def test_one_key_too_many_meets_a_closing_card(inside: Run, many: Path, context: Any, tmp_path: Path) -> None:
    inside("review", many)
    tab = Tab(context, many / "review.html")
    tab.page.fill("#filter-text", "blue/1")  # 11 of them: 1 and 10 to 19
    tab.press("Enter")
    tab.press(*["a"] * 11)
    assert tab.page.is_visible("#closing")
    assert tab.text("#closing-title") == "Every suspect in view is decided."
    assert tab.text("#closing-counts") == "11 accepted."
    assert "noisesieve apply" in tab.text("#closing")
    assert "corrected --tree copy" in tab.text("#closing")
    tab.press("k", "x", "1", "a")
    assert {row["decision"] for row in tab.decisions(tmp_path)} == {"accept"}
    tab.page.click("#closing-continue")
    assert not tab.page.is_visible("#closing")
    assert tab.text("#count") == "60 shown"


def test_every_stored_decision_of_the_run_is_written(inside: Run, many: Path, context: Any, tmp_path: Path) -> None:
    inside("review", many)
    inside("review", many, "--limit", "3", "-o", tmp_path / "small.html")
    inside("review", many, "--probe", "5", "--limit", "2", "-o", tmp_path / "probe.html")
    tab = Tab(context, many / "review.html")
    tab.press(*"aakaa")
    tab.visit(tmp_path / "probe.html", "2 of 7 decided, 3 more on other pages of this run")
    tab.press("k")
    tab.visit(tmp_path / "small.html", "3 of 3 decided, 3 more on other pages of this run")
    decided = tab.decisions(tmp_path)
    known = {row["id"]: row for row in read_report(many).table.to_pylist()}
    assert len(decided) == 6
    for row in decided:
        assert (row["given"], row["sha256"]) == (known[row["id"]]["label"], known[row["id"]]["sha256"])
    assert [row["sample"] for row in decided].count("yes") == 1
    done = inside("apply", many, tmp_path / "decisions.csv", "-o", tmp_path / "new.csv")
    assert done.returncode == 0, done.stderr


def test_a_letter_decides_after_a_filter_was_chosen(inside: Run, many: Path, context: Any) -> None:
    inside("review", many)
    tab = Tab(context, many / "review.html")
    tab.page.focus("#filter-class")
    tab.page.select_option("#filter-class", label="red (40)")
    tab.press("k")
    assert tab.text("#progress-text") == "1 of 60 decided"
    assert tab.text("#count") == "40 of 60"


def test_undo_redo_filters_order_and_position_survive_a_reload(inside: Run, many: Path, context: Any) -> None:
    inside("review", many)
    tab = Tab(context, many / "review.html")
    tab.press(*"aak")
    tab.page.select_option("#filter-class", label="red (40)")
    tab.page.select_option("#sort", "path")
    tab.press("ArrowRight", "ArrowRight")
    shown = tab.text("#path"), tab.text("#count"), tab.text("#position")
    tab.page.reload()
    assert (tab.text("#path"), tab.text("#count"), tab.text("#position")) == shown
    tab.press("Control+z")
    assert tab.text("#progress-text") == "2 of 60 decided"
    tab.press("Meta+z")
    assert tab.text("#progress-text") == "1 of 60 decided"
    tab.page.reload()
    tab.press("Control+Shift+Z", "Control+Shift+Z")
    assert tab.text("#progress-text") == "3 of 60 decided"
    tab.press("z")
    assert tab.text("#progress-text") == "2 of 60 decided"


def test_the_reviewers_name_is_asked_for_once_and_stamped(
    inside: Run, many: Path, context: Any, tmp_path: Path
) -> None:
    inside("review", many)
    tab = Tab(context, many / "review.html", reviewer="")
    tab.press("a")
    assert tab.page.is_visible("#who")
    assert tab.text("#progress-text") == "0 of 60 decided"
    tab.page.keyboard.type("Bea")
    tab.press("Enter")
    tab.page.wait_for_selector("#progress-text >> text=1 of 60 decided")
    tab.press("a")
    tab.page.fill("#reviewer", "Cleo")
    tab.page.click("h1")
    tab.press("k")
    assert [row["reviewer"] for row in tab.decisions(tmp_path)] == ["Bea", "Bea", "Cleo"]
    assert tab.problems == []


def test_the_numbers_of_a_suspect_add_up(inside: Run, context: Any, tmp_path: Path) -> None:
    for label, colour in COLOURS.items():
        for i in range(400):  # enough to tell how many are wrong
            paint(tmp_path / f"data/{label}/{i}.png", colour, seed=i)
    wrong = {f"red/{i}.png": "green" for i in range(60)}
    run = make_run(tmp_path / "data", tmp_path / "run", wrong).path.parent
    inside("review", run)
    tab = Tab(context, run / "review.html")
    data = json.loads(tab.page.evaluate("document.getElementById('data').textContent"))
    first = data["suspects"][0]
    assert first["chance"] is not None
    widths = [float(tab.page.get_attribute(f"#shares rect.{part}", "width")) for part in ("given", "suggested", "rest")]
    assert sum(widths) == pytest.approx(100, abs=1e-6)
    assert widths[0] == pytest.approx(100 * (1 - first["chance"]), abs=1e-6)
    assert tab.text("#share-given").startswith("given ")
    assert "like this are wrong" in tab.text("#chance-words")
    assert "rank 1" in tab.text("#position")
    assert tab.page.locator(".card .rank").all_inner_texts()[:3] == ["#1 ", "#2 ", "#3 "]
    cells = [int(text.split()[0]) for text in tab.page.locator(".heat button").all_inner_texts()]
    assert sum(cells) == len(data["suspects"]) == 60


@pytest.mark.parametrize(("key", "code"), [("ф", "KeyA"), ("&", "Digit1"), ("J", "KeyJ")])
def test_keys_work_on_other_keyboards(key: str, code: str, inside: Run, many: Path, context: Any) -> None:
    inside("review", many)
    tab = Tab(context, many / "review.html")
    tab.page.evaluate(
        "([key, code]) => document.dispatchEvent(new KeyboardEvent('keydown', { key, code, bubbles: true }))",
        [key, code],
    )
    assert tab.text("#progress-text") == "1 of 60 decided"


def test_references_stand_beside_the_suspect(inside: Run, many: Path, context: Any) -> None:
    inside("review", many)
    tab = Tab(context, many / "review.html")
    suspect = rows_of(many)[0]
    assert tab.page.locator("#given-references img").count() == 6
    assert tab.page.locator("#suggested-references img").count() == 6
    tab.page.wait_for_function(
        "[...document.querySelectorAll('.references img')].slice(0, 12).every((i) => i.complete)"
    )
    shown = [colour_of(tab, f"#{side}-references img >> nth=0") for side in ("given", "suggested")]
    wanted = [COLOURS[suspect["label"]], COLOURS[suspect["suggested_label"]]]
    for seen, colour in zip(shown, wanted, strict=True):
        assert int(np.argmax(seen)) == int(np.argmax(colour))
    tab.page.set_viewport_size({"width": 1440, "height": 900})
    stage = tab.page.locator("#stage").bounding_box()
    assert stage["width"] >= 720
    assert stage["height"] >= 0.7 * 900
    assert tab.page.locator("#strip li").count() == 8
    data = json.loads(tab.page.evaluate("document.getElementById('data').textContent"))
    labels = [reference["label"] for reference in data["references"]]
    assert max(labels.count(label) for label in labels) <= 12


def colour_of(tab: Tab, place: str) -> list[int]:
    """The mean colour of an image."""
    return list(
        tab.page.locator(place).evaluate(
            """(image) => { const c = document.createElement("canvas"); c.width = c.height = 1;
            const x = c.getContext("2d"); x.drawImage(image, 0, 0, 1, 1);
            return [...x.getImageData(0, 0, 1, 1).data].slice(0, 3); }"""
        )
    )


def test_the_original_is_shown_while_v_is_held(inside: Run, many: Path, context: Any) -> None:
    inside("review", many)
    tab = Tab(context, many / "review.html")
    small = tab.page.get_attribute("#image", "src")
    tab.page.keyboard.down("v")
    assert str(tab.page.evaluate("document.getElementById('image').src")).endswith(tab.text("#path"))
    tab.page.wait_for_function("document.getElementById('image').naturalWidth > 0")
    tab.page.keyboard.up("v")
    assert tab.page.get_attribute("#image", "src") == small
    assert tab.problems == []


def test_a_sheet_decides_look_alikes_together_with_one_undo(
    inside: Run, many: Path, context: Any, tmp_path: Path
) -> None:
    inside("review", many)
    tab = Tab(context, many / "review.html")
    tab.press("g")
    assert tab.page.is_visible("#sheet")
    title = tab.text("#sheet-title")
    assert title in {f"Are all of these {label}?" for label in COLOURS}
    assert tab.page.locator("#sheet-tiles .tile").count() <= 24
    assert tab.page.locator("#sheet-references img").count() == 6
    tab.press("Enter")  # too early: nobody can have looked
    assert tab.text("#progress-text") == "0 of 60 decided"
    shown = tab.page.locator("#sheet-tiles .tile").count()
    tab.press("a", "c")
    tab.page.locator("#sheet-tiles .tile").nth(5).click()
    tab.page.locator("#sheet-tiles .tile").nth(8).click(modifiers=["Shift"])  # the sixth to the ninth
    assert tab.page.locator(".tile.marked").count() == 6
    tab.press("b", "b")
    tab.press(" ")
    assert tab.page.is_visible("#large")
    tab.press(" ")
    wait_for_sheet(tab)
    tab.page.keyboard.down("Enter")
    tab.page.keyboard.down("Enter")  # a repeat decides nothing more
    tab.page.keyboard.up("Enter")
    assert tab.text("#progress-text") == f"{shown - 6} of 60 decided"
    rows = tab.decisions(tmp_path)
    assert {(row["decision"], row["how"]) for row in rows} == {("accept", "sheet 1")}
    tab.press("Control+z")
    assert tab.text("#progress-text") == "0 of 60 decided"
    tab.press("Control+Shift+Z")
    assert tab.text("#progress-text") == f"{shown - 6} of 60 decided"
    for _ in range(10):
        tab.press("g")
        if not tab.page.is_visible("#sheet"):
            break
        while tab.page.is_visible("#sheet"):
            wait_for_sheet(tab)
            tab.press("Enter")
    assert tab.text("#progress-text") == "54 of 60 decided"  # what was marked waits in Compare
    assert tab.page.is_visible("#compare")
    tab.press(*"kkkkkk")
    assert tab.text("#closing-title") == "Every suspect is decided."
    done = inside("apply", many, tmp_path / "decisions.csv", "-o", tmp_path / "new.csv")
    assert done.returncode == 0, done.stderr
    with (tmp_path / "new.audit.csv").open(newline="") as file:
        assert {row["how"] for row in csv.DictReader(file)} == {"sheet 1"}


def test_a_sheet_of_one_confusion_and_keeping_all(inside: Run, many: Path, context: Any, tmp_path: Path) -> None:
    inside("review", many)
    tab = Tab(context, many / "review.html")
    tab.press("Shift+G")
    labels = set(tab.page.locator("#sheet-tiles bdi").all_inner_texts())
    assert len(labels) == 1
    shown = tab.page.locator("#sheet-tiles .tile").count()
    wait_for_sheet(tab)
    tab.press("k")
    assert [row["decision"] for row in tab.decisions(tmp_path)] == ["keep"] * shown
    tab.press("Escape")
    assert tab.page.is_visible("#compare")


def test_hidden_clean_images_measure_whether_the_reviewer_looks(
    inside: Run, many: Path, context: Any, tmp_path: Path
) -> None:
    inside("review", many, "--guard")
    tab = Tab(context, many / "review.html")
    tab.page.evaluate(
        "(key) => localStorage.setItem(key, JSON.stringify({ sheets: 9, shown: 0, caught: 0 }))",
        f"noisesieve:{tab.page.evaluate('JSON.parse(document.getElementById(`data`).textContent).run')}:guards",
    )
    tab.page.reload()
    tab.press("g")  # the tenth sheet
    data = json.loads(tab.page.evaluate("document.getElementById('data').textContent"))
    guards = {reference["image"] for reference in data["references"]}
    tiles = tab.page.locator("#sheet-tiles img").evaluate_all("(images) => images.map((image) => image.src)")
    hidden = [i for i, image in enumerate(tiles) if image in guards]
    assert len(hidden) == 2
    tab.page.locator("#sheet-tiles .tile").nth(hidden[0]).click()
    wait_for_sheet(tab)
    tab.press("Enter")
    assert tab.text("#guards") == "1 of 2 hidden clean images caught"
    rows = tab.decisions(tmp_path)
    assert {row["how"] for row in rows} == {"sheet 10, 1 of 2 guards caught"}
    assert len(rows) == len(tiles) - 2


def test_charts_are_filters(inside: Run, many: Path, context: Any) -> None:
    inside("review", many)
    tab = Tab(context, many / "review.html")
    tab.page.click(".classes button >> text=blue")
    assert tab.text("#count") == "20 of 60"
    tab.page.click("#clear")
    bars = tab.page.locator("rect[data-filter=margin]")
    total = 0
    for i in range(bars.count()):
        bars.nth(i).dispatch_event("click")
        total += int(tab.text("#count").split()[0])
    assert total == 60
    tab.page.click("#chip")
    assert tab.text("#count") == "60 shown"


def test_groups_are_filters(inside: Run, colours: Path, context: Any, tmp_path: Path) -> None:
    table = colours / "t.csv"
    files = sorted(colours.rglob("*.png"))
    with table.open("w", newline="") as file:
        lines = [(f.relative_to(colours), f.parent.name, f"person {i % 3}") for i, f in enumerate(files)]
        csv.writer(file).writerows([("path", "label", "annotator"), *lines])
    wrong = {str(f.relative_to(colours)): "green" for f in files[:9]}
    run = make_run(table, tmp_path / "run", wrong, group_by="annotator").path.parent
    inside("review", run)
    tab = Tab(context, run / "review.html")
    tab.page.click("[data-filter=group] >> text=person 1")
    assert tab.text("#count") == "3 of 9"
    assert "annotator: person 1" in tab.text("#chip")


def test_a_colleagues_file_is_merged_and_contradictions_are_shown(
    inside: Run, many: Path, context: Any, browser: Any, tmp_path: Path
) -> None:
    inside("review", many)
    other = browser.new_context(accept_downloads=True)
    colleague = Tab(other, many / "review.html", reviewer="bob")
    colleague.press(*"akak")
    colleague.decisions(tmp_path)
    other.close()
    tab = Tab(context, many / "review.html")
    tab.press(*"aa")
    tab.page.set_input_files("#decisions-file", tmp_path / "decisions.csv")
    tab.page.wait_for_selector("#merge[open]")
    assert tab.text("#merge-result") == "decisions.csv: 2 decisions taken over, 1 contradict yours, 1 are the same."
    assert tab.page.locator("#conflicts button").all_inner_texts()[1].endswith("(bob)")
    tab.page.locator("#conflicts button").nth(1).click()
    tab.page.click("#merge-close")
    assert [(row["decision"], row["reviewer"]) for row in tab.decisions(tmp_path)] == [
        ("accept", "ann"),
        ("keep", "bob"),
        ("accept", "bob"),
        ("keep", "bob"),
    ]


def test_the_page_of_an_earlier_version_keeps_its_decisions(
    inside: Run, many: Path, context: Any, tmp_path: Path
) -> None:
    inside("review", many)
    tab = Tab(context, many / "review.html")
    first, second = rows_of(many)[:2]
    key = "noisesieve:" + tab.page.evaluate("JSON.parse(document.getElementById('data').textContent).run")
    old = [
        [
            first["id"],
            {"decision": "accept", "label": first["suggested_label"], "by": "ann", "at": "2026-01-01T00:00:00Z"},
        ],
        ["not on this page", {"decision": "keep", "label": "red", "by": "ann", "at": "2026-01-01T00:00:00Z"}],
        ["junk", {"decision": "explode"}],
    ]
    tab.page.evaluate(
        "([key, text]) => { localStorage.removeItem(key + ':view'); localStorage.setItem(key, text); }",
        [key, json.dumps(old)],
    )
    tab.page.reload()
    assert tab.text("#progress-text") == "1 of 60 decided, 1 more on other pages of this run"
    assert tab.text("#path") == second["path"]
    assert [row["id"] for row in tab.decisions(tmp_path)] == [first["id"], "not on this page"]


@pytest.mark.parametrize("state", ["first", "sheet", "closing", "phone"])
def test_axe_finds_no_violation(state: str, inside: Run, many: Path, browser: Any) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    inside("review", many)
    size = {"width": 390, "height": 844} if state == "phone" else {"width": 1440, "height": 900}
    context = browser.new_context(viewport=size, bypass_csp=True)
    tab = Tab(context, many / "review.html")
    tab.press("a")
    if state == "sheet":
        tab.press("g", "a")
    if state == "closing":
        tab.page.fill("#filter-text", "nothing of that name")
    rules = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
    found = axe.Axe().run(tab.page, options=rules)
    assert found.violations_count == 0, found.generate_report()
    context.close()


def test_accept_is_five_tabs_away_and_stays_in_view_at_200_percent(inside: Run, many: Path, browser: Any) -> None:
    inside("review", many)
    context = browser.new_context(viewport={"width": 720, "height": 450}, device_scale_factor=2)  # 1440 x 900 at 200 %
    tab = Tab(context, many / "review.html", reviewer="")
    stops = []
    for _ in range(5):
        tab.press("Tab")
        stops.append(tab.page.evaluate("document.activeElement.id"))
    assert "accept" in stops
    box = tab.page.locator("#accept").bounding_box()
    assert box["y"] + box["height"] <= 450
    context.close()


def test_print_is_an_audit_sheet(inside: Run, many: Path, context: Any) -> None:
    inside("review", many)
    tab = Tab(context, many / "review.html")
    tab.press(*"ak")
    tab.page.emulate_media(media="print")
    tab.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert tab.page.locator("#print-rows tr").count() == 2
    assert not tab.page.is_visible("#focus")
    assert "ann" in tab.text("#print-rows")


def test_names_of_any_length_leave_the_buttons_in_view(inside: Run, context: Any, tmp_path: Path) -> None:
    names = ["a" * 120, "with words " * 10, "Ω"]
    for c, label in enumerate(names):
        for i in range(4):
            paint(tmp_path / "data" / label.strip() / f"{i}.png", (60 * c, 90, 40), seed=i)
    wrong = {f"{names[0]}/0.png": names[1].strip(), f"{names[1].strip()}/1.png": names[0]}
    run = make_run(tmp_path / "data", tmp_path / "run", wrong).path.parent
    inside("review", run)
    tab = Tab(context, run / "review.html")
    tab.page.set_viewport_size({"width": 1366, "height": 768})
    tab.press("n")
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 1366
    assert {tab.text("#given"), tab.text("#suggested")} == {names[0], names[1].strip()}
