"""Proving an installed wheel by asking it: what is asked, by which script, and what the answers mean."""

from builders.probes.asking import Answer, probe_questions, probe_script, read_answer
from builders.probes.judging import judge_probe

__all__ = ["Answer", "judge_probe", "probe_questions", "probe_script", "read_answer"]
