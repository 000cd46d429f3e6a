"""Write the definition file that an engine may build: checked, with exact files, and nothing for a
shell of the host.

Apptainer expands the sources of ``%files`` in a shell on the host, reads ``localimage`` bases from
any path, and keeps the definition file in the image. So it never gets a file as somebody wrote it.

Source: the Apptainer user guide, "Definition Files"; where the guide is silent, the behaviour of
Apptainer 1.4.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from hyperruntime.errors import SpecError
from hyperruntime.images.definition_file import (
    Copied,
    Definition,
    Section,
    Stage,
    copied_files,
    fill_placeholders,
    parse_stages,
    stage_of,
)
from hyperruntime.spec import is_image_path
from hyperruntime.storage.text_file import read_utf8

_FIELD = "definition file"
_OF_THE_SHELL = re.compile(r"[$`{}\\'\"();<>|&\x00-\x1f\x7f]")
# Apptainer prints each source with printf, and expands it
_OF_PRINTF_AND_GLOBS = re.compile(r"[%*?\[\]]")


def read_definition(file: Path) -> str:
    """Return the text of a definition file.

    Raises:
        SpecError: the file is not UTF-8, or has the line ends of Windows, which its shells would
            read as text.
    """
    text = read_utf8(file, "containerfile")
    if "\r\n" in text:
        raise SpecError(
            "containerfile", str(file), "a file without CRLF line ends; convert it with `dos2unix`"
        )
    return text


def checked_definition(
    text: str, context: Path, build_args: Mapping[str, str], path_of: Callable[[str], str | None]
) -> str:
    """Return the definition file that an engine builds: filled in, and with exact paths.

    Args:
        text: the definition file as written.
        context: directory that the sources of ``%files`` and ``localimage`` paths are relative to.
        build_args: values for its placeholders.
        path_of: returns the path of a local image, or None if the reference is unknown.

    Raises:
        SpecError: the definition is invalid, or would run a program of this machine or read files
            outside ``context``.
    """
    stages = parse_stages(text, build_args)
    checked = "\n".join(_written(stage, context, path_of) for stage in stages)
    if fill_placeholders(checked, {}) != checked:
        raise SpecError(
            _FIELD, "{{ }}", "the value of a build argument must not contain a placeholder"
        )
    return checked


def check_contained(definition: Definition, context: Path) -> None:
    """Raise SpecError if a definition copies host files from outside its context.

    Args:
        definition: the definition.
        context: directory that the sources of ``%files`` are relative to.

    Raises:
        SpecError: a source of ``%files`` does not exist, leads out of the context, or contains a
            link that does.
    """
    for line in definition.files:
        copied_paths(line, context)


def copied_paths(line: Copied, context: Path) -> list[Path]:
    """Return the paths that a line of ``%files`` copies from the host.

    Args:
        line: the line.
        context: directory that its source is relative to.

    Raises:
        SpecError: no path fits, its name is unsafe, or it leads out of ``context``.
    """
    if _OF_THE_SHELL.search(line.source):
        raise SpecError(
            _FIELD, line.source, "a path in %files may contain only the wildcards *, ? and []"
        )
    found = [context / name for name in sorted(glob.glob(line.source, root_dir=context))]
    if not found:
        raise SpecError(_FIELD, line.source, f"the source of %files does not exist in {context}")
    for path in found:
        _check_tree(path, context.resolve())
    return found


def _check_tree(path: Path, root: Path) -> None:
    """Raise SpecError if a path, or a path below it, leads out of ``root`` or is a special file."""
    for found in (path, *(path.rglob("*") if path.is_dir() else ())):
        real = found.resolve()
        if not real.is_relative_to(root):
            raise SpecError(_FIELD, str(found), f"the files must lie in {root}; copy them there")
        if not (real.is_file() or real.is_dir()):
            raise SpecError(_FIELD, str(found), "%files may contain only files and directories")


def _written(stage: Stage, context: Path, path_of: Callable[[str], str | None]) -> str:
    header = dict(stage.header)
    if header["bootstrap"] == "localimage":
        header["from"] = path_of(header["from"]) or _local_path(header["from"], context)
    lines = [f"Bootstrap: {header.pop('bootstrap')}"]
    lines += [f"{name.capitalize()}: {value}" for name, value in header.items()]
    for section in stage.sections:
        if section.name != "arguments":
            body = _exact_files(section, context) if section.name == "files" else section.body
            lines.append(f"\n{f'%{section.name} {section.arguments}'.rstrip()}\n{body}")
    return "\n".join([*lines, ""])


def _local_path(base: str, context: Path) -> str:
    """Return the path of a base image that the store does not have."""
    path = (context / base).resolve()
    if not is_image_path(base):
        raise SpecError(
            _FIELD,
            f"From: {base}",
            "no such image is on this machine; `hyperrun image list` shows them",
        )
    if not path.is_relative_to(context.resolve()) or _OF_THE_SHELL.search(str(path)):
        allowed = (
            f"the image must lie in {context}; or load it with `hyperrun image load FILE`, and "
            "name its reference"
        )
        raise SpecError(_FIELD, f"From: {base}", allowed)
    return str(path)


def _exact_files(section: Section, context: Path) -> str:
    """Return the lines of a ``%files`` section in which no shell can find anything but one path."""
    lines = []
    for line in copied_files(section):
        if stage_of(section):
            _check_exact(line.source)
            lines.append((line.source, line.target))
            continue
        for path in copied_paths(line, context):
            name = os.path.relpath(path, context) + ("/." if line.source.endswith("/.") else "")
            _check_exact(name)
            lines.append((f"./{name}", line.target or f"/{name}"))
    for _, target in lines:
        if set(target) & set('"{}'):
            raise SpecError(
                _FIELD, target, "a target of %files may contain no quotes and no braces"
            )
    return "".join(
        f'    "{source}"' + (f' "{target}"' if target else "") + "\n" for source, target in lines
    )


def _check_exact(name: str) -> None:
    if _OF_THE_SHELL.search(name) or _OF_PRINTF_AND_GLOBS.search(name):
        raise SpecError(
            _FIELD, name, "Apptainer cannot copy a file of this name; give it a plain name"
        )
