"""A page of the browser, as a reviewer uses it."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any


class Tab:
    """A page of the browser that counts what must not happen: errors, requests, messages of the policy."""

    def __init__(self, context: Any, file: Path, *, reviewer: str = "ann") -> None:
        self.page = context.new_page()
        self.problems: list[str] = []
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", lambda message: self.problems.append(message.text) if message.type == "error" else None)
        self.page.on("request", self._note)
        self.page.goto(file.resolve().as_uri())
        if reviewer and not self.page.input_value("#reviewer"):  # else the page asks before the first decision
            self.page.fill("#reviewer", reviewer)
            self.page.evaluate("document.activeElement.blur()")

    def _note(self, request: Any) -> None:
        if not request.url.startswith(("file:", "data:", "blob:")):
            self.problems.append(request.url)

    def visit(self, file: Path, progress: str) -> None:
        """Open another page of the same browser, which may need a moment to pass on what was decided on this one."""
        self.page.goto(file.resolve().as_uri())
        self.wait_for("#progress-text", progress)

    def wait_for(self, place: str, text: str) -> None:
        """Wait until a place of the page has this text."""
        code = "([place, text]) => document.querySelector(place).innerText === text"
        try:
            self.page.wait_for_function(code, arg=[place, text], timeout=10_000)
        except Exception as error:
            raise AssertionError(f"{place} is {self.text(place)!r}, not {text!r}") from error

    def text(self, place: str) -> str:
        return str(self.page.inner_text(place))

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def decisions(self, folder: Path) -> list[dict[str, str]]:
        with self.page.expect_download() as waiting:
            self.page.click("#download")
        assert waiting.value.suggested_filename == "decisions.csv"
        waiting.value.save_as(folder / "decisions.csv")
        with (folder / "decisions.csv").open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
