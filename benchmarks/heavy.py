"""Build real extensions that take minutes, with the real command in the test image; print JSON.

The benchmark compares nothing. It shows which real sources become sound wheels for gfx90a, and how much time
and memory the builds take. torch is the rig's stand-in, and there is no GPU: the code objects are real, but
none of them runs. A failed build is a row like the others, and the benchmark then ends with exit code 1.

Start it manually with ``python -m benchmarks.heavy [--only NAME] [--jobs N] [--settings FILE]``; it takes
half an hour or more. FILE is a ``matrix.toml``, with ``[mirrors]`` if GitHub, which has two of the sources,
cannot be reached.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.rig.rig import the_rig
from tests.support.records import results_of
from tests.support.site import Site

if TYPE_CHECKING:
    from tests.rig.rig import Rig

MIB = 1 << 20


class Build(NamedTuple):
    """A build: its name, requirement and ops."""

    title: str
    requirement: str
    ops: str = ""

    @property
    def project(self) -> str:
        """The distribution's name."""
        return self.requirement.partition("==")[0]


DEEPSPEED = "deepspeed==0.19.8"
BUILDS = [
    Build("causal-conv1d", "causal-conv1d==1.7.0"),
    Build("apex amp_C,apex_C,fused_layer_norm_cuda", "apex==1.13.0", "amp_C,apex_C,fused_layer_norm_cuda"),
    Build("bitsandbytes", "bitsandbytes==0.48.2"),
    *(
        Build(f"deepspeed {op}", DEEPSPEED, op)
        for op in (
            "fused_adam,cpu_adam,cpu_adagrad,cpu_lion,utils,pin_memory", "fused_lamb", "fused_lion",
            "quantizer", "random_ltd", "spatial_inference", "transformer", "stochastic_transformer",
            "transformer_inference", "ragged_ops", "ragged_device_ops", "inference_core_ops", "fused_adam,dc",
        )
    ),
]  # fmt: skip
"""Each wheel has one op with GPU code, so that an op that does not compile does not affect others; one of
these wheels has the ops for the CPU, too. async_io needs libaio, which the image lacks."""


def attempt(rig: Rig, build: Build, jobs: int, settings: str) -> dict[str, Any]:
    """Resolve and build one case in its own directory, and return the result.

    Parameters
    ----------
    jobs
        Compile jobs at once.
    settings
        Text of its ``matrix.toml``.
    """
    site = Site(rig, build.requirement)
    (site.work / "matrix.toml").write_text(settings)
    site.resolve()
    chosen = ["--ops", f"{build.project}:{build.ops}"] if build.ops else []
    started = time.perf_counter()
    done = site.build(*chosen, "--jobs", str(jobs))
    row: dict[str, Any] = {
        "build": build.title,
        "requirement": build.requirement,
        "exit code": done.returncode,
        "seconds": round(time.perf_counter() - started, 1),
    }
    if done.returncode:
        return row | {"said": last_words(done.stderr)}
    wheel = site.wheel(build.project)
    audited = site.audit(wheel, "--gfx90a")
    findings = results_of(site.statement())["findings"]
    return row | {
        "wheel": wheel.name,
        "wheel MiB": round(wheel.stat().st_size / MIB, 2),
        "verdict": audited["verdict"],
        "targets": sorted(
            {gfx for architectures in audited["code_objects"].values() for gfx in architectures}
        ),
        "objects": sorted(audited["code_objects"]),
        "probed": [finding["message"] for finding in findings if finding["id"].startswith("probe")],
        "warnings": [finding["id"] for finding in findings if finding["severity"] == "warning"],
    }


def last_words(output: str) -> list[str]:
    """Return the error message without the paths of this machine."""
    lines = output.splitlines()
    first = next((number for number, line in enumerate(lines) if line.startswith("error")), 0)
    return [re.sub(r"/\S*?/(?=work-)", "", line) for line in lines[first:]]


def main() -> None:
    """Run all builds, one after another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="only these (repeatable)")
    parser.add_argument("--jobs", type=int, default=2, help="compile jobs at once")
    parser.add_argument("--settings", metavar="FILE", type=Path, help="matrix.toml of every build")
    args = parser.parse_args()
    settings = args.settings.read_text(encoding="utf-8") if args.settings else ""
    rows = []
    with the_rig() as rig:
        for build in BUILDS:
            if args.only and build.title not in args.only:
                continue
            rows.append(attempt(rig, build, args.jobs, settings))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(json.dumps({"schema": 1, "largest process MiB": round(peak / 1024), "builds": rows}, indent=1))
    if failed := [row["build"] for row in rows if row["exit code"]]:
        sys.exit(f"Failed builds: {', '.join(failed)}.")


if __name__ == "__main__":
    main()
