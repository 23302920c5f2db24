"""Makes docs/comparison.png and docs/report.png: a comparison as `qualab serve` shows it, and its report's first page.

    make demo
    .venv/bin/python docs/screenshot.py [ID] [--db DATABASE] [-o FOLDER]

Without an id, of the newest comparison. Needs Chromium, and pdftoppm of Poppler.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from dataclasses import replace
from pathlib import Path

import manimgx_fonts_cjk
from playwright.sync_api import sync_playwright

from qualab import bootstrap
from qualab.model.names import Language, ReportFormat
from qualab.report.model import report_model

HERE = Path(__file__).parent
WIDTH, HEIGHT = 1_000, 1_240
PAGE_HEIGHT = 1_000
"""Of the report's page, in pixels."""
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync", "--no-first-run"]


def serve(db: str | None) -> tuple[subprocess.Popen[str], str]:
    """The service as a process, and its address."""
    command = [sys.executable, "-m", "qualab", "serve", "--port", "0", "--no-worker", *(["--db", db] if db else [])]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("qualab serves "):
            return process, line.split()[2]
    sys.exit("The service did not start")


def newest(address: str) -> str:
    """The id of the newest comparison."""
    with urllib.request.urlopen(f"{address}/v1/comparisons?limit=1&status=finished") as answer:
        entries = json.load(answer)["entries"]
    return str(entries[0]["id"]) if entries else sys.exit("There is no comparison: make demo")


def shoot(url: str, path: Path) -> None:
    """The top of the page, without the arms, which name places of this machine.

    Korean letters come from the package of the report's fonts.
    """
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        (Path(folder) / "fonts").symlink_to(Path(manimgx_fonts_cjk.__file__).parent)
        browser = playwright.chromium.launch(
            executable_path=chromium, args=ARGUMENTS, env={**os.environ, "XDG_DATA_HOME": folder}
        )
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, locale="en-GB")
        page.goto(url)
        page.evaluate("document.getElementById('arms').remove()")
        page.screenshot(path=path)
        browser.close()


def print_page(comparison_id: str, db: str | None, path: Path) -> None:
    """The first page of the PDF, likewise without the arms."""
    store = bootstrap.store_at(db)
    model = report_model(store, comparison_id, Language.ENGLISH)
    shown = replace(model, sections=tuple(one for one in model.sections if one.id != "arms"))
    content = bootstrap.renderer(ReportFormat.PDF.value)(shown)
    size = ["-scale-to-x", "-1", "-scale-to-y", str(PAGE_HEIGHT)]
    command = ["pdftoppm", "-png", "-singlefile", "-f", "1", *size, "-", str(path.with_suffix(""))]
    subprocess.run(command, input=content, check=True)


def main() -> None:
    """Serves, takes the pictures, and ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("id", nargs="?")
    parser.add_argument("--db")
    parser.add_argument("-o", "--output", type=Path, default=HERE)
    given = parser.parse_args()
    page, report = (given.output / name for name in ("comparison.png", "report.png"))
    process, address = serve(given.db)
    try:
        chosen = given.id or newest(address)
        shoot(f"{address}/comparisons/{chosen}", page)
    finally:
        process.terminate()
        process.communicate(timeout=20)
    print_page(chosen, given.db, report)
    for path in (page, report):
        print(f"Wrote {path}, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
