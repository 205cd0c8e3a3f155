"""Ask the requests of a table of docs/development/content.md again, and compare the answers.

The table has site, request, answer, verdict and evidence; verdict and evidence are a person's. The exit code
is 1 if an answer is another one, so that each change of an answer is judged. ``--write`` puts the new answers
into the table, in which their verdicts are then to be read again.

``python -m benchmarks.requests [--date YYYY-MM-DD] [--write]``
"""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from matrix.cli import main as matrix

PAGE = Path(__file__).resolve().parent.parent / "docs" / "development" / "content.md"
ROW = re.compile(
    r"^\| (?P<site>[\w-]+) \| `(?P<request>[^`|]+)` \| (?P<answer>[^|]+) \|(?P<rest>.+)$", re.MULTILINE
)
DAY = re.compile(r"asked again on (\d{4}-\d\d-\d\d)")
_BAD_INPUT = 2
SHOWN = ("torch", "python", "rocm")


def answer(site: str, request: str, day: str) -> str:
    """Return the versions of what was requested, then torch, Python, ROCm and the image; or the refusal."""
    out = io.StringIO()
    argv = ["resolve", *request.split(), "--site", site, "--date", day, "--no-lock", "--format", "json"]
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        code = matrix(argv)
    document: dict[str, Any] = json.loads(out.getvalue())
    if document["status"] == "conflict":
        return "no resolution"
    if document["status"] == "error":
        return "refused" if code == _BAD_INPUT else "stopped"
    versions = {pick["name"]: pick["version"] for pick in document["picks"]}
    named = [
        re.split(r"[^\w.-]", text)[0].lower().replace("_", "-") for text in request.split() if text[0] != "-"
    ]
    named = [name if name in versions else f"{name}-rocm" for name in named]
    parts = [f"{name} {versions[name]}" for name in named if name in versions]
    parts += [f"{name} {versions[name]}" for name in SHOWN if name in versions and name not in named]
    return "; ".join([*parts, *([image] if (image := document["target"].get("base_image")) else [])])


def main() -> int:
    """Run the requests."""
    page = PAGE.read_text(encoding="utf-8")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--date", default=DAY.search(page)[1])  # type: ignore[index]
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    others = 0

    def again(row: re.Match[str]) -> str:
        nonlocal others
        found = answer(row["site"], row["request"], args.date)
        if found != row["answer"]:
            others += 1
            print(f"{row['site']} {row['request']}\n  was  {row['answer']}\n  now  {found}")
        return f"| {row['site']} | `{row['request']}` | {found} |{row['rest']}"

    text, count = ROW.subn(again, page)
    print(f"{count} requests, {others} with another answer")
    if args.write:
        PAGE.write_text(text, encoding="utf-8")
    return int(bool(others))


if __name__ == "__main__":
    sys.exit(main())
