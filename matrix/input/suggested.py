"""The arguments of a suggested command: everything that the user's own command has, and the change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from builders.network.urls import without_password

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matrix.input.inputs import Inputs
    from matrix.input.settings import Settings
    from resolver.model import Suggestion


def as_command(suggestion: Suggestion, settings: Settings, inputs: Inputs) -> Suggestion:
    """Return a suggestion whose arguments resolve the same request in the same place.

    Requirements from files are named by their files, unless the change concerns one of them; then all of
    them are listed. Constraints, overrides and indexes are kept. A login in the URL of an index is left
    out.
    """
    words = list(suggestion.request)
    if settings.base_image and "--base-image" in words:  # the name of an image file is not enough to find it
        words[words.index("--base-image") + 1] = settings.base_image
    typed = [*settings.requirements]
    from_files = [one.text for one in inputs.requirements if one.text not in typed]
    index, extra_indexes = inputs.index_url, inputs.extra_index_urls
    if from_files and all(text in words for text in from_files):
        for text in from_files:
            words.remove(text)
        words += _repeated("-r", settings.requirement_files)
        words += _repeated("--env", [settings.env] if settings.env else [])
        words += _repeated("--project", [settings.project] if settings.project else [])
        words += [*_repeated("--extra", settings.extras), *_repeated("--group", settings.groups)]
        index, extra_indexes = settings.index_url, tuple(settings.extra_index_url)
    words += _repeated("-c", settings.constraint_files)
    words += _repeated("--override", settings.override_files)
    words += _repeated("--index-url", [without_password(index)] if index else [])
    words += _repeated("--extra-index-url", map(without_password, extra_indexes))
    words += _repeated("--index-strategy", [settings.index_strategy] if settings.index_strategy else [])
    words += ["--offline"] if settings.offline else []
    return replace(suggestion, request=tuple(words))


def _repeated(option: str, values: Iterable[str]) -> list[str]:
    return [word for value in values for word in (option, value)]
