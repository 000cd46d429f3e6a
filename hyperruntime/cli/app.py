"""The program ``hyperrun``: its global options and the table of its commands, which are imported
only when called.
"""

from __future__ import annotations

from pathlib import Path

import click

from hyperruntime import __version__
from hyperruntime.cli.command import AGENT_FILE, LazyGroup, State, example

PROGRAM = "hyperrun"
LEVELS = ("debug", "info", "warning", "error")

# name: (module below hyperruntime.cli, attribute of the module, short help in `hyperrun --help`)
COMMANDS: dict[str, tuple[str, str, str]] = {
    "demo": ("loop.demo", "demo", "Watch agents improve, offline and with no API key."),
    "runtimes": (
        "machine.engines",
        "runtimes",
        "List the container engines and what each can do here.",
    ),
    "doctor": (
        "machine.doctor",
        "doctor",
        "Diagnose this machine and every runtime, with next steps.",
    ),
    "selfcheck": (
        "machine.selfcheck",
        "selfcheck",
        "Check that a runtime keeps every promise of the library.",
    ),
    "image": ("containers.image", "image", "Build, pull, list, load, save and remove images."),
    "snapshot": (
        "containers.snapshot",
        "snapshot",
        "List, remove, save and compare named snapshots of containers.",
    ),
    "exec": ("containers.exec", "exec_command", "Run one command in a fresh container."),
    "shell": ("containers.exec", "shell_command", "Open a shell in a fresh container."),
    "mcp": ("containers.mcp", "mcp", "Serve tools in containers to MCP clients, such as editors."),
    "serve": (
        "containers.serve",
        "serve",
        "Serve containers over HTTP, for programs that are not Python.",
    ),
    "ps": ("containers.list", "ps", "List this library's containers and their owners."),
    "prune": ("containers.list", "prune", "Remove the containers and files of dead owners."),
    "domains": ("loop.domains", "domains", "List the domains that agents can be evaluated on."),
    "generate": ("loop.generate", "generate", "Run the generate loop: evolve an agent."),
    "resume": ("loop.generate", "resume", "Resume an interrupted run, or extend a finished one."),
    "status": ("loop.status", "status", "Show a run's generations and scores."),
    "show": ("loop.one_generation", "show", "Show one generation: scores, change, transcripts."),
    "evaluate": (
        "loop.one_generation",
        "evaluate",
        "Evaluate one generation, for example on the test split.",
    ),
    "certify": ("loop.certify", "certify", "Check the certificate of a record."),
    "export": ("loop.one_generation", "export", "Write a generation as a runnable git repository."),
    "rollout": (
        "rollout.commands",
        "rollout",
        "Run and score agents in slots, and write training data.",
    ),
    "cluster": ("cluster.commands", "cluster", "Use many nodes of a batch system."),
    "report": ("loop.report", "report", "Write an HTML report about a run, or compare several."),
    "watch": ("loop.report", "watch", "Serve the report of a run live, while it runs."),
    "bug-report": (
        "machine.bug_report",
        "bug_report",
        "Write an archive for a bug report, without keys.",
    ),
}


def _set_debug(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    """Store the flag while the command line is parsed: the import of a command may fail."""
    ctx.ensure_object(State).debug = value


@click.command(
    PROGRAM,
    cls=LazyGroup,
    table=COMMANDS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=example(
        "hyperrun demo",
        "hyperrun exec -- python3 -c 'print(6 * 7)'",
        "hyperrun --runtime podman doctor",
    ),
)
@click.option(
    "--runtime",
    metavar="NAME",
    help="Container runtime, such as podman, or auto; default: $HYPERRUNTIME_RUNTIME, else auto.",
)
@click.option(
    "--log-level",
    type=click.Choice(LEVELS),
    default="warning",
    show_default=True,
    help="Lowest level to log.",
)
@click.option("--log-json", is_flag=True, help="Log JSON lines.")
@click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_set_debug,
    help="Print the traceback of an error.",
)
@click.option("--version", "version", is_flag=True, help="Print the version.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="With --version: print all versions that matter, as JSON.",
)
@click.pass_context
def app(
    ctx: click.Context,
    runtime: str | None,
    log_level: str,
    log_json: bool,
    version: bool,
    as_json: bool,
) -> None:
    """Run self-improving agents and untrusted commands in containers, on any container engine of
    this machine.

    With --runtime and no command: run `generate` if the current directory contains a hyperrun.toml.
    """
    state = ctx.ensure_object(State)
    state.runtime = runtime
    state.log_level = log_level
    state.log_json = log_json
    if version:
        _print_version(as_json)
        ctx.exit()
    if as_json:
        raise click.UsageError(
            "--json before a command requires --version; write it after the command", ctx
        )
    if ctx.invoked_subcommand is not None:
        return
    # only with --runtime: a bare `hyperrun` in a repository of somebody else starts nothing
    if runtime is not None and Path(AGENT_FILE).is_file():
        from hyperruntime.cli.config_file import agent_table

        generate = app.get_command(ctx, "generate")
        assert generate is not None
        defaults = {**agent_table(Path(AGENT_FILE), generate, runtime), "agent": "."}
        with generate.make_context("generate", [], parent=ctx, default_map=defaults) as below:
            generate.invoke(below)
    else:
        click.echo(ctx.get_help())


def _print_version(as_json: bool) -> None:
    if not as_json:
        click.echo(f"{PROGRAM} {__version__}")
        return
    from hyperruntime.cli.tables import print_json
    from hyperruntime.cli.versions import version_facts

    print_json(version_facts())
