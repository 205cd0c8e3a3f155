"""Compare what `matrix catalog update` would add with the list that a person signed (CATALOG-UPDATE.txt).

    python .ci/signed_update.py [--sign NAME]

``--sign`` writes the list. Ends with 1 and the reason if there is none, if it is older than a week or was
changed, if it differs, or if a source cannot be reached. `nox -s release` runs it before a release is tagged.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

SIGNED = Path("CATALOG-UPDATE.txt")
_DAYS = 7
_TEXTS = {"note", "source", "status"}
_SIGN = "Read `matrix catalog update`, enter what belongs in the catalog, then: nox -s release -- --sign NAME"


def rows_of(diff: str) -> list[str]:
    """Return the rows that a diff adds, one a line, without their sources, which name the day of reading."""
    added = [line[1:] for line in diff.splitlines() if line.startswith("+") and not line.startswith("+++")]
    tables = tomllib.loads("\n".join(added)).items()
    rows = [(kind, row) for kind, listed in tables if isinstance(listed, list) for row in listed]
    facts = [(kind, {key: row[key] for key in sorted(row.keys() - _TEXTS)}) for kind, row in rows]
    return sorted(f"{kind} {json.dumps(row, default=str)}" for kind, row in facts)


def signed(rows: list[str], name: str, day: datetime.date) -> str:
    """Return the text of a list with its digest, and who signed it when."""
    lines = [f"signed by: {name}", f"day: {day}", *rows]
    return "\n".join([f"sha256: {hashlib.sha256(repr(lines).encode()).hexdigest()}", *lines, ""])


def problem_of(text: str, rows: list[str], today: datetime.date) -> str:
    """Return why a signed list does not allow a release; empty if it does."""
    form = re.match(r"sha256: .*\nsigned by: (.+)\nday: (\d{4}-\d\d-\d\d)\n", text)
    listed = text[form.end() :].splitlines() if form else []
    day = datetime.date.fromisoformat(form[2]) if form else today
    if not form or text != signed(listed, form[1], day):
        return f"{SIGNED} was changed after it was signed, or nobody signed it."
    if (today - day).days > _DAYS:
        return f"{SIGNED} was signed on {day}, more than {_DAYS} days ago."
    differences = [f"- {row}" for row in listed if row not in rows]
    differences += [f"+ {row}" for row in rows if row not in listed]
    title = f"Public sources have other facts than {SIGNED} lists:"
    return "\n".join([title, *differences]) if differences else ""


def main() -> str:
    """Compare or sign; return the error."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sign", metavar="NAME", help="write the list, signed by NAME")
    name = parser.parse_args().sign
    command = ["matrix", "catalog", "update", "--format", "json"]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if ran.returncode:
        return "Not all sources were read, so the list is incomplete. Run it where the network reaches them."
    rows, today = rows_of(json.loads(ran.stdout)["diff"]), datetime.datetime.now(datetime.UTC).date()
    if name:
        SIGNED.write_text(signed(rows, name, today), encoding="utf-8")
        return ""
    if not SIGNED.exists():
        return f"Nobody has signed what the catalog leaves out: there is no {SIGNED}. {_SIGN}"
    problem = problem_of(SIGNED.read_text(encoding="utf-8"), rows, today)
    return problem and f"{problem}\n{_SIGN}"


if __name__ == "__main__":
    sys.exit(main() or 0)
