"""The options of ``hyperrun generate``: the fields of ``GenerateOptions``, and options of the command itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from hyperruntime import registry
from hyperruntime.cli.config_file import config_option, config_table, use_limits
from hyperruntime.cli.field_options import all_options, changeable_options, field_values
from hyperruntime.cli.messages import WrongUsageError
from hyperruntime.cli.params import LIMITS, RUN_DIRECTORY
from hyperruntime.errors import unknown_name
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.option_fields import changed

_CONFIG = config_option(
    config_table, "TOML with these options in [generate] and the gateway's in [gateway]; the command line wins."
)
_RUNTIME = click.option("--runtime", metavar="NAME", help="Container runtime, as in `hyperrun --runtime NAME`.")
_RESUME = click.option("--resume-from", type=RUN_DIRECTORY, metavar="RUN_DIR",
    help="Resume this run; only its length, --parallel, --image, --gateway and budgets may change.")  # fmt: skip
_LIMITS = click.option("--limits", type=LIMITS, is_eager=True, expose_value=False, callback=use_limits,
    metavar="memory=SIZE,cpus=N,pids=N,disk=SIZE", help="Set several of the next four options.")  # fmt: skip

option_decorators = all_options(
    GenerateOptions, {"domains": (_CONFIG, _RUNTIME), "executor": (_RESUME,), "memory": (_LIMITS,)}
)
resume_decorators = changeable_options(GenerateOptions)


def make_options(values: Mapping[str, Any]) -> GenerateOptions:
    """Return the run options for the command line's values, with a run id and a seed.

    Raises:
        SpecError: a value is not allowed.
        WrongUsageError: no domain is given, or the executor is unknown.
    """
    found = field_values(GenerateOptions, values)
    domains = found["domains",]
    if not domains:
        raise WrongUsageError("name what to evaluate on with --domains; `hyperrun domains` lists what there is")
    known = registry.plugins(registry.EXECUTORS)
    if values["executor"] not in known:
        raise WrongUsageError(unknown_name("executor", values["executor"], known))
    return changed(GenerateOptions(domains=domains), found).settled()
