"""Makes docs/comparison.png: what `qualab serve` shows of a comparison.

    make demo
    .venv/bin/python docs/screenshot.py [ID] [--db DATABASE] [-o FILE]

Without an id, of the newest comparison. Needs Chromium.
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
from pathlib import Path

import manimgx_fonts_cjk
from playwright.sync_api import sync_playwright

HERE = Path(__file__).parent
WIDTH, HEIGHT = 1_000, 1_240
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


def main() -> None:
    """Serves, takes the picture, and ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("id", nargs="?")
    parser.add_argument("--db")
    parser.add_argument("-o", "--output", type=Path, default=HERE / "comparison.png")
    given = parser.parse_args()
    process, address = serve(given.db)
    try:
        shoot(f"{address}/comparisons/{given.id or newest(address)}", given.output)
    finally:
        process.terminate()
        process.communicate(timeout=20)
    print(f"Wrote {given.output}, {given.output.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
