"""Programming problems: their tests in one form, whatever data set they come from, and the reward ``code``.

A submission runs in the sandbox and sees inputs only. Its outputs come out as data and are compared here; tests that
are code themselves (HumanEval, MBPP) run in a sandbox of their own and reach the submission's functions through the
host.
"""

from astraflow.workloads.code.judge import Judge, Verdict
from astraflow.workloads.code.suite import CallCase, Calls, Checks, ProgramCase, Programs, Suite, from_json, to_json

__all__ = [
    "CallCase",
    "Calls",
    "Checks",
    "Judge",
    "ProgramCase",
    "Programs",
    "Suite",
    "Verdict",
    "from_json",
    "to_json",
]
