"""Write the table of ``howto/lumi-ai-factory.md`` again: what a layer for each of its requests adds.

It needs the package index, so no test runs it: ``python docs/layer_sizes.py``. Local indexes and files that
pip's configuration names have no sizes; ``PIP_CONFIG_FILE=/dev/null PIP_FIND_LINKS=`` leaves them out.
"""

from __future__ import annotations

import datetime
import re
from pathlib import Path

from matrix.api import resolve_settings
from matrix.input.settings import Settings, load_catalog
from matrix.show.render import format_size
from resolver.model import IMAGE, Conflict
from resolver.versions import join_words

PAGE = Path(__file__).parent / "howto" / "lumi-ai-factory.md"
_TABLE = re.compile(r"(?ms)^## What twenty requests.*?(?=^## )")
_NAME, _DAY = re.compile(r"--base-image (\S+)"), re.compile(r"on \d{4}-\d\d-\d\d")
_ROW = re.compile(r"(?m)^\| `([^`]+)` \|.*$")


def _table(section: re.Match[str]) -> str:
    today, image = datetime.datetime.now(tz=datetime.UTC).date(), _NAME.search(section[0])
    assert image is not None  # noqa: S101  the page names it

    def row(request: re.Match[str]) -> str:
        settings = Settings(
            requirements=request[1].split(), site="lumi-g", base_image=image[1], keep_installed=IMAGE
        )
        answer = resolve_settings(settings, load_catalog(settings), today)
        if isinstance(answer, Conflict):
            return f"| `{request[1]}` | no layer: {answer.core[0].text} | |"
        added = [pick for pick in answer.distributions if pick.origin != "preinstalled"]
        built = [pick.name for pick in added if pick.origin == "build"]
        size = format_size(sum(pick.files[0].size for pick in answer.published()))
        if not added:
            return f"| `{request[1]}` | nothing; the image has it | 0 |"
        builds = f"; {join_words(built, joiner='and')} {'is' if len(built) == 1 else 'are'} built"
        return f"| `{request[1]}` | {len(added)}{builds if built else ''} | {size} |"

    return _DAY.sub(f"on {today}", _ROW.sub(row, section[0]))


if __name__ == "__main__":
    PAGE.write_text(_TABLE.sub(_table, PAGE.read_text(encoding="utf-8")), encoding="utf-8")
