"""Options become words again, which the same parser reads as the same options."""

from __future__ import annotations

import argparse
import datetime
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from matrix.cli import commands, main
from matrix.command_line import options
from matrix.command_line.arguments import arguments_of, request_arguments
from matrix.input.inputs import read_inputs
from matrix.input.request import make_request
from matrix.input.settings import Settings, merge, options_of
from resolver.facts.catalog import load
from resolver.model import IMAGE, Preinstalled
from tests.resolver.solve_helpers import ask

Capture = pytest.CaptureFixture[str]
ACTIONS = ("build-one", "builds", "fetch", "plan")
PARSERS = {
    name: options.parser_of(import_module(f"matrix.{name.replace('-', '_')}"))
    for name in [*(f"commands.{name}" for name in commands()), *(f"farm.{name}" for name in ACTIONS)]
}
FLAT = sorted(
    name
    for name, parser in PARSERS.items()
    if not any(isinstance(action, argparse._SubParsersAction) for action in parser._actions)
)
TEXTS = st.text("abc7.-+ /=~'\"é", min_size=1, max_size=8).filter(
    lambda text: text.strip() and not text.startswith("-")
)
OF_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    None: TEXTS,
    options.nonempty: TEXTS,
    Path: TEXTS.map(Path).filter(lambda path: str(path) != "--"),  # argparse drops it
    options.output_path: st.sampled_from(["train.sif", "-a b.lock"]).map(Path),
    int: st.integers(1, 99),
    options.positive: st.integers(1, 99),
    float: st.integers(1, 99).map(float),
    options.date: st.dates(),
    options.names: st.lists(st.sampled_from(["gfx90a", "gfx942", "gfx1100"]), min_size=1, max_size=2),
}


def values_of(action: argparse.Action) -> st.SearchStrategy[Any] | None:
    """Return the values that an option may have; None if its type is checked in a way of its own."""
    if isinstance(action, argparse._StoreTrueAction):
        return st.just(value=True)
    one = st.sampled_from(list(action.choices)) if action.choices else OF_TYPE.get(action.type)
    if one is None or action.const is not None or isinstance(action, argparse._HelpAction):
        return None
    is_list = isinstance(action, argparse._AppendAction) or action.nargs in {"*", "+"}
    is_split = isinstance(action, argparse._ExtendAction)
    return st.lists(one, min_size=1, max_size=2) if is_list and not is_split else one


@pytest.mark.parametrize("name", FLAT)
@given(data=st.data())
def test_words_give_the_values(name: str, data: st.DataObject) -> None:
    parser = PARSERS[name]
    strategies = {action.dest: values_of(action) for action in parser._actions}
    known = {dest: strategy for dest, strategy in strategies.items() if strategy is not None}
    required = {action.dest for action in parser._actions if action.required}
    chosen = data.draw(st.sets(st.sampled_from(sorted(known)))) | required
    ordered = sorted(parser._actions, key=lambda action: bool(action.option_strings))
    values = {one.dest: data.draw(known[one.dest], label=one.dest) for one in ordered if one.dest in chosen}
    read = vars(parser.parse_args(arguments_of(parser, values)))
    assert {dest: read[dest] for dest in values} == values


REQUESTS: dict[str, dict[str, Any]] = {
    "an image of another ROCm": {"base_image": "lumi-rocm-rocm-6.2.4.sif"},
    "several architectures": {"gfx": ["gfx1100", "gfx90a"], "driver": "6.4"},
    "a driver that was named": {"driver": "5.7"},
    "the CPU": {"site": "local", "backend": "cpu", "python": "3.11", "glibc": "2.36"},
    "the oldest preferred": {"prefer": "oldest"},
    "a named day": {"day": "2025-03-01"},
}


@pytest.mark.parametrize("flag", ["no_prebuilt", "no_network_plugin"])
@pytest.mark.parametrize("target", REQUESTS.values(), ids=REQUESTS)
def test_request_is_read_from_its_arguments(target: dict[str, Any], flag: str) -> None:
    catalog = load()
    request = ask(catalog, "torch==2.9.1 apex>=1.8 flash-attn[triton]", **target)
    request = replace(request, **{flag: True})
    args = PARSERS["commands.resolve"].parse_args(request_arguments(request))
    stated = merge(Settings(), options_of(args))
    again = make_request(stated, catalog, datetime.date(2026, 11, 21), read_inputs(stated))
    assert [one.text for one in again.requirements] == [one.text for one in request.requirements]
    for name in ("backend", "gfx", "site", "date", "driver", "base_image"):
        assert getattr(again.target, name) == getattr(request.target, name)
    for name in ("prefer", "no_prebuilt", "no_network_plugin"):
        assert getattr(again, name) == getattr(request, name)


@pytest.mark.parametrize("source", [IMAGE, "list.txt"])
def test_kept_distributions_are_repeated(source: str) -> None:
    request = replace(ask(load(), "apex"), preinstalled=Preinstalled(source))
    assert request_arguments(request)[-2:] == ("--keep-installed", source)


def test_suggested_command_writes_the_same_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    conflict = ["resolve", "torch", "rocm==7.1.*", "--date", "2026-02-01", "-o", "our own.lock"]
    assert main([*conflict, "--format", "json"]) == 1
    suggestions = json.loads(capsys.readouterr().out)["suggestions"]
    assert suggestions
    for suggestion in suggestions:
        assert suggestion["request"][-2:] == ["-o", "our own.lock"]
    assert main(["resolve", *suggestions[0]["request"], "-q"]) == 0
    assert Path("our own.lock").exists()
    assert not Path("matrix.lock").exists()
