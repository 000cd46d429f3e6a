"""Definition files, Dockerfiles and references that somebody else wrote reach nothing of the host,
on any engine.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import hyperruntime as hr
from hyperruntime.errors import (
    HyperRuntimeError,
    ImageBuildError,
    SpecError,
)
from tests.conftest import EngineCommand
from tests.contract import builds

REFERENCE = "localhost/hyperruntime-test/attack:latest"
SECRET = "hosts-own-secret"


def built(runtime: hr.Runtime, file: Path, text: str, **build_args: str) -> None:
    """Build a file of a test."""
    file.write_text(text)
    runtime.images.build(REFERENCE, containerfile=file, build_args=build_args, force=True)


@pytest.mark.parametrize("section", ["%setup", "%Pre -c /bin/sh", "%post\n true\n%%setup"])
def test_no_section_of_a_definition_runs_on_the_host(
    runtime: hr.Runtime, base_image: str, tmp_path: Path, section: str
) -> None:
    text = f"Bootstrap: localimage\nFrom: {base_image}\n{section}\n touch {tmp_path}/mark\n"
    with pytest.raises(SpecError, match=r"(?i)%(pre|setup)"):
        built(runtime, tmp_path / "c.def", text)
    assert not (tmp_path / "mark").exists()


def test_no_source_of_a_definition_is_a_command_or_a_file_of_the_host(
    runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    """Apptainer expands the sources of ``%files`` in a shell on the host."""
    context = tmp_path / "context"
    context.mkdir()
    (tmp_path / "secret").write_text(SECRET)
    for source in (f"$(touch${{IFS}}{tmp_path}/mark)", f'"a\t{tmp_path}/secret"', "../secret"):
        text = f"Bootstrap: localimage\nFrom: {base_image}\n%files\n {source} /x\n"
        with pytest.raises(SpecError, match=r"%files|the files must lie"):
            built(runtime, context / "c.def", text)
    assert not (tmp_path / "mark").exists()


def test_only_the_named_file_is_built(runtime: hr.Runtime, base_image: str, tmp_path: Path) -> None:
    """A definition file beside it is not read."""
    (tmp_path / "other.def").write_text(
        f"Bootstrap: localimage\nFrom: {base_image}\n%post\n echo other > /which\n"
    )
    file = tmp_path / "Containerfile"
    file.write_text(f"FROM {base_image}\nRUN echo named > /which\n")
    with builds.built(runtime, REFERENCE, file) as container:
        assert container.exec(["cat", "/which"]).stdout == b"named\n"


@pytest.mark.parametrize("mount", ["type=bind,source=link", "type=cache,from=first,source=/link"])
def test_no_mount_of_a_step_is_a_directory_of_the_host(
    runtime: hr.Runtime, base_image: str, tmp_path: Path, mount: str
) -> None:
    context, outside = tmp_path / "context", tmp_path / "outside"
    context.mkdir()
    outside.mkdir()
    (outside / "secret").write_text(SECRET)
    (context / "link").symlink_to(outside)
    text = f"FROM {base_image} AS first\nRUN ln -s {outside} /link\nFROM {base_image}\n"
    text += f"RUN --mount={mount},target=/x cat /x/secret > /seen\n"
    with pytest.raises(SpecError, match="a mount "):
        built(runtime, context / "Dockerfile", text)
    assert not runtime.images.exists(REFERENCE)


@pytest.mark.parametrize("kind", ["docker-archive:", " dir:", "--all "])
def test_a_reference_is_a_name_and_never_a_transport(
    runtime: hr.Runtime, tmp_path: Path, kind: str
) -> None:
    """Neither for a container, nor for a pull, nor as the base of a build."""
    (tmp_path / "a").write_bytes(b"")
    image = f"{kind}{tmp_path}/a"
    with pytest.raises(SpecError, match="hyperrun image load FILE"):
        hr.ContainerSpec(image=image, pull="missing")
    for use in (runtime.images.pull, runtime.images.ensure):
        with pytest.raises(SpecError, match="hyperrun image load FILE"):
            use(image)
    with pytest.raises(SpecError, match=r"hyperrun image load FILE|FROM may not have '--all'"):
        built(runtime, tmp_path / "Containerfile", f"FROM {image}\n")


@pytest.mark.parametrize(
    "step",
    [
        'COPY --fr"om"={archive} / /x',
        "ONBUILD COPY\t--from={archive} / /x",
        "COPY --chown=0:0 \udc85--from={archive} / /x",
        "ENV X=from={archive}\nCOPY --$X / /x",
        "FROM ${{TARGETVARIANT:-{archive}}}",
        "LABEL x=y \\\v\nFROM {archive}",
    ],
)
def test_no_way_to_write_an_option_or_a_line_hides_an_archive_of_the_host(
    runtime: hr.Runtime, base_image: str, tmp_path: Path, step: str
) -> None:
    """Builders read quotes, blanks, variables and ends of lines in different ways; Podman would
    read the archive. All the ways are in tests/unit/images/test_dockerfile_checks.py.
    """
    (tmp_path / "secret.tar").write_bytes(b"")
    text = f"FROM {base_image}\n" + step.format(archive=f"docker-archive:{tmp_path}/secret.tar")
    (tmp_path / "Containerfile").write_bytes(f"{text}\n".encode(errors="surrogateescape"))
    with pytest.raises(SpecError, match=r"line \d+: "):
        runtime.images.build(REFERENCE, containerfile=tmp_path / "Containerfile", force=True)
    assert not runtime.images.exists(REFERENCE)


def test_a_base_reaches_nothing_of_the_host_in_a_build(
    runtime: hr.Runtime, base_image: str, engine_command: EngineCommand, tmp_path: Path
) -> None:
    """An image from a registry may say ``ONBUILD COPY --from=docker-archive:FILE``, which Podman
    obeys.
    """
    if runtime.name not in ("podman", "docker"):
        return  # its images have no such instructions
    evil, kind = (
        "localhost/hyperruntime-test/trigger:latest",
        ("--format", "docker") if runtime.name == "podman" else (),
    )
    (tmp_path / "x").write_text("of the context\n")
    runtime.images.save(base_image, tmp_path / "host.tar")

    def built_from(trigger: str) -> bytes:
        (tmp_path / "base").write_text(f"FROM {base_image}\nONBUILD {trigger}\n")
        engine_command.run(
            "build", *kind, "--tag", evil, "--file", str(tmp_path / "base"), str(tmp_path)
        )
        built(runtime, tmp_path / "Containerfile", f"FROM {evil}\n")
        with runtime.container(hr.ContainerSpec(image=REFERENCE)) as container:
            return container.exec(["cat", "/x"]).stdout

    try:
        assert built_from("COPY x /x") == b"of the context\n"
        with pytest.raises((SpecError, ImageBuildError), match="trigger"):
            built_from(f"COPY --from=docker-archive:{tmp_path}/host.tar /etc/passwd /x")
    finally:
        for image in (REFERENCE, evil):
            if runtime.images.exists(image):
                runtime.images.remove(image)


def test_a_build_argument_cannot_add_a_section(
    runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    value = f"x\n%setup\n touch {tmp_path}/mark\n%post\n true"
    text = f"Bootstrap: localimage\nFrom: {base_image}\n%post\n echo {{{{ A }}}}\n"
    with pytest.raises(HyperRuntimeError, match=r"%setup|images\.build"):
        built(runtime, tmp_path / "c.def", text, A=value)
    assert not (tmp_path / "mark").exists()
