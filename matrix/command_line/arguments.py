"""The words of a command line for the values of options: the reverse of parsing."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from builders.network.urls import without_password
from matrix.command_line.options import parser_of

if TYPE_CHECKING:
    from pathlib import Path

    from matrix.command_line.context import Context
    from resolver.model import Request, Suggestion


def arguments_of(parser: argparse.ArgumentParser, values: Mapping[str, object]) -> list[str]:
    """Return the words that give values to the options of a parser, by their names in its result.

    The words have the order of the values. A value that is empty or the default is left out.

    Examples
    --------
    >>> parser = argparse.ArgumentParser()
    >>> for option in ("names", "--site", "--lock"):
    ...     _ = parser.add_argument(option, default="lumi-g")
    >>> _ = parser.add_argument("-c", dest="files", action="append")
    >>> _ = parser.add_argument("--offline", action="store_true")
    >>> values = {"names": "torch", "site": "lumi-g", "files": ["a", "b"], "offline": True, "lock": ""}
    >>> arguments_of(parser, values)
    ['torch', '-c', 'a', '-c', 'b', '--offline']
    """
    actions = {action.dest: action for action in parser._actions}  # noqa: SLF001
    words: list[str] = []
    for name, value in values.items():
        action = actions[name]
        option = next(iter(action.option_strings), "")
        if not value or value == action.default:
            continue
        if value is True:
            words.append(option)
            continue
        texts = [str(one) for one in value] if isinstance(value, (list, tuple)) else [str(value)]
        if isinstance(action, argparse._ExtendAction):  # noqa: SLF001  it takes several at once
            texts = [",".join(texts)]
        for text in texts:
            if option and text.startswith("-"):  # it would be read as another option
                words.append(f"{option}={text}" if option.startswith("--") else f"{option}{text}")
            else:
                words += [option, text] if option else [text]
    return words


def command_arguments(module: str, values: Mapping[str, object]) -> tuple[str, ...]:
    """Return the words that give values to the options of a module of `matrix`; see `arguments_of`."""
    return tuple(arguments_of(parser_of(import_module(f"matrix.{module}")), values))


def request_arguments(request: Request, **more: object) -> tuple[str, ...]:
    """Return a request as arguments of ``matrix resolve``; `more` are options in addition or instead."""
    target = request.target
    texts = {requirement.text: requirement.name for requirement in request.requirements}
    names = Counter(texts.values())
    values: dict[str, object] = {
        # torch next to torch<2.9 says nothing
        "requirements": [text for text, name in texts.items() if text != name or names[name] == 1],
        "site": request.site_file or target.site,
        "date": target.date,
        "backend": target.backend if target.backend == "cpu" else None,
        "gfx": target.gfx,
        "driver": target.driver,
        "base_image": target.base_image,
        "no_base_image": request.use_image == "none",
        "prefer": request.prefer if request.prefer != "advised" else None,
        "keep_installed": request.preinstalled.source if request.preinstalled else None,
        "replace": request.preinstalled.replaced if request.preinstalled else None,
        "no_prebuilt": request.no_prebuilt,
        "no_network_plugin": request.no_network_plugin,
        "ops": request.ops,
        "catalog": request.catalogs,
    }
    return command_arguments("commands.resolve", values | more)


def suggested_arguments(
    suggestion: Suggestion, context: Context, output: Path | None = None
) -> tuple[str, ...]:
    """Return arguments of ``matrix resolve`` that resolve a suggested request in the same place.

    Requirements from files are named by their files, unless the change concerns one of them. A login in the
    URL of an index is left out. `output` is the lock that the command would have written.
    """
    settings, inputs, request = context.settings, context.inputs, suggestion.request
    texts = [requirement.text for requirement in request.requirements]
    from_files = [one.text for one in inputs.requirements if one.text not in settings.requirements]
    index, extra_indexes = inputs.index_url, inputs.extra_index_urls
    more: dict[str, object] = {}
    if settings.base_image and request.target.base_image:
        more["base_image"] = settings.base_image  # the name of an image file is not enough to find it
    if from_files and all(text in texts for text in from_files):
        more["requirements"] = [text for text in texts if text not in from_files]
        for name in ("requirement_files", "env", "project", "extras", "groups"):
            more[name] = getattr(settings, name)
        index, extra_indexes = settings.index_url, settings.extra_index_url
    return request_arguments(
        request,
        **more,
        constraint_files=settings.constraint_files,
        override_files=settings.override_files,
        index_url=without_password(index) if index else None,
        extra_index_url=[without_password(url) for url in extra_indexes],
        index_strategy=settings.index_strategy,
        offline=settings.offline,
        consumer=settings.consumer,
        output=output,
    )
