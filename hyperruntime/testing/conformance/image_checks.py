"""Checks of images: exact references, clear errors, and usable builds."""

from __future__ import annotations

import hashlib
import io
import json
import secrets
import socket
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager

from hyperruntime.errors import (
    HyperRuntimeError,
    ImageBuildError,
    ImageNotFoundError,
    RegistryUnreachableError,
)
from hyperruntime.testing.conformance.check import check, expect, expect_equal, expect_error
from hyperruntime.testing.conformance.context import Context


@check("images.exact-match")
def exact_match(context: Context) -> None:
    """An image exists under exactly its reference, and is listed."""
    expect(
        context.runtime.images.exists(context.image),
        f"{context.image} is reported missing, but containers run from it",
    )
    for almost in (context.image + "x", context.image[:-1], "x" + context.image):
        expect(not context.runtime.images.exists(almost), f"{almost} is reported to exist")
    listed = [
        reference for image in context.runtime.images.list() for reference in image.references
    ]
    expect(context.image in listed, f"{context.image} is not listed: {listed[:20]}")
    expect_equal(
        context.runtime.images.ensure(context.image), context.image, "ensure() of an existing image"
    )


@check("images.missing")
def missing(context: Context) -> None:
    """A missing image raises ImageNotFoundError with its reference, and is not pulled."""
    reference = f"localhost/hyperruntime-conformance/{secrets.token_hex(4)}:1"
    with expect_error(ImageNotFoundError, "a container of a missing image", reference):
        context.start(image=reference).close()
    with expect_error(ImageNotFoundError, "ensure() of a missing image", reference):
        context.runtime.images.ensure(reference)


@check("images.pull-of-a-spec", needs="images.pull")
def pull_of_a_spec(context: Context) -> None:
    """A spec pulls a missing image only if it asks for that; an existing one is pulled only with
    ``always``.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]  # closed below, so nothing listens there
    reference = f"127.0.0.1:{port}/hyperruntime-conformance:1"
    for pull in ("missing", "always"):
        with expect_error(RegistryUnreachableError, f"pull={pull!r} without a registry", reference):
            context.start(image=reference, pull=pull).close()
    with expect_error(ImageNotFoundError, "pull='never'", reference):
        context.start(image=reference, pull="never").close()
    with context.start(pull="missing") as container:
        expect_equal(
            container.exec(["echo", "on"]).stdout, b"on\n", "a container of an image that is there"
        )


@check("images.remove", needs="images.remove")
def remove_missing(context: Context) -> None:
    """Removing a missing image raises ImageNotFoundError."""
    reference = f"localhost/hyperruntime-conformance/{secrets.token_hex(4)}:1"
    with expect_error(ImageNotFoundError, "removing a missing image", reference):
        context.runtime.images.remove(reference)


@check("images.build", needs="images.build", deadline_s=180)
def build(context: Context) -> None:
    """A Containerfile is built once, with its context and arguments, and its output is passed
    on.
    """
    place = context.place()
    lines = list[str]()
    (place / "hello").write_text("from the context\n")
    steps = f"FROM {context.image}\nARG WORD=none\nCOPY hello /hello\nRUN echo $WORD >/word\n"
    (place / "Containerfile").write_text(steps)
    with _reference(context) as reference:
        options = {"containerfile": place / "Containerfile", "on_output": lines.append}
        context.runtime.images.build(reference, build_args={"WORD": "a b"}, **options)  # type: ignore[arg-type]
        count = len(lines)
        expect(count > 0, "no output of the build was passed on")
        context.runtime.images.build(reference, **options)  # type: ignore[arg-type]
        expect_equal(len(lines), count, "lines of output after building an existing image")
        with context.start(image=reference) as container:
            found = container.exec(["cat", "/hello", "/word"]).stdout
            expect_equal(found, b"from the context\na b\n", "files of the image")


@check("images.build-error", needs="images.build", deadline_s=180)
def build_error(context: Context) -> None:
    """A failing build raises ImageBuildError with the output of the failing step, and makes no
    image.
    """
    path = context.place() / "Containerfile"
    path.write_text(f"FROM {context.image}\nRUN echo before; echo the reason >&2; exit 9\n")
    with _reference(context) as reference:
        with expect_error(ImageBuildError, "a failing build", "the reason"):
            context.runtime.images.build(reference, containerfile=path)
        expect(not context.runtime.images.exists(reference), "a failed build made an image")


@check("images.load-rootfs", needs="images.load_rootfs")
def load_rootfs(context: Context) -> None:
    """A root file system becomes an image; a container of an image without /bin/sh is an error that
    says so.
    """
    tar = context.place() / "rootfs.tar"
    tar.write_bytes(_tar({"file": b"x"}))
    with _reference(context) as reference:
        context.driver.images.load_rootfs(tar, reference)
        expect(context.runtime.images.exists(reference), "the image does not exist")
        with expect_error(HyperRuntimeError, "a container of an image without a shell", "/bin/sh"):
            context.start(image=reference).close()


@check("images.load", needs="images.load")
def load(context: Context) -> None:
    """A saved image is loaded under its own reference, and does not exist after its removal."""
    archive = context.place() / "archive.tar"
    with _reference(context) as reference:
        archive.write_bytes(_saved_image(reference))
        expect_equal(
            context.runtime.images.load(archive), (reference,), "the references of the archive"
        )
        expect(context.runtime.images.exists(reference), "the image does not exist")
        context.runtime.images.remove(reference)
        expect(
            not context.runtime.images.exists(reference), "the image still exists after its removal"
        )


@contextmanager
def _reference(context: Context) -> Iterator[str]:
    """Yield an unused reference; remove its image afterwards."""
    reference = f"localhost/hyperruntime-conformance/{secrets.token_hex(4)}:1"
    try:
        yield reference
    finally:
        if context.runtime.images.exists(reference):
            context.runtime.images.remove(reference)


def _saved_image(reference: str) -> bytes:
    """Return an archive in the format of `podman save` and `docker save`. Source: moby,
    image/spec/v1.2.md.
    """
    layer = _tar({"file": reference.encode()})  # unique for each run
    digest = hashlib.sha256(layer).hexdigest()
    rootfs = {"type": "layers", "diff_ids": [f"sha256:{digest}"]}
    config = json.dumps(
        {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": rootfs}
    ).encode()
    name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": [reference], "Layers": [f"{digest}/layer.tar"]}]
    return _tar(
        {name: config, f"{digest}/layer.tar": layer, "manifest.json": json.dumps(manifest).encode()}
    )


def _tar(files: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return data.getvalue()
