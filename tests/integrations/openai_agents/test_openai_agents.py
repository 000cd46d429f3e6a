"""Sessions of the OpenAI Agents SDK in our containers, beside its own sandbox here, and a run of an
agent.
"""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
import urllib.request
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from agents import ModelResponse, Usage
from agents.models.interface import Model
from agents.sandbox import LocalSnapshotSpec, Manifest, SandboxPathGrant, User
from agents.sandbox import errors as sdk
from agents.sandbox.entries import Dir, File
from agents.sandbox.manifest import Environment
from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

import hyperruntime as hr
from hyperruntime.errors import UnsupportedOptionError
from hyperruntime_openai_agents import SandboxClient, SandboxOptions
from tests.integrations.openai_agents.example import ask

pytestmark = pytest.mark.engine


def manifest(**fields: Any) -> Manifest:
    entries = {
        "notes.txt": File(content=b"from the manifest\n"),
        "src": Dir(children={"a.py": File(content=b"print(6*7)")}),
    }
    return Manifest(entries=entries, environment=Environment(value={"WORD": "a b"}), **fields)


@pytest.fixture
def client(runtime_name: str) -> SandboxClient:
    return SandboxClient(runtime_name)


@pytest.fixture
def options(base_image: str) -> SandboxOptions:
    return SandboxOptions(image=base_image, exposed_ports=(8000,))


@pytest.fixture
async def session(client: SandboxClient, options: SandboxOptions) -> AsyncIterator[Any]:
    made = await client.create(manifest=manifest(), options=options)
    async with made:
        yield made
    await client.delete(made)


@pytest.fixture
async def theirs() -> AsyncIterator[Any]:
    reference = UnixLocalSandboxClient()
    made = await reference.create(manifest=manifest())
    async with made:
        yield made
    await reference.delete(made)


async def outcome(action: Any) -> Any:
    """Return what an action of a session does: its value, or the kind of its error."""
    try:
        value = await action
    except sdk.SandboxError as error:
        return type(error)
    if isinstance(value, io.IOBase):
        with value:
            return value.read()
    return (value.exit_code, value.stdout, value.stderr) if hasattr(value, "stdout") else value


async def refused(action: Any) -> bool:
    """Return whether an action is refused."""
    return isinstance(await outcome(action), type)


async def scenario(session: Any) -> list[Any]:
    """Return the outcomes of all that an agent does with a session, without what names its
    place.
    """
    root = session.state.manifest.root
    steps = [
        lambda: session.exec("cat notes.txt; python3 src/a.py; echo $WORD >&2; exit 3"),
        lambda: session.exec("echo", "a  b", "*"),
        lambda: session.exec("printf", "%s|", "a  b", "$HOME", shell=False),
        lambda: session.exec("echo $0", shell=["sh", "-c"]),
        lambda: session.exec("sleep 100", timeout=0.5),
        lambda: session.write(Path("new/deep/file.bin"), io.BytesIO(bytes(range(256)))),
        lambda: session.read(Path("new/deep/file.bin")),
        lambda: session.read_bounded(Path("new/deep/file.bin"), max_bytes=3),
        lambda: session.read(Path(root) / "notes.txt"),
        lambda: session.read(Path("missing")),
        lambda: session.read(Path("src")),
        lambda: session.read(Path("../outside")),
        lambda: session.read(Path("/etc/passwd")),
        lambda: session.exec(
            "ln -s /etc/passwd leaves; ln -s notes.txt stays; mkdir full; touch full/x"
        ),
        lambda: session.read(Path("leaves")),
        lambda: session.read(Path("stays")),
        lambda: session.write(Path("leaves"), io.BytesIO(b"x")),
        lambda: session.write(Path("text"), io.StringIO("text")),
        lambda: refused(session.rm("full")),  # by another error in the SDK's own containers
        lambda: session.rm("full", recursive=True),
        lambda: session.rm("missing", recursive=True),
        lambda: session.mkdir("made/by/mkdir", parents=True),
        lambda: session.mv("notes.txt", "moved.txt"),
        lambda: session.same_file("moved.txt", "src/a.py"),
        lambda: session.apply_patch(
            {"type": "create_file", "path": "patched.txt", "diff": "+one\n+two\n"}
        ),
        lambda: session.read(Path("patched.txt")),
        session.running,
        lambda: session.resolve_exposed_port(9999),
    ]
    done = [await outcome(step()) for step in steps]
    listed = await session.ls("new/deep")
    kinds = sorted((Path(entry.path).name, entry.kind, entry.size) for entry in listed)
    missing = await outcome(session.ls("nowhere"))
    return [*done, kinds, missing]


async def test_a_session_does_what_the_sdks_own_does(session: Any, theirs: Any) -> None:
    ours, reference = await scenario(session), await scenario(theirs)
    different = [
        (at, one, other)
        for at, (one, other) in enumerate(zip(ours, reference, strict=True))
        if one != other
    ]
    assert different == []


async def test_commands_run_beside_the_model(session: Any, theirs: Any) -> None:
    for each in (session, theirs):
        update = await each.pty_exec_start("echo out; echo err >&2; exit 4", yield_time_s=20)
        assert (sorted(update.output.split()), update.exit_code, update.process_id) == (
            [b"err", b"out"],
            4,
            None,
        )

        update = await each.pty_exec_start(
            "read -r line; echo you typed $line; exit 5", tty=True, yield_time_s=0.3
        )
        assert (update.exit_code, update.process_id is None) == (None, False)
        update = await each.pty_write_stdin(
            session_id=update.process_id, chars="hello\n", yield_time_s=20
        )
        assert (update.exit_code, update.process_id) == (5, None)
        assert b"you typed hello" in update.output

        update = await each.pty_exec_start("sleep 1000", tty=True, yield_time_s=0.3)
        update = await each.pty_write_stdin(
            session_id=update.process_id, chars="\x03", yield_time_s=20
        )
        assert update.exit_code not in (None, 0)

        update = await each.pty_exec_start("echo waits; sleep 1000", yield_time_s=0.3)
        number = update.process_id
        with pytest.raises(RuntimeError, match="stdin is not available"):
            await each.pty_write_stdin(session_id=number, chars="x")
        await each.pty_terminate_all()
        with pytest.raises(sdk.PtySessionNotFoundError):
            await each.pty_write_stdin(session_id=number, chars="")


async def test_output_that_nothing_asked_for_is_bounded_and_does_not_stop_its_program(
    session: Any,
) -> None:
    for tty in (False, True):
        command = "head -c 2000000 /dev/zero | tr '\\0' x; echo the end; echo done >>finished"
        update = await session.pty_exec_start(command, tty=tty, yield_time_s=0.25)
        # the program ends although nothing reads
        while not (await session.exec("test -s finished")).ok():
            await asyncio.sleep(0.1)
        if update.process_id is not None:
            update = await session.pty_write_stdin(
                session_id=update.process_id, chars="", yield_time_s=20
            )
        assert update.exit_code == 0
        assert update.output.rstrip().endswith(b"the end")
        assert len(update.output) < 1024**2 + 1000
        await session.rm("finished")


async def test_a_server_in_the_background_is_reached_without_a_network(session: Any) -> None:
    serve = "python3 -u -m http.server 8000 --bind 127.0.0.1 >log 2>&1 & echo started"
    update = await session.pty_exec_start(serve, yield_time_s=20)
    assert (update.output, update.exit_code) == (b"started\n", 0)
    endpoint = await session.resolve_exposed_port(8000)
    while not (await session.exec("grep -q Serving log")).ok():
        await asyncio.sleep(0.1)
    address = f"{endpoint.url_for('http')}notes.txt"
    said = await asyncio.to_thread(lambda: urllib.request.urlopen(address, timeout=60).read())
    assert said == b"from the manifest\n"


async def test_a_snapshot_brings_the_workspace_into_a_new_container(
    client: SandboxClient, options: SandboxOptions, tmp_path: Path
) -> None:
    snapshot = LocalSnapshotSpec(base_path=tmp_path)
    made = await client.create(manifest=manifest(), options=options, snapshot=snapshot)
    async with made:
        links = "ln -s $PWD/src/a.py inside; ln src/a.py hard; mkfifo pipe; chmod 750 src/a.py"
        assert (await made.exec(f"echo kept >notes.txt; {links}; hostname")).ok()
        names = [(await made.exec("hostname")).stdout.strip()]
        payload = json.loads(json.dumps(client.serialize_session_state(made.state)))
    await client.delete(made)

    resumed = await SandboxClient(client._runtime).resume(client.deserialize_session_state(payload))
    async with resumed:
        with await resumed.read(Path("notes.txt")) as notes:
            assert notes.read() == b"kept\n"
        said = await resumed.exec(
            "stat -c %a src/a.py; readlink inside; ls; pwd; cmp hard src/a.py; hostname"
        )
        mode, link, *names_inside, place, name = said.stdout.split()
        assert (mode, link, place) == (b"750", b"src/a.py", b"/workspace")
        assert names_inside == [b"hard", b"inside", b"notes.txt", b"src"]  # no pipe
        names.append(name)
    await client.delete(resumed)
    assert names[0] != names[1]


async def test_a_session_is_resumed_in_its_container_while_that_runs(
    session: Any, client: SandboxClient
) -> None:
    await session.exec("echo only here >notes.txt; echo and here >/tmp/outside")
    payload = client.serialize_session_state(session.state)
    again = await client.resume(client.deserialize_session_state(payload))
    await again.start()
    said = await again.exec("cat notes.txt /tmp/outside")
    assert said.stdout == b"only here\nand here\n"


async def test_a_state_gets_no_container_of_another_client_session_or_image(
    session: Any, client: SandboxClient, options: SandboxOptions
) -> None:
    payload = client.serialize_session_state(session.state)
    forged = [
        (SandboxClient(client._runtime), payload),
        (client, {**payload, "session_id": str(uuid.uuid4())}),
        (client, {**payload, "image": "other:1"}),
    ]
    for chosen, each in forged:
        resumed = await chosen.resume(
            chosen.deserialize_session_state(json.loads(json.dumps(each)))
        )
        assert not await resumed.running()
    same = await client.resume(client.deserialize_session_state(payload))
    assert await same.running()


async def test_a_hostile_archive_is_refused_and_ephemeral_files_stay_behind(session: Any) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("../x"))
    stream.seek(0)
    with pytest.raises(sdk.WorkspaceArchiveWriteError, match="refused"):
        await session.hydrate_workspace(stream)
    session.register_persist_workspace_skip_path("src")
    with await session.persist_workspace() as stream, tarfile.open(fileobj=stream) as archive:
        assert sorted(member.name for member in archive) == [".", "notes.txt"]


async def test_commands_and_files_of_another_user(session: Any) -> None:
    add = "echo alice:x:1234:1234::/tmp:/bin/sh >>/etc/passwd; echo alice:x:1234: >>/etc/group"
    add += "; mkdir hers && chown alice hers"
    assert (await session.exec(add)).ok()
    assert (await session.exec("id -un", user="alice")).stdout == b"alice\n"
    update = await session.pty_exec_start("id -un", user=User(name="alice"), yield_time_s=20)
    assert update.output == b"alice\n"
    await session.write(Path("hers/file"), io.BytesIO(b"x"), user="alice")
    assert (await session.exec("stat -c %U hers/file")).stdout == b"alice\n"
    with pytest.raises(sdk.WorkspaceArchiveWriteError, match="ermission"):
        await session.write(Path("other"), io.BytesIO(b"x"), user="alice")
    with pytest.raises(sdk.ExecTransportError, match="no such user"):
        await session.exec("true", user="nobody-at-all")


async def test_a_container_that_has_ended_is_an_error_of_the_sdk(session: Any) -> None:
    session._inner._container.close()
    assert not await session.running()
    with pytest.raises(sdk.ExecTransportError):
        await session.exec("true")


async def test_a_lost_workspace_is_an_error_of_the_sdk(session: Any) -> None:
    await session.exec("rm -rf /workspace")
    with pytest.raises(sdk.WorkspaceRootNotFoundError):
        await session.exec("true")


async def test_a_directory_of_the_host_is_refused_by_name(
    client: SandboxClient, options: SandboxOptions
) -> None:
    grant = SandboxPathGrant(path="/data", host_path="/tmp")
    with pytest.raises(UnsupportedOptionError, match="mounts"):
        await client.create(manifest=Manifest(extra_path_grants=(grant,)), options=options)


class ScriptedModel(Model):
    """A model that calls the tools that a test names, and then answers with the last tool's
    output.
    """

    def __init__(self, *calls: tuple[str, dict[str, Any]]) -> None:
        self._calls = iter(enumerate(calls))

    async def get_response(self, *args: Any, **options: Any) -> ModelResponse:
        """Return the next call, or the answer."""
        output: Any
        items = options["input"]
        if (call := next(self._calls, None)) is not None:
            number, (name, arguments) = call
            output = ResponseFunctionToolCall(
                type="function_call",
                name=name,
                arguments=json.dumps(arguments),
                call_id=f"call-{number}",
            )
        else:
            said = [
                item["output"]
                for item in items
                if not isinstance(items, str) and item.get("type") == "function_call_output"
            ]
            text = ResponseOutputText(
                type="output_text", text=said[-1] if said else "no tool was called", annotations=[]
            )
            output = ResponseOutputMessage(
                id="1", type="message", role="assistant", status="completed", content=[text]
            )
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **options: Any) -> Any:
        """Do nothing: the tests do not stream."""
        raise NotImplementedError


async def test_an_agent_works_in_a_container(
    runtime_name: str,
    base_image: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    with_memory_limit: Any,
) -> None:
    monkeypatch.setenv("HYPERRUNTIME_RUNTIME", runtime_name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    model = ScriptedModel(
        ("exec_command", {"cmd": "echo 'print(6 * 7)' >answer.py; pwd"}),
        (
            "exec_command",
            {"cmd": "python3 answer.py; tail -n +3 /proc/net/dev | cut -d: -f1 | xargs"},
        ),
    )
    with with_memory_limit:
        said = (await ask(model, "compute")).splitlines()
        assert said[-2:] == ["42", "lo"]


async def test_a_mount_is_seen_in_the_sandbox(
    runtime_name: str, options: SandboxOptions, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "given").write_text("from the host\n")
    mounts = [hr.Mount(source=str(tmp_path), target="/in")]
    client = SandboxClient(runtime_name, container={"mounts": mounts})
    made = await client.create(manifest=manifest(), options=options)
    async with made:
        assert await outcome(made.exec("cat /in/given notes.txt")) == (
            0,
            b"from the host\nfrom the manifest\n",
            b"",
        )
    await client.delete(made)
