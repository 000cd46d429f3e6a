"""Named checks for drivers: each check tests one promise of the library on a real engine.

::

    from hyperruntime.testing.conformance import open_context, run_checks, select_checks

    with open_context(MyDriver()) as context:
        for result in run_checks(context, select_checks()):
            assert result.outcome != "fail", result.detail

``hyperrun selfcheck NAME`` does the same. A driver must refuse by name each feature that it
declares unsupported in ``EngineInfo``; then the result is ``refused`` instead of ``pass``. Design:
docs/design/engines.md#conformance.
"""

from hyperruntime.testing.conformance import (  # noqa: F401, I001 - imported to register their checks, in this order
    exec_checks,
    process_checks,
    terminal_checks,
    timeout_checks,
    user_checks,
    lost_checks,
    transfer_checks,
    egress_checks,
    file_checks,
    isolation_checks,
    spec_checks,
    limit_checks,
    owner_checks,
    image_checks,
)
from hyperruntime.testing.conformance.check import CHECKS, Check, check
from hyperruntime.testing.conformance.context import Context, open_context
from hyperruntime.testing.conformance.load import Load, Measurement, load_factor
from hyperruntime.testing.conformance.runner import (
    CheckResult,
    run_check,
    run_checks,
    select_checks,
)

__all__ = [
    "CHECKS",
    "Check",
    "CheckResult",
    "Context",
    "Load",
    "Measurement",
    "check",
    "load_factor",
    "open_context",
    "run_check",
    "run_checks",
    "select_checks",
]
