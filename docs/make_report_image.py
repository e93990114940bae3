"""Draws docs/images/report.png: a report as a browser shows it.  Needs Chromium: python docs/make_report_image.py"""

import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import hf_ess

here = Path(__file__).parent
text = (here.parent / "examples" / "mixed.txt").read_text(encoding="utf-8")
result = hf_ess.probe("demo:llama", text)
with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
    path = hf_ess.report(result, Path(folder) / "report.html")
    browser = driver.chromium.launch(executable_path=shutil.which("chromium"))
    page = browser.new_page(viewport={"width": 1100, "height": 1020})
    page.goto(path.as_uri())
    page.select_option("#measure", "t0")
    page.select_option("#layer", "1")
    page.select_option("#unit", "5")
    page.click("details.how summary")
    page.click(".token.delimiter >> text=<|endoftext|> >> nth=1")
    page.evaluate("window.scrollTo(0, 0)")
    page.wait_for_timeout(500)
    page.screenshot(path=here / "images" / "report.png")
    browser.close()
