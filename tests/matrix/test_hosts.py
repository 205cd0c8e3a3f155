"""Hosts that a lock names and the user's configuration does not, and secrets in messages."""

from __future__ import annotations

import hashlib
import re
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

import matrix
from builders.index_client import IndexClient
from matrix.api import read_lock, write_lock
from matrix.building.locked import check_sources, unnamed_hosts
from matrix.cli import main
from matrix.input.locking import exclude_file, is_own
from matrix.input.settings import Settings
from resolver.errors import LockError
from resolver.facts.catalog import Catalog
from resolver.facts.schema import Git, Sdist
from resolver.indexes import File
from resolver.lock import dumps
from resolver.model import Distribution
from resolver.reporter import SILENT
from resolver.texts import masked
from tests.support.locks import built_pick, lock_of, locked_pick
from tests.support.tiny import tiny_wheel
from tests.support.web_server import web_server

Capture = pytest.CaptureFixture[str]
ZEROS = "0" * 64
INDEX = "https://index.example/simple"
FILE = File("far-1.0-py3-none-any.whl", "https://files.example/far.whl", ZEROS, 1, INDEX)


@pytest.mark.parametrize(
    ("pick", "hosts"),
    [
        (locked_pick("far", "1.0", FILE), ["files.example", "index.example"]),
        (locked_pick("far", "1.0", replace(FILE, url="file:///far.whl", index="")), []),
        (built_pick("far", sdist=Sdist(file="f.zip", sha256="00", url="https://a.example:8")), ["a.example"]),
        (built_pick("far", git=Git(url="ssh://me@git.example/far", commit="00")), ["git.example"]),
        (built_pick("far", git=Git(url="me@git.example:far", commit="00")), ["git.example"]),
        (built_pick("far", git=Git(url="https://github.com/ROCm/apex", commit="00")), []),
        (locked_pick("torch", "2.9.1", index="https://Download.pytorch.org/whl/cpu"), []),
    ],
    ids=[
        "file of an index", "file here", "sdist", "git", "git by ssh", "host of the catalog",
        "index of the catalog",
    ],
)  # fmt: skip
def test_host_that_the_configuration_does_not_name_is_found(
    pick: Distribution, hosts: list[str], catalog: Catalog
) -> None:
    lock = lock_of(pick)
    assert unnamed_hosts(lock, Settings(), catalog) == hosts
    named = [f"https://{host}/simple" for host in hosts]
    assert unnamed_hosts(lock, Settings(extra_index_url=named), catalog) == []
    assert unnamed_hosts(lock, Settings(mirrors={f"{url}/": "file:///m/" for url in named}), catalog) == []
    assert unnamed_hosts(lock, Settings(requirements=[f"x @ {url}/x.whl" for url in named]), catalog) == []


def test_host_of_an_index_that_pip_would_search_is_found(catalog: Catalog) -> None:
    lock = lock_of(left_open=("x",), indexes=("https://evil.example/simple",))
    assert unnamed_hosts(lock, Settings(), catalog) == ["evil.example"]


@pytest.mark.usefixtures("own_cache")
def test_host_to_which_a_page_of_a_configured_index_links_is_named(tmp_path: Path, catalog: Catalog) -> None:
    page = tmp_path / "simple" / "far" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text('<!DOCTYPE html><html><body><a href="https://files.example/far.whl/far-1.0-py3-none-any.whl">'
                    "far-1.0-py3-none-any.whl</a></body></html>")  # fmt: skip
    with web_server(tmp_path) as server:
        index = f"{server}/simple"
        settings = Settings(index_url=index)
        lock = lock_of(locked_pick("far", "1.0", replace(FILE, index=index)))
        assert unnamed_hosts(lock, settings, catalog) == ["files.example"]  # the page was never read
        IndexClient([index]).project("far")
        assert unnamed_hosts(lock, settings, catalog) == []
        other = replace(FILE, url="https://evil.example/far.whl", index=index)
        assert unnamed_hosts(lock_of(locked_pick("far", "1.0", other)), settings, catalog) == ["evil.example"]


@pytest.mark.parametrize(
    "command", [["farm", "fetch", "--offline"], ["build-wheels"], ["env", "--for", "pip"]]
)
def test_hosts_are_named_in_one_line(command: list[str], capsys: Capture) -> None:
    Path("matrix.lock").write_text(dumps(lock_of(locked_pick("far", "1.0", FILE))))
    main(command)
    lines = [line for line in capsys.readouterr().err.splitlines() if "files.example" in line]
    assert lines[0] == (
        "The lock names hosts that your configuration does not name: files.example, index.example."
    )


GOOD = "good-1.0-py3-none-any.whl"
KEY = b"-----BEGIN OPENSSH PRIVATE KEY-----\n"
KEY_HASH = hashlib.sha256(KEY).hexdigest()


@pytest.fixture
def secret(tmp_path: Path, own_cache: None) -> Path:  # noqa: ARG001  the cache is empty
    """Return a private file, beside a directory of wheels that the user's configuration names."""
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "link.whl").symlink_to("../home/id_rsa")
    path = tmp_path / "home" / "id_rsa"
    path.parent.mkdir()
    path.write_bytes(KEY)
    path.chmod(0o600)
    return path


def copies_of(secret: Path) -> list[Path]:
    """Return the files beside a private file, or below its root, that have its content."""
    files = [path for path in secret.parent.parent.rglob("*") if path.is_file()]
    return [path for path in files if path.resolve() != secret and KEY in path.read_bytes()]


PATHS = [
    "file://{root}/home/id_rsa",
    "FILE://{root}/home/id_rsa",
    "file://localhost{root}/home/id_rsa",
    "file://{root}/wheels/../home/id_rsa",
    "file://{root}/wheels/%2e%2e/home/id%5Frsa",
    "file://{root}/wheels/link.whl",
    "file://{root}/home",
    "file:///./home/id_rsa",
    "https://mirrored.example/../home/id_rsa",
    "git+file://{root}/home@0123456789012345678901234567890123456789",
    "http://127.0.0.1:9/id_rsa",
    "ftp://127.0.0.1:9/id_rsa",
]


@pytest.mark.usefixtures("secret")
@pytest.mark.parametrize("sha256", ["", KEY_HASH, ZEROS], ids=["none", "right", "wrong"])
@pytest.mark.parametrize("url", PATHS)
def test_lock_of_others_copies_no_private_file(
    url: str, sha256: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = (tmp_path / "wheels").as_uri()
    monkeypatch.setenv("PIP_FIND_LINKS", wheels)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr("urllib3.util.retry.Retry.get_backoff_time", lambda _: 0)
    Path("matrix.toml").write_text(f"[mirrors]\n'https://mirrored.example/' = '{wheels}/'\n")
    file = File(GOOD, url.format(root=tmp_path), "" if url.startswith("git+") else sha256, 1)
    Path("matrix.lock").write_text(dumps(lock_of(locked_pick("good", "1.0", file))))
    assert main(["farm", "fetch", "--wheelhouse", "W"]) != 0
    output = capsys.readouterr()
    assert "good" in output.err
    assert sha256 == KEY_HASH or KEY_HASH not in output.out + output.err
    assert copies_of(tmp_path / "home" / "id_rsa") == []
    assert not list(Path().glob("W/*"))
    if not url.startswith("https:"):
        assert main(["env", "--for", "pip", "-o", "requirements.txt"]) == 2
        assert not Path("requirements.txt").exists()


@pytest.mark.parametrize(
    ("pick", "problem"),
    [
        (built_pick("good", sdist=Sdist(file="good-1.0.zip", sha256="")), "has no SHA-256"),
        (built_pick("good", sdist=Sdist(file="good-1.0.zip", sha256=ZEROS, url="file:///a")), "of yours"),
        (built_pick("good", git=Git(url="file:///root/private.git", commit="0" * 40)), "of yours"),
        (locked_pick("good", "1.0", File(GOOD, "https://evil.example/good.whl")), "has no SHA-256"),
        (locked_pick("good", "1.0", File(GOOD, "https://github.com/evil/good.whl")), "has no SHA-256"),
    ],
    ids=["sdist without hash", "sdist", "repository", "wheel", "wheel at a host of the catalog"],
)
@pytest.mark.usefixtures("own_cache")
def test_source_that_a_lock_of_others_must_not_name_is_named(
    pick: Distribution, problem: str, catalog: Catalog
) -> None:
    with pytest.raises(LockError, match=f"\n  good: .*{problem}"):
        check_sources(lock_of(pick), Settings(), catalog, SILENT)


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(
    "command", [["build-wheels"], ["farm", "build-one", "00"], ["build-container", "x.sif"]]
)
def test_lock_of_others_is_checked_by_each_command_that_fetches(command: list[str], capsys: Capture) -> None:
    pick = built_pick("apex", git=Git(url="file:///root/private.git", commit="0" * 40))
    Path("matrix.lock").write_text(dumps(lock_of(pick)))
    assert main(command) == 2
    problem = "apex: git+file:///root/private.git is not in an index"
    assert problem in capsys.readouterr().err
    with pytest.raises(LockError, match=re.escape(problem)):
        matrix.build(read_lock(), matrix.Index("index"))


def test_wheel_on_this_machine_is_fetched_if_it_is_the_users(
    secret: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """With `PIP_FIND_LINKS`; or if this user wrote the lock; but never a file that is not a wheel."""
    wheel = tiny_wheel(tmp_path / "wheels", "good", "1.0")
    lock = lock_of(locked_pick("good", "1.0", File(wheel.name, wheel.as_uri())))
    Path("matrix.lock").write_text(dumps(lock))
    assert main(["farm", "fetch"]) == 2
    assert f"good: {wheel.as_uri()} is not in an index or a directory of yours" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
        assert main(["farm", "fetch"]) == 0
    write_lock(lock)
    assert main(["farm", "fetch", "--wheelhouse", "W"]) == 0
    assert (Path("W") / wheel.name).read_bytes() == wheel.read_bytes()
    link = tmp_path / "wheels" / "good-1.0-1-py3-none-any.whl"
    link.symlink_to(secret)
    write_lock(lock_of(locked_pick("good", "1.0", File(link.name, link.as_uri()))))
    assert main(["farm", "fetch"]) == 1
    assert copies_of(secret) == []


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("own", [True, False])
def test_excluded_file_does_not_change_whose_lock_it_is(*, own: bool) -> None:
    lock = lock_of(locked_pick("good", "1.0", File(GOOD, "file:///data/good.whl", ZEROS)))
    write_lock(lock) if own else Path("matrix.lock").write_text(dumps(lock))
    assert is_own(read_lock("matrix.lock")) is own
    exclude_file(Path("matrix.lock"), "good", ZEROS, "requires CUDA")
    changed = read_lock("matrix.lock")
    assert changed.request.excluded
    assert is_own(changed) is own


@pytest.mark.parametrize("name", ["id_rsa", "other-1.0-py3-none-any.whl", "good-1.0.sh", "good-x.tar.gz"])
def test_file_of_a_lock_must_have_the_name_of_a_wheel_or_an_sdist(name: str) -> None:
    with pytest.raises(LockError, match="is not the name of a wheel or an sdist of good"):
        dumps(lock_of(locked_pick("good", "1.0", File(name, "https://a.example/x", ZEROS))))


COMMANDS = [
    ["check", "--format", "json"],
    ["resolve", "sympy", "--backend", "cpu"],
    ["resolve", "torch", "--backend", "cpu", "--offline"],
    ["resolve", "x @ https://me:s3cr3t@127.0.0.1:9/x-1.0-py3-none-any.whl", "--backend", "cpu"],
    ["check", "list.txt", "--timeout", "20"],
    ["env", "--for", "pip"],
    ["farm", "fetch"],
    ["catalog", "list"],
]


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("command", COMMANDS, ids=[" ".join(command[:2]) for command in COMMANDS])
def test_no_command_writes_a_login(
    command: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither to stdout, nor to stderr, nor to any file: logs, locks, caches."""
    server = "127.0.0.1:9"
    for name, value in {
        "PIP_NO_INDEX": "0",
        "PIP_INDEX_URL": f"https://me:s3cr3t@{server}/simple",
        "PIP_EXTRA_INDEX_URL": f"https://s3cr3t@{server}/a https://me:s3cr3t@{server}/b",
        "UV_INDEX": f"x=https://me:s3cr3t@{server}/c",
        "PIP_RETRIES": "0",
        "NO_PROXY": "127.0.0.1",
        "GITHUB_TOKEN": "s3cr3t",
    }.items():
        monkeypatch.setenv(name, value)
    Path("list.txt").write_text("sympy\n")
    Path("index/simple").mkdir(parents=True)
    Path("matrix.lock").write_text(dumps(lock_of(locked_pick("far", "1.0", FILE))))
    main([*command[:1], "--debug", "-vv", *command[1:]])
    output = capfd.readouterr()
    assert "s3cr3t" not in output.out + output.err
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"s3cr3t" not in path.read_bytes(), path


SECRETS = {
    "a login": "https://me:s3cr3tword@127.0.0.1:9/simple",
    "an option": "tool --token s3cr3tword",
    "an option with =": "tool --password=s3cr3tword",
    "curl -u": "curl -u me:s3cr3tword https://host.example/file",
    "a login at a proxy": "curl --proxy-user me:s3cr3tword https://host.example/file",
    "a header": "curl -H 'Authorization: Bearer s3cr3tword' https://host.example/file",
    "another header": "curl -H 'X-Api-Key: s3cr3tword' https://host.example/file",
    "a cookie": "curl --cookie 'session=s3cr3tword' -H \"Cookie: c=s3cr3tword\" https://host.example",
    "a variable": "MYSITE_PASS=s3cr3tword",
    "another variable": "export MYSERVICE_KEY='s3cr3tword'",
    "mysql": "MYSQL_PWD=s3cr3tword",
    "a passphrase": "passphrase: s3cr3tword",
    "wandb": "wandb login 0123456789abcdef0123456789abcdef01234567",
    "a key of Google": "AIzaSyA1234567890123456789012345678901x",
    "a hook of Slack": "https://hooks.slack.com/services/T000/B000/s3cr3tword",
    "netrc": "machine host.example login me password s3cr3tword",
    "a private key": "echo '-----BEGIN RSA PRIVATE KEY-----\ns3cr3tword\n-----END RSA PRIVATE KEY-----'",
}
PLANTED = re.compile(rb"s3cr3tword|0123456789abcdef|AIzaSyA")


def inputs_with(secret: str) -> dict[str, str]:
    """Return an input of each kind that has a secret where its format can have one."""
    line = secret.replace("\n", " ")
    name, _, value = (
        line.removeprefix("export ").partition("=")
        if "=s3cr3t" in line[:20]
        else ("HF_TOKEN", "", "s3cr3tword")
    )
    index = secret if "://" in secret and " " not in secret else "https://host.example/simple"
    return {
        "requirements.txt": f"numpy\n--extra-index-url {index}\nx {line}\n# {line}\n",
        "direct.txt": f"x @ {index}/x.zip\ny @ {line}\n",
        "Dockerfile": f"FROM rocm/pytorch\nENV NAME {line}\nRUN {line} && pip install x -i {index}\n",
        "env.yml": f"dependencies:\n- python=3.12\n- pip:\n  - -i {index}\n  - |-\n    x {line}\nvariables:\n"
        f"  NAME: {line!r}\n  {name}: {value}\n",
        "container.def": f"Bootstrap: docker\nFrom: rocm/pytorch\n%post\n  {line}\n  pip install x\n",
        "job.sh": f"#!/bin/bash\n#SBATCH --gpus=1\n{secret}\nsrun python x.py {line}\n",
        "build.log": f"+ {line}\n{secret}\nRuntimeError: {line}\nerror: command failed {line}\n",
        "pyproject.toml": f'[project]\nname = \'x\'\nversion = \'1\'\ndependencies = ["""{line}"""]\n',
    }


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(
    "secret",
    [
        pytest.param(text, id=name, marks=[] if number % 8 == 0 else pytest.mark.slow)
        for number, (name, text) in enumerate(SECRETS.items())
    ],
)
def test_no_output_repeats_a_secret_of_an_input(
    secret: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name, text in inputs_with(secret).items():
        Path(name).write_text(text)
        for options in ([], ["--format", "json", "--debug"]):
            main(["-vv", "check", name, "--site", "lumi-g", "--offline", *options])
            output = capfd.readouterr()
            assert not PLANTED.search((output.out + output.err).encode()), name
        Path(name).unlink()
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or not PLANTED.search(path.read_bytes()), path


@pytest.mark.parametrize(
    "text",
    [
        "--a",
        "token=",
        "-----BEGIN ",
        "://",
        "KEY_",
        "login a ",
        "cookie:",
        "-u a",
        "a.b-",
        "token \\",
        "hf_",
        "xoxb-",
    ],
)
def test_masking_takes_time_that_grows_with_the_text(text: str) -> None:
    started = time.process_time()
    masked("token " + text * (100_000 // len(text)))
    assert time.process_time() - started < 1.5


@pytest.mark.parametrize(
    "text",
    [
        "matrix @ git+https://github.com/ROCm/apex@0123456789abcdef0123456789abcdef01234567",
        "ssh://git@host.example/x", "docker run -u 1000:1000", "key: 3f1c9a52", "token=$CI_TOKEN",
        "PWD=/home/me", "password authentication failed", "PASS: test_apex", "one token at a time",
        "sk-learn-contrib-with-a-long-name==1.0",
    ],
)  # fmt: skip
def test_what_is_no_secret_stays(text: str) -> None:
    assert masked(text) == text


@pytest.mark.usefixtures("own_cache")
def test_repair_leaves_out_logins_and_says_where_they_belong(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    wheel = tiny_wheel(tmp_path / "www" / "simple" / "good", "good", "1.0")
    (wheel.parent / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
    with web_server(tmp_path / "www") as server:
        index = server.replace("//", "//me:s3cr3tword@") + "/simple"
        Path("requirements.txt").write_text("good==2.0\n")
        main(["check", "requirements.txt", "--repair", "-o", "new", "--index-url", index, "--backend", "cpu",
              "--site", "lumi-c"])  # fmt: skip
    assert "~/.netrc" in capsys.readouterr().err
    assert "index-url" in Path("new/matrix.toml").read_text()
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"s3cr3tword" not in path.read_bytes(), path
