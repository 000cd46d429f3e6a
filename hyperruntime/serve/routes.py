"""The routes of the HTTP service, in one table: the server and the OpenAPI document are made from
it.
"""

from __future__ import annotations

import re
from typing import Literal

import attrs

from hyperruntime.remote import requests
from hyperruntime.remote.handlers import VERBS
from hyperruntime.serve import models

Takes = Literal["nothing", "json", "bytes", "archive"]
Sends = Literal["nothing", "json", "bytes", "archive", "command", "output"]
_PARAMETER = re.compile(r"{(\w+)}")


@attrs.frozen(kw_only=True)
class Route:
    """One route.

    Attributes:
        method: of HTTP.
        path: with the fields that it contains in braces.
        handler: name of the handler.
        summary: one sentence.
        form: the fields of the request, if they are not those of the verb; those that are neither
            in the path nor in the query are in the body.
        query: the fields in the query.
        takes: what the body is. Bytes are read before the handler is called, an archive while it
            runs.
        answer: the fields of a JSON answer.
        sends: what the answer is; ``command`` and ``output`` are JSON with bytes in the form that
            the request names.
        status: of an answer without error.
    """

    method: Literal["GET", "PUT", "POST", "DELETE"]
    path: str
    handler: str
    summary: str
    form: type | None = None
    query: tuple[str, ...] = ()
    takes: Takes = "nothing"
    answer: type | None = None
    sends: Sends = "json"
    status: int = 200

    @property
    def request(self) -> type:
        """The class of the request."""
        verb = VERBS.get(self.handler)
        return self.form or (requests.Nothing if verb is None else verb.request)

    @property
    def runs_command(self) -> bool:
        """Whether each request holds a thread and a command in the container until it is
        answered.
        """
        return self.handler.partition(".")[0] in ("exec", "file", "directory", "archive")

    @property
    def parameters(self) -> tuple[str, ...]:
        """The fields in the path."""
        return tuple(_PARAMETER.findall(self.path))


ONE = "/v1/containers/{container}"
FILES = f"{ONE}/files"
PROCESS = f"{ONE}/processes/{{process}}"

ROUTES = (
    Route(
        method="GET",
        path="/v1/info",
        handler="service.info",
        summary="Return what the service is.",
        answer=models.ServiceInfo,
    ),
    Route(
        method="POST",
        path="/v1/containers",
        handler="container.start",
        summary="Start a container.",
        form=models.NewContainer,
        takes="json",
        answer=models.ContainerState,
        status=201,
    ),
    Route(
        method="GET",
        path="/v1/containers",
        handler="container.list",
        summary="List the containers of the service.",
        answer=models.ContainerList,
    ),
    Route(
        method="GET",
        path=ONE,
        handler="container.show",
        summary="Return the state of a container.",
        form=requests.ContainerName,
        answer=models.ContainerState,
    ),
    Route(
        method="DELETE",
        path=ONE,
        handler="container.end",
        summary="End a container and everything in it.",
        form=requests.ContainerName,
        sends="nothing",
        status=204,
    ),
    Route(
        method="POST",
        path=f"{ONE}/exec",
        handler="exec.run",
        summary="Run a command to its end; a non-zero exit code is a result.",
        form=models.ExecCommand,
        takes="json",
        answer=models.CommandResult,
        sends="command",
    ),
    Route(
        method="GET",
        path=FILES,
        handler="file.read",
        summary="Return the bytes of a file.",
        query=("path", "user", "limit_bytes", "timeout_s"),
        sends="bytes",
    ),
    Route(
        method="PUT",
        path=FILES,
        handler="file.write",
        summary="Write a whole file; readers see the old content or the new one.",
        query=("path", "user", "mode", "parents", "timeout_s"),
        takes="bytes",
        sends="nothing",
        status=204,
    ),
    Route(
        method="GET",
        path=f"{ONE}/stat",
        handler="file.stat",
        summary="Return the facts of a path.",
        query=("path", "user", "follow_symlinks", "timeout_s"),
        answer=requests.FileFacts,
    ),
    Route(
        method="GET",
        path=f"{ONE}/directory",
        handler="directory.list",
        summary="Return the names in a directory.",
        query=("path", "user", "timeout_s"),
        answer=requests.DirectoryNames,
    ),
    Route(
        method="GET",
        path=f"{ONE}/archive",
        handler="archive.read",
        summary="Return a tar archive of the content of a directory, or of one file. It is not to "
        "be trusted.",
        query=("path", "user", "timeout_s"),
        sends="archive",
    ),
    Route(
        method="PUT",
        path=f"{ONE}/archive",
        handler="archive.write",
        summary="Extract a tar archive into a directory, which is made if it does not exist.",
        query=("path", "user", "timeout_s"),
        takes="archive",
        sends="nothing",
        status=204,
    ),
    Route(
        method="POST",
        path=f"{ONE}/processes",
        handler="process.start",
        summary="Start a command in the background; its standard input stays open.",
        form=requests.Command,
        takes="json",
        answer=requests.ProcessState,
        status=201,
    ),
    Route(
        method="GET",
        path=f"{ONE}/processes",
        handler="process.list",
        summary="List the background processes of a container.",
        answer=requests.ProcessList,
    ),
    Route(
        method="POST",
        path=f"{PROCESS}/output",
        handler="process.take",
        summary="Take what a process has written since the last time.",
        takes="json",
        answer=models.ProcessOutput,
        sends="output",
    ),
    Route(
        method="POST",
        path=f"{PROCESS}/input",
        handler="process.write",
        summary="Write to the standard input of a process.",
        takes="json",
        sends="nothing",
        status=204,
    ),
    Route(
        method="POST",
        path=f"{PROCESS}/signal",
        handler="process.signal",
        summary="Send a signal to a process and to all processes that it started.",
        form=requests.SignalToSend,
        takes="json",
        answer=requests.SignalReceived,
    ),
    Route(
        method="DELETE",
        path=PROCESS,
        handler="process.end",
        summary="Kill a process and all processes that it started, and forget it.",
        sends="nothing",
        status=204,
    ),
)
