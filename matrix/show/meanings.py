"""What an id of an error, a finding or a warning means, from the pages of the reference, without network."""

from __future__ import annotations

import re
from pathlib import Path

_FOLDERS = (Path(__file__).with_name("reference"), Path(__file__).parents[2] / "docs" / "reference")
"""Where the pages are if the program is installed, and in a checkout."""
_PAGES = ("ids.md", "audit.md", "checking.md", "inspecting.md", "verifying.md")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_CELLS = re.compile(r"(?<!\\) \| ")


def meanings() -> dict[str, str]:
    """Return the meaning of each id of an error, a finding or a warning, and what to do."""
    folder = next(folder for folder in _FOLDERS if folder.is_dir())
    found = {}
    for page in (folder / "errors").glob("*.md"):
        text = _LINK.sub(r"\1", page.read_text(encoding="utf-8")).partition("\n\n")[2]
        parts = text.replace("## What to do\n\n", "").strip().split("\n\n")
        found[page.stem] = "\n".join(part.replace("\n", " ") for part in parts)
    for name in _PAGES:
        for line in (folder / name).read_text(encoding="utf-8").splitlines():
            if line.startswith("| `"):
                id_, severity, *texts = _CELLS.split(_LINK.sub(r"\1", line).strip("| "))
                found[id_.strip("`")] = f"{severity}: {'; '.join(texts)}".replace("\\|", "|")
    from builders.diagnosis import known_failures

    for row in known_failures().failures:
        text = f"{row.message}\nWhy: {row.cause}\nWhat to do: {row.fix}\nSource: {row.source}"
        found[row.id] = f"{found[row.id]}\n\nIn a log: {text}" if row.id in found else text
    return found
