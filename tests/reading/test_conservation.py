"""Nothing that is in a file is lost: each line is an item, an unread line, a finding or stated otherwise."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from matrix.reading.conda_file import conda_item
from matrix.reading.items import Item, Reading
from matrix.reading.recognise import READERS, read_described
from resolver.errors import UsageError
from tests.reading.strangers import STRANGERS

EXAMPLES = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
NAMES = st.from_regex(r"[a-z][a-z0-9]{0,8}(-[a-z0-9]{1,5})?", fullmatch=True)
VERSIONS = st.from_regex(r"[1-9][0-9]?(\.[0-9]{1,2}){1,2}(\+rocm[0-9]\.[0-9])?", fullmatch=True)
PINS = st.builds("{}=={}".format, NAMES, VERSIONS)
RANGES = st.builds("{}>={},<99".format, NAMES, st.from_regex(r"[1-9]\.[0-9]", fullmatch=True))
URLS = st.builds("{} @ git+https://host.example/{}@v1".format, NAMES, NAMES)
WHEELS = st.builds(
    "https://host.example/{}-{}-py3-none-any.whl".format,
    st.from_regex("[a-z]{3,6}", fullmatch=True),
    VERSIONS,
)
NOISE = st.text(
    st.characters(codec="utf-8", exclude_characters="\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\\"),
    max_size=30,
)
OPTIONS = st.sampled_from(
    [
        "--extra-index-url https://host.example/simple",
        "-f https://host.example/x.html",
        "-r other.txt",
        "--pre",
    ]
)
REQUIREMENTS = st.one_of(PINS, RANGES, NAMES, URLS, WHEELS, OPTIONS, NOISE)
SPECS = st.one_of(
    NAMES,
    st.builds("{}={}".format, NAMES, st.from_regex(r"[1-9]\.[0-9]{1,2}", fullmatch=True)),
    st.builds("conda-forge::{}".format, NAMES),
    st.builds("{}=>{}".format, NAMES, st.from_regex(r"[1-9]\.[0-9]", fullmatch=True)),
    st.builds("{};python_version<'3'".format, NAMES),
)


def seen_lines(reading: Reading) -> set[int]:
    """Return the lines of which a reading says something."""
    lines = {item.line for item in reading.items} | {unread.line for unread in reading.unread}
    return lines | {finding.evidence["line"] for finding in reading.findings}


def content(items: Iterable[Item]) -> set[tuple[str, ...]]:
    return {(item.name, item.version, item.specifier, item.url, item.marker, item.build) for item in items}


def texts_of(reading: Reading) -> str:
    return "\n".join(
        [
            *(item.text for item in reading.items),
            *(each.text for each in reading.unread),
        ]
    )


@given(lines=st.lists(REQUIREMENTS, min_size=1, max_size=12), seed=st.randoms())
@EXAMPLES
def test_lines_of_requirements(lines: list[str], seed: object) -> None:
    reading = read_described("\n".join(lines), "requirements.txt")
    stated = {
        number
        for number, line in enumerate(lines, start=1)
        if line.strip() and not line.strip().startswith("#")
    }
    assert stated <= seen_lines(reading)
    seed.shuffle(lines)  # type: ignore[attr-defined]
    assert content(read_described("\n".join(lines), "requirements.txt").items) == content(reading.items)


@given(
    first=st.lists(REQUIREMENTS, max_size=5),
    required=st.lists(REQUIREMENTS.filter(lambda line: "\0" not in line), max_size=5),
    limits=st.lists(st.one_of(PINS, RANGES), max_size=5),
)
@EXAMPLES
def test_lines_of_files_that_a_file_names(
    first: list[str], required: list[str], limits: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A file with a zero byte is not text: it is named as a whole."""
    folder = tmp_path_factory.mktemp("tree")
    files = {"a.txt": ["-r more/b.txt", *first], "more/b.txt": ["-c ../c.txt", *required], "c.txt": limits}
    (folder / "more").mkdir()
    for name, lines in files.items():
        (folder / name).write_text("\n".join(lines), encoding="utf-8")
    reading = read_described((folder / "a.txt").read_text(encoding="utf-8"), str(folder / "a.txt"))
    seen = {(item.file, item.line) for item in reading.items}
    seen |= {(unread.file, unread.line) for unread in reading.unread}
    stated = {
        ("" if name == "a.txt" else str(folder / {"c.txt": "more/../c.txt"}.get(name, name)), number)
        for name, lines in files.items()
        for number, line in enumerate(lines, start=1)
        if line.strip() and not line.strip().startswith("#")
    }
    assert stated <= seen
    assert [str(item) for item in reading.constraints] == [
        str(item) for item in read_described("\n".join(limits), "c.txt").items
    ]


def test_constraint_pins_what_a_line_requires() -> None:
    Path("limits.txt").write_text("torch==2.9.1+rocm6.4\nscipy<2\n")
    Path("base.txt").write_text("numpy==1.26.4\n")
    reading = read_described("-r base.txt\n-c limits.txt\ntorch\n", "requirements.txt")
    assert [(str(item), item.file) for item in reading.items] == [
        ("numpy 1.26.4", "base.txt"),
        ("torch 2.9.1+rocm6.4", ""),
    ]
    assert not [line for line in reading.unread if line.matters]


def test_cycle_of_files_is_named_and_the_rest_is_read() -> None:
    Path("base.txt").write_text("numpy\n-r requirements.txt\n")
    Path("requirements.txt").write_text("-r base.txt\ntorch\n")
    reading = read_described(Path("requirements.txt").read_text(), "requirements.txt")
    assert [item.name for item in reading.items] == ["numpy", "torch"]
    (unread,) = (line for line in reading.unread if line.matters)
    assert "requirements.txt -> base.txt -> requirements.txt" in str(unread)
    assert (unread.file, unread.line) == ("base.txt", 2)


@given(urls=st.lists(st.one_of(URLS, WHEELS), min_size=1, max_size=6))
@EXAMPLES
def test_requirement_with_a_url_keeps_it(urls: list[str]) -> None:
    recipe = "FROM x\n" + "".join(f'RUN pip install "{url}"\n' for url in urls)
    for text, name in (("\n".join(urls), "reqs.txt"), (recipe, "Dockerfile")):
        items = [item for item in read_described(text, name).items if item.installer == "pip"]
        assert [item.url for item in items] == [url.partition(" @ ")[2] or url for url in urls]
        assert all(item.version == "" or item.url.endswith(".whl") for item in items)


@given(specs=st.lists(SPECS, min_size=1, max_size=8), pip=st.lists(PINS, max_size=4))
@EXAMPLES
def test_lines_of_conda_files(specs: list[str], pip: list[str]) -> None:
    lines = [
        "dependencies:",
        *(f"  - {json.dumps(spec)}" for spec in specs),
        "  - pip:" if pip else "",
    ]
    lines += [f"      - {pin}" for pin in pip]
    reading = read_described("\n".join(lines), "env.yml")
    stated = {number for number, line in enumerate(lines, start=1) if "- " in line and "pip:" not in line}
    assert stated <= seen_lines(reading)
    bad = {number for number, spec in enumerate(specs, start=2) if "=>" in spec or ";" in spec}
    assert bad == {each.evidence["line"] for each in reading.findings if each.severity == "error"}


COLUMNS = st.builds(
    "{}   {}   py311_0   conda-forge".format,
    NAMES,
    st.from_regex(r"[1-9]\.[0-9]", fullmatch=True),
)


@given(rows=st.lists(st.one_of(COLUMNS, NOISE), max_size=10))
@EXAMPLES
def test_lines_of_conda_list(rows: list[str]) -> None:
    lines = ["# packages in environment at /x:", *rows]
    reading = read_described("\n".join(lines), "list.txt")
    stated = {
        number for number, line in enumerate(lines, start=1) if line.strip() and line.lstrip()[0] not in "#─-"
    }
    assert reading.kind == "output of conda list"
    assert stated <= seen_lines(reading) | {
        n
        for n, line in enumerate(lines, start=1)
        if line.startswith(("python ", "Name", "List", "@EXPLICIT"))
    }


COMMANDS = st.one_of(
    st.builds("pip install {}".format, PINS),
    st.builds(
        "A=1 python3 -m pip install --no-deps {} -i https://host.example/simple".format,
        PINS,
    ),
    st.builds("conda install -y {}".format, NAMES),
    st.builds("git clone https://host.example/{}".format, NAMES),
    st.builds("./{}.sh".format, NAMES),
    st.builds(
        "export {}=1".format,
        NAMES.map(str.upper).map(lambda name: name.replace("-", "_")),
    ),
    st.sampled_from(
        [
            "cd /opt",
            "apt-get update",
            "python setup.py install",
            "pip install .",
            "conda env list",
        ]
    ),
)


@given(rows=st.lists(COMMANDS, min_size=1, max_size=10))
@EXAMPLES
def test_commands_of_recipes_and_scripts(rows: list[str]) -> None:
    forms = {
        "Dockerfile": ["FROM x", *(f"RUN {row}" for row in rows)],
        "Dockerfile.part": [f"RUN {row}" for row in rows],
        "x.def": ["Bootstrap: docker", "From: x", "%post", *rows],
        "job.sh": ["#!/bin/bash", "#SBATCH -N 1", *rows],
    }
    found = []
    for name, lines in forms.items():
        reading = read_described("\n".join(lines), name)
        first = 1 + len(lines) - len(rows)
        assert set(range(first, len(lines) + 1)) <= seen_lines(reading)
        found.append(content(item for item in reading.items if item.installer != "image"))
    assert all(each == found[0] for each in found)


DEPENDENCIES = st.dictionaries(
    NAMES, VERSIONS.map(lambda text: text.partition("+")[0]), min_size=1, max_size=6
)


@given(needs=DEPENDENCIES, others=DEPENDENCIES)
@EXAMPLES
def test_entries_of_projects_and_locks(needs: dict[str, str], others: dict[str, str]) -> None:
    pins = json.dumps([f"{name}=={version}" for name, version in needs.items()])
    more = json.dumps([f"{name}=={version}" for name, version in others.items()])
    rows = "".join(f'{name} = "{version}"\n' for name, version in needs.items())
    files = {
        "pyproject.toml": f'[project]\nname = "own-project-0"\nversion = "1"\ndependencies = {pins}\n'
        f"[project.optional-dependencies]\nmore = {more}\n",
        "setup.cfg": "[options]\ninstall_requires =\n"
        + "".join(f"    {name}=={version}\n" for name, version in needs.items()),
        "uv.lock": "".join(
            f'[[package]]\nname = "{name}"\nversion = "{version}"\nsource = {{ registry = "https://x" }}\n'
            for name, version in needs.items()
        ),
        "poetry.lock": "".join(
            f'[[package]]\nname = "{name}"\nversion = "{version}"\n' for name, version in needs.items()
        ),
        "pixi.toml": "[workspace]\nname = 'x'\n[pypi-dependencies]\n" + rows.replace('= "', '= "=='),
        "x.eb": "easyblock = 'PythonBundle'\nexts_list = [\n"
        + "".join(f"  ({name!r}, {version!r}),\n" for name, version in needs.items())
        + "]\n",
        "list.json": json.dumps([{"name": name, "version": version} for name, version in needs.items()]),
    }
    for file, text in files.items():
        reading = read_described(text, file)
        assert {item.name: item.version for item in reading.items} == needs, file
    reading = read_described(files["pyproject.toml"], "pyproject.toml")
    assert all(f"{name}=={version}" in texts_of(reading) for name, version in others.items())


@given(
    text=st.text(max_size=300),
    file=st.sampled_from([stranger.file for stranger in STRANGERS]),
)
@EXAMPLES
def test_any_text_is_read_or_refused_with_a_message(text: str, file: str) -> None:
    with contextlib.suppress(UsageError):
        assert read_described(text, file).kind


def test_specifications_are_accepted_as_by_conda_and_rattler() -> None:
    """Recorded with conda's MatchSpec and py-rattler 0.28; where the two differ, nothing is demanded."""
    recorded = json.loads((Path(__file__).parent / "conda_specs.json").read_text())
    assert [spec for spec in recorded["accepted"] if conda_item(spec) is None] == []
    assert [spec for spec in recorded["rejected"] if conda_item(spec) is not None] == []


def test_readers_are_chosen_by_name_and_content() -> None:
    assert len({reader.__name__ for reader in READERS}) == len(READERS)
    kinds = {
        ("x.toml", "[tool.poetry.dependencies]\ntorch = '^2'\n"): "pyproject.toml",
        ("a.txt", "FROM rocm/pytorch:latest\nRUN pip install apex\n"): "Dockerfile",
        ("a.txt", "RUN pip install apex\n"): "fragment of a Dockerfile",
        ("a.txt", "from this day on\n"): "requirements",
        ("a.txt", "numpy=1.26=py_0\n"): "output of conda list",
        (
            "a.txt",
            "@EXPLICIT\nhttps://conda.anaconda.org/conda-forge/linux-64/numpy-1.26.4-py311_0.conda\n",
        ): "output of conda list",
        ("a.json", '[{"name": "torch", "version": "2.9.1"}]'): "output of pip",
        ("build", "#!/bin/bash\npip install torch\n"): "shell script",
        ("constraints.txt", "torch==2.9.1\n"): "requirements",
    }
    assert {key: read_described(key[1], key[0]).kind for key in kinds} == kinds
