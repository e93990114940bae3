"""Size of report pages, and how long a browser takes to show one: python -m benchmarks.report_page

Needs Chromium; curves are made up, because size and time do not depend on where they come from.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

import hf_ess
from tests.synthetic import Layer, prompt, result

CHANGE = """async () => {
  const box = document.getElementById("layer"), start = performance.now();
  box.value = "3";
  box.dispatchEvent(new Event("change"));
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
  return performance.now() - start;
}"""


def main() -> None:
    """One line per page."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"))
        for length, layers in ((500, 4), (2_000, 32), (10_000, 32)):
            made = result([Layer("mamba", 16, 8), Layer("softmax", operators=4)] * (layers // 2), [prompt(length)])
            start = time.perf_counter()
            path = hf_ess.report(made, Path(folder) / f"{length}.html")
            written = time.perf_counter() - start
            page = browser.new_page()
            start = time.perf_counter()
            page.goto(path.as_uri())
            page.wait_for_selector("[data-at]")
            shown, change = time.perf_counter() - start, page.evaluate(CHANGE)
            size = path.stat().st_size / 1e6
            print(
                f"{length:6,} tokens x {layers} layers: {size:5.1f} MB, written in {written:.1f} s, "
                f"shown in {shown:.1f} s, another layer in {change / 1000:.2f} s"
            )
        browser.close()


if __name__ == "__main__":
    main()
