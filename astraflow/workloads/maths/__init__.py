"""Maths answers: is what the model put into its last box the right one?

``check`` decides most answers at once by exact arithmetic; the rest goes to worker processes that run math-verify,
because a symbolic comparison can hang, eat memory or crash, and none of that may touch the pool. How sure a verdict is
shows in its kind; what failed for reasons of the machine is never called wrong.
"""

from astraflow.workloads.maths.checker import Checker, Kind, Verdict
from astraflow.workloads.maths.extract import boxed, last_number

__all__ = ["Checker", "Kind", "Verdict", "boxed", "last_number"]
