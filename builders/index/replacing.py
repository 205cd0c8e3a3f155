"""Replace the pages of a directory so that no writer, however slow, puts back an older page.

Writers have no lock. A rename replaces a page whatever it contains, so a writer that was suspended between
reading the directory and the rename would undo what others wrote since. Therefore the right to replace a page
is a file, and others can take it away:

1. A writer *announces* a page: it creates a file with a new random name, to be renamed to the page.
2. It reads the directory, and writes the page into that file.
3. It renames the file to the page. If another writer has removed the file, the rename fails, and it begins
   again.

Who changes what pages are made from, such as a publisher after it has linked a wheel, *revokes* afterwards:
it removes all files that others have announced. A file that was announced before the change cannot be renamed
any more, and one announced after it was made from a directory that has the change. Then it brings the pages
up to date itself. So from then on, no page can lack the change. Writers wait for nobody, and begin again only
when another has made a change; what a killed writer announced is removed by the next.

``docs/explanation/security.md`` states what this requires of the file system, and how it was checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping


class Pages(Protocol):
    """The pages of a directory. Others may act between any two operations."""

    def announce(self, page: str) -> str:
        """Create a file that can be renamed to a page, and return its name, which is never used again."""

    def fill(self, name: str, page: str, text: bytes) -> None:
        """Write the text of a page into an announced file; do not create it again if it was removed."""

    def rename(self, name: str, page: str) -> bool:
        """Rename an announced file to its page; return False if it was removed."""

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""

    def announced(self) -> Collection[str]:
        """Return the files that are announced, by anybody."""

    def has_content(self, page: str, text: bytes) -> bool:
        """Return whether a page has this text; a missing page counts as empty."""


def prepare(
    pages: Pages, names: Collection[str], render: Callable[[], Mapping[str, bytes]]
) -> dict[str, str]:
    """Announce and write those pages that are not up to date; return the announced file of each.

    `render` reads the directory and returns the text of each page. Empty text removes a page at once; a page
    that has no text stays as it is.
    """
    announced = {page: pages.announce(page) for page in names}  # before the directory is read
    texts = render()
    for page, name in [*announced.items()]:
        text = texts.get(page)
        if text and not pages.has_content(page, text):
            pages.fill(name, page, text)
            continue
        pages.remove(announced.pop(page))
        if text == b"":
            pages.remove(page)
    return announced


def commit(
    pages: Pages,
    names: Collection[str],
    render: Callable[[], Mapping[str, bytes]],
    announced: Mapping[str, str] = {},
) -> bool:
    """Bring pages up to date after a change in the directory; return whether any was replaced.

    `announced` is what `prepare` returned before the change, if its texts include the change.
    """
    for name in pages.announced():
        if name not in announced.values():
            pages.remove(name)
    changed = bool(announced)
    while True:
        replaced = [page for page, name in announced.items() if pages.rename(name, page)]
        if len(replaced) == len(names):
            return True
        # A page that exists without wheels is removed only in `prepare`, which reads the directory once more:
        # the first wheel of a project may have been published since it was read here.
        if all(pages.has_content(page, text) for page, text in render().items()):
            return changed
        announced = prepare(pages, names, render)
        changed = True
