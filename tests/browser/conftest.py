"""Chromium without a window, and an ear on everything that a page says or asks for."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The system's Chromium; where it or playwright is missing the tests fail, because they were asked for."""
    from playwright.sync_api import sync_playwright

    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    assert path, "no chromium: apt-get install chromium, or set CHROMIUM to the program"
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path)
        yield browser
        browser.close()


class Opened:
    """A page in the browser.

    Attributes:
        page: playwright's page.
        said: errors and warnings of the console, and exceptions.
        asked: addresses other than the file itself that were asked for.
    """

    def __init__(self, page: Any, address: str) -> None:
        self.page, self.said, self.asked = page, list[str](), list[str]()
        page.on("console", lambda m: self.said.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("dialog", lambda dialog: (self.said.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda r: self.asked.append(r.url) if r.url != address else None)
        page.goto(address)
        page.wait_for_selector("[data-at]")

    def through(self) -> None:
        """Scrolls through the whole page, so that every chart is drawn."""
        for at in range(0, self.page.evaluate("document.documentElement.scrollHeight"), 400):
            self.page.evaluate(f"scrollTo(0, {at})")
            self.page.wait_for_timeout(40)
        empty = "nodes => nodes.filter(n => !n.closest('section').hidden && !n.drawn).map(n => n.id)"
        for _ in range(50):
            if not self.page.eval_on_selector_all(".chart", empty):
                return
            self.page.wait_for_timeout(100)
        raise AssertionError(f"not drawn: {self.page.eval_on_selector_all('.chart', empty)}")

    def colours(self) -> list[str]:
        """The background of every token."""
        return self.page.eval_on_selector_all("[data-at]", "nodes => nodes.map(n => n.style.backgroundColor)")

    def texts(self) -> list[str]:
        """The text of every token."""
        return self.page.eval_on_selector_all("[data-at]", "nodes => nodes.map(n => n.textContent)")


@pytest.fixture
def opened(chromium: Any) -> Any:
    """opened(path, **options of the browser's context) as a context manager."""

    @contextmanager
    def opener(path: Path, **options: Any) -> Iterator[Opened]:
        context = chromium.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        try:
            yield Opened(context.new_page(), path.resolve().as_uri())
        finally:
            context.close()

    return opener
