"""The code sandbox: runs a model's programs, contained, and reports how each case ended.

``Sandbox.open()`` gives the best kind that works on this machine; there is no kind without containment.
"""

from astraflow.workloads.sandbox.launch import Interpreter
from astraflow.workloads.sandbox.sandbox import KINDS, Sandbox, Session
from astraflow.workloads.sandbox.submission import DEFAULT, Call, Case, Limits, Program, Report

__all__ = ["DEFAULT", "KINDS", "Call", "Case", "Interpreter", "Limits", "Program", "Report", "Sandbox", "Session"]
