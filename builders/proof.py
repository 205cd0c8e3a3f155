"""Proving a built wheel: what is in it, and what it does when it is installed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from builders.audit import Expected, audit_wheel, read_torch
from builders.containers.runtime import View, run_in
from builders.diagnosis import diagnose
from builders.environments.layers import make_environment
from builders.findings import Finding
from builders.probe.ask import WheelReply, parse_reply, probe_script, wheel_question
from builders.probe.wheel import judge_wheel
from builders.process import log_size, read_since
from resolver.errors import AuditError, CommandError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from builders.audit import WheelAudit
    from builders.diagnosis import Context
    from builders.environments.layers import Layers
    from builders.plan import Task


_STILL_TO_COME = {"no-label", "plain-platform-tag", "torch-not-pinned"}
"""What is found in every wheel that a build backend made, and is written into it after the proof."""


def prove(
    task: Task, wheel: Path, layers: Layers, *, work: Path, log: Path, context: Context
) -> tuple[WheelAudit, list[Finding]]:
    """Judge a wheel by its content, by what its build said, then by asking it in a fresh environment.

    Parameters
    ----------
    task
        What was to be built.
    wheel
        What came out.
    layers
        The torch it was built against, and the build requirements.
    work
        Directory of this build.
    log
        What the build printed; the output of installing and probing goes there, too.
    context
        What is known of the build besides.

    Returns
    -------
    tuple
        The audit, and the findings of audit and probe.

    Raises
    ------
    AuditError
        It does not hold what the recipe promises; the error names every defect and what to do.
    """
    report = audit_wheel(wheel, expected_of(task, layers))
    _refuse(task, wheel, report.errors, log)
    _refuse(task, wheel, told_in_passing(log, context), log)
    answer = _ask(task, wheel, layers, work=work, log=log)
    probed = judge_wheel(answer, task.recipe)
    told = [one for one in report.findings if one.id not in _STILL_TO_COME]
    _refuse(task, wheel, [one for one in probed if one.severity == "error"], log)
    return report, [*told, *probed]


def told_in_passing(log: Path, context: Context) -> list[Finding]:
    """Give the failures that a build mentions, and ends well all the same.

    Some show nowhere else: which wave size was compiled in is seen in the compiler's options alone.
    """
    found = diagnose(log, replace(context, exit_code=0))
    return [Finding(f"log-{one.id}", "error", one.what) for one in found]


def expected_of(task: Task, layers: Layers) -> Expected:
    """Give what the wheel is compared with: what was asked for, and what it will run beside."""
    torch = None
    if layers.torch is not None:
        directory = layers.torch.packages / "torch" / "lib"
        torch = read_torch(directory) if directory.is_dir() else None
    provider = task.build_host.provider
    return Expected(
        tuple(task.gfx),
        task.recipe,
        torch,
        () if provider is None else (provider,),
        str(task.build_host.python.prefix),
    )


def _ask(task: Task, wheel: Path, layers: Layers, *, work: Path, log: Path) -> WheelReply:
    """Install the wheel beside its torch, and run the probe's script there.

    The build requirements are lent to it, since nothing else of its run requirements is there, and the
    answer says what was used of them.
    """
    runtime, python = task.build_host.runtime, task.build_host.python
    environment = make_environment(runtime, python, layers.all, [wheel], root=work / "probe", log=log)
    lent = str(layers.requirements.packages) if layers.requirements else ""
    script = work / "probe" / "probe.py"
    script.write_text(probe_script(), encoding="utf-8")
    base = environment.view
    view = View(
        env={**base.env, **task.recipe.run_environment},
        path=base.path,
        cwd=work / "probe",
        binds=base.binds,
    )
    start = log_size(log)
    command = [str(environment.python), str(script), wheel_question(task.recipe, lent)]
    try:
        run_in(runtime, command, view, what=f"Probing {task.title}", log=log)
    except CommandError as error:
        raise AuditError(error.message, hint="The wheel is not published.") from None
    return parse_reply(read_since(log, start), WheelReply)


def _refuse(task: Task, wheel: Path, problems: Sequence[Finding], log: Path) -> None:
    if not problems:
        return
    listed = "".join(f"\n  - {one.message} {one.fix}".rstrip() for one in problems)
    msg = f"The wheel of {task.title} does not hold what it promises; it is not published.{listed}"
    hint = f"The wheel is kept as {wheel} until the next build."
    refusal = AuditError(f"{msg}\n  Log: {log}", hint=hint)
    refusal.findings = tuple(problems)
    raise refusal
