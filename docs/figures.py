"""Makes README's figures and picture again: trains the default comparison and shows what it says.

    python docs/figures.py [--folder RUN]

With a finished run folder nothing is trained. The picture needs Chromium; without one it is left.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

__all__ = ["printed", "with_figures"]

DOCS = Path(__file__).parent
README = DOCS.parent / "README.md"
PICTURE = DOCS / "images/report.png"
BLOCK = re.compile(r"(<!-- figures: [^\n]* -->\n```text\n).*?(\n```)", re.DOTALL)
WIDTH, HEIGHT, SCALE = 1080, 1560, 1.5
COLOURS = 96


def printed(arguments: list[str]) -> str:
    """What a command of thinwire prints in a terminal 100 columns wide, up to the report's path."""
    command = [sys.executable, "-m", "thinwire", *arguments]
    env = {**os.environ, "COLUMNS": "100"}
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    lines = [line.rstrip() for line in done.stdout.split("\nReport: ")[0].splitlines()]
    return "\n".join(lines).strip()


def with_figures(page: str, text: str) -> str:
    """The page with its block of figures replaced."""
    replaced, count = BLOCK.subn(lambda m: m[1] + text + m[2], page)
    assert count == 1, "README has lost its block of figures"
    return replaced


def take_picture(report: Path) -> None:
    """Write the top of a report's page to `PICTURE`."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("no Chromium here: the picture was left as it was", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "shot.png"
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        options += [f"--force-device-scale-factor={SCALE}", f"--window-size={WIDTH},{HEIGHT}"]
        command = [browser, *options, f"--screenshot={shot}", report.resolve().as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        picture = Image.open(shot).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        picture.save(PICTURE, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="a finished comparison; default: train one")
    folder = parser.parse_args().folder
    with tempfile.TemporaryDirectory() as temporary:
        if folder is None:
            folder = Path(temporary) / "compare"
            text = printed(["compare", "--out", str(folder)])
        else:
            text = printed(["report", str(folder)])
        README.write_text(with_figures(README.read_text(), text))
        take_picture(folder / "report.html")


if __name__ == "__main__":
    main()
