"""Definition files as Containerfiles, which engines build, or which are read into steps.

Apptainer copies files with ``cp`` and runs scripts with ``sh``. The steps use the same programs of
the image, so that copied directories, missing parents and shells behave alike. The environment
becomes ``ENV``; only Apptainer sources a script before a command.

Source: the Apptainer user guide, "Definition Files"; where the guide is silent, the behaviour of
Apptainer 1.4.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from hyperruntime.errors import SpecError, StorageError, write_error
from hyperruntime.host.owner import owned_directory
from hyperruntime.images.building.sources import fitting
from hyperruntime.images.definition_file import Copied, Definition, Script, parse_stages
from hyperruntime.images.pull_errors import full_name, with_tag
from hyperruntime.images.words import UNKNOWN, expand_known
from hyperruntime.settings.image_names import is_image_path
from hyperruntime.storage.text_file import read_utf8

SUFFIX = ".def"
_FIELD = "definition file"
_WORK = "/.hyperruntime-build"
_PAYLOAD = "payload"
_METADATA = "/.singularity.d"
_ENVIRONMENT = f"{_METADATA}/env/90-environment.sh"
_LATE = f"{_METADATA}/env/91-environment.sh"
_USES_LATE = re.compile(r"(APPTAINER|SINGULARITY)_ENVIRONMENT")
_NAMES_LATE = (
    f"mkdir -p {_METADATA}/env\nexport APPTAINER_ENVIRONMENT={_LATE}\n"
    f"export SINGULARITY_ENVIRONMENT={_LATE}\n"
)
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")
_OF_THE_SHELL = re.compile(r"[$`{}\\'\"();<>|&\x00-\x1f\x7f]")
_MOST_FILES = 1_000_000  # of one source; links can multiply files without end
_MOST_LEVELS = 200  # less than the interpreter can follow
_ONLY_APPTAINER = ("library", "oras", "shub")
# Appended, as Apptainer does, because the base may have variables there.
_ADD_ENVIRONMENT = (
    f"mkdir -p {_METADATA}/env && if [ -e {_ENVIRONMENT} ]; then echo >> {_ENVIRONMENT}; fi && "
    f"cat {_WORK}/environment >> {_ENVIRONMENT} && chmod 755 {_ENVIRONMENT}"
)
_PUT = """\
put() {
    case $2 in
        */) [ -e "$2" ] || mkdir -p -- "$2" ;;
        *) [ -e "$2" ] || mkdir -p -- "$(dirname -- "$2")" ;;
    esac
    cp -fR -- "$1" "$2"
}
"""

# %environment: a word is quoted text, escaped characters, references and plain characters.
_NAME = r"(?a:[A-Za-z_]\w*+)"
_REFERENCE = rf"\$(?:{_NAME}|\{{{_NAME}(?::-[\w./:@%+,=-]*+)?\}})"
_WORD = (
    rf"""(?![#~{{}}!])(?:'[^']*'|"(?:\\[^`]|{_REFERENCE}|[^"$\\`])*+"|\\.|{_REFERENCE}"""
    r"""|[^\s"'\\$`;&|<>()*?])*+"""
)
_ASSIGNMENT = re.compile(rf"({_NAME})(?:(=)({_WORD}))?(?:[ \t]+|(?=[;\n])|\Z)")
_STATEMENT = re.compile(rf"(export[ \t]+)?((?:{_ASSIGNMENT.pattern})+)(?=[\s;#]|\Z)")
_GAP = re.compile(r"\A(?:[\s;]|#[^\n]*)+")
# Set when a container runs; unknown when its image is built.
_OF_THE_RUN = re.compile(
    rf"{UNKNOWN}\{{(HOME|USER|LOGNAME|PWD|OLDPWD|SHELL|HOSTNAME|UID|TERM|TMPDIR)\b"
)


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


@contextmanager
def containerfile_of(
    file: Path,
    context: Path,
    build_args: Mapping[str, str] | None = None,
    *,
    runs_scripts: bool = False,
) -> Iterator[Path]:
    """Yield a Containerfile that builds the same image as a definition file, in a directory with
    all files it copies.

    Args:
        file: the definition file.
        context: directory that the sources of ``%files`` and ``localimage`` paths are relative to.
        build_args: values for the placeholders of the definition file.
        runs_scripts: see :func:`render`.

    Raises:
        SpecError: the definition file is invalid, or no Containerfile can express it.
        StorageError: a file cannot be read, or not be copied.
    """
    stages = parse_stages(read_definition(file), build_args)
    text = render(stages, context, runs_scripts=runs_scripts)
    with owned_directory() as directory:
        folder = Path(directory) / "build"
        try:
            for number, stage in enumerate(stages):
                _write_payload(stage, context, folder / _PAYLOAD / str(number), runs_scripts)
            (folder / "Containerfile").write_text(text)
        except OSError as error:
            raise _not_copied(error) from error
        yield folder / "Containerfile"


def _not_copied(error: OSError) -> StorageError:
    """Return the error for files that cannot be copied; ``copytree`` lists what it could not copy,
    with the reasons.
    """
    listed = isinstance(error, shutil.Error) and isinstance(error.args[0], list)
    why = error.args[0][0][-1] if listed else error
    return write_error(f"the files of the definition file cannot be copied: {why}", error)


def _write_payload(stage: Definition, context: Path, payload: Path, runs_scripts: bool) -> None:
    """Write the scripts of a stage, and the files that it copies from the host."""
    payload.mkdir(parents=True)
    puts = "".join(_put(line, context, payload, at) for at, line in enumerate(stage.files))
    late = runs_scripts and _USES_LATE.search(stage.post.text)
    sourced = runs_scripts and stage.environment.strip()
    texts = {
        "files.sh": f"set -e\n{_PUT}{puts}",
        "post.sh": _NAMES_LATE * bool(late) + stage.post.text,
        "environment": f"#!/bin/sh\n{stage.environment}",
        "test.sh": f". {_ENVIRONMENT}\n" * bool(sourced) + stage.test.text,
        "runscript": _with_shell(stage.runscript.text),
    }
    for name, text in texts.items():
        (payload / name).write_text(text)
        (payload / name).chmod(0o755)


def _with_shell(script: str) -> str:
    """Return a script that names its program in its first line."""
    given = script.lstrip()
    return given if given.startswith("#!") else f"#!/bin/sh\n{script}"


def render(stages: Sequence[Definition], context: Path, *, runs_scripts: bool = False) -> str:
    """Return the Containerfile of stages; their files and scripts are in ``payload/`` beside it.

    Args:
        stages: those of a definition file.
        context: directory that ``localimage`` paths are relative to.
        runs_scripts: whether the engine is Apptainer, whose containers run the scripts of
            ``/.singularity.d``, and whose bases may be paths and images of its own registries.

    Raises:
        SpecError: no Containerfile can express them.
    """
    lines: list[str] = []
    for number, stage in enumerate(stages):
        lines += _instructions(stages[:number], stage, context, runs_scripts)
    return "\n".join([*lines, ""])


def _instructions(
    before: Sequence[Definition], stage: Definition, context: Path, runs_scripts: bool
) -> Iterator[str]:
    number = len(before)
    begin = ("USER 0:0", "WORKDIR /")
    copied = []
    for name in dict.fromkeys(line.stage for line in stage.files if line.stage):
        found = [at for at, one in enumerate(before) if one.stage == name]
        if not found:
            raise SpecError(_FIELD, f"%files from {name}", "name the Stage of an earlier part")
        copied.append(f"files{number}.{found[-1]}")
        yield f"FROM stage{found[-1]} AS {copied[-1]}"
        yield from begin
        taken = (_taken(line, at) for at, line in enumerate(stage.files) if line.stage == name)
        yield _shell(" && ".join(taken))
    yield f"FROM {_base(stage, context, runs_scripts)} AS stage{number}"
    yield from begin
    steps = list(_steps(stage, runs_scripts))
    if any(step.startswith("RUN ") for step in steps):
        steps.insert(0, f"COPY {_PAYLOAD}/{number}/ {_WORK}/")
        steps[1:1] = [f"COPY --from={name} {_WORK}/ {_WORK}/" for name in copied]
        steps.append(_run("rm", "-rf", _WORK))
    yield from steps


def _steps(stage: Definition, runs_scripts: bool) -> Iterator[str]:
    if stage.files:
        yield _run("/bin/sh", f"{_WORK}/files.sh")
    if _USES_LATE.search(stage.post.text) and not runs_scripts:
        raise SpecError(
            _FIELD, "$APPTAINER_ENVIRONMENT in %post", "set the variables in %environment"
        )
    if stage.post.text.strip():
        yield _run(*_script_args(stage.post, f"{_WORK}/post.sh"))
    if not runs_scripts:
        # One instruction, because a reference means the value before the whole script.
        yield from _pairs("ENV", parse_environment(stage.environment))
    elif stage.environment.strip():
        yield _shell(_ADD_ENVIRONMENT)
    yield from _pairs("LABEL", stage.labels)
    if stage.test.text.strip():
        yield _run(*_script_args(stage.test, f"{_WORK}/test.sh"))
    if stage.runscript.text.strip():
        if stage.runscript.words:
            allowed = "name the program in the script's first line, such as #!/bin/bash"
            raise SpecError(_FIELD, f"%runscript {stage.runscript.arguments}", allowed)
        yield _shell(f"mkdir -p {_METADATA} && cp {_WORK}/runscript {_METADATA}/runscript")
        yield f'ENTRYPOINT ["{_METADATA}/runscript"]'


def _script_args(script: Script, path: str) -> tuple[str, ...]:
    """Return the argv that runs a section's script, as Apptainer does; ``-c`` gives another
    shell.
    """
    words = script.words
    if "-c" not in words:
        return ("/bin/sh", "-ex", *words, path)
    at = words.index("-c")
    if at + 1 == len(words):
        raise SpecError(_FIELD, script.arguments, "name a shell after -c")
    return ("/bin/sh", "-ex", *words[:at], "-c", " ".join((*words[at + 1 :], path)))


def _base(stage: Definition, context: Path, runs_scripts: bool) -> str:
    kind = stage.bootstrap
    base = stage.base.removeprefix("docker://")
    if kind == "scratch":
        return "scratch"
    if kind == "localimage" and is_image_path(base) and runs_scripts:
        return _local_path(base, context)
    if kind in _ONLY_APPTAINER:
        if runs_scripts:
            return f"{kind}://{base}"
        allowed = "without Apptainer, use docker, localimage or scratch"
        raise SpecError(_FIELD, f"Bootstrap: {kind}", allowed)
    if not _IMAGE.fullmatch(base) or base.endswith(".sif"):
        allowed = "without Apptainer, the base must be an image reference"
        raise SpecError(_FIELD, f"From: {base}", allowed)
    if kind != "localimage":
        return full_name(base, "docker.io")
    if base == "scratch":
        raise SpecError(_FIELD, f"From: {base}", "for an empty base, write `Bootstrap: scratch`")
    # a name with a tag is never that of a stage, nor its number
    return base if "/" in base else with_tag(base)


def _local_path(base: str, context: Path) -> str:
    path = (context / base).resolve()
    odd = _OF_THE_SHELL.search(str(path)) or re.search(r"\s", str(path))
    if odd or not path.is_relative_to(context.resolve()) or not path.is_file():
        allowed = (
            f"the image must be a SIF in {context}; or load it with `hyperrun image load FILE`, "
            "and name its reference"
        )
        raise SpecError(_FIELD, f"From: {base}", allowed)
    return str(path)


def _run(*args: str) -> str:
    return f"RUN {json.dumps(args)}"


def _shell(text: str) -> str:
    return _run("/bin/sh", "-c", text)


def _pairs(name: str, values: Mapping[str, str]) -> Iterator[str]:
    if values:
        pairs = (f"{_quoted(key)}={_quoted(value)}" for key, value in values.items())
        yield f"{name} {' '.join(pairs)}"


def _quoted(text: str) -> str:
    if "\n" in text:
        raise SpecError(_FIELD, text, "without Apptainer, a value must be one line")
    return '"' + re.sub(r'(["\\$])', r"\\\1", text).replace(UNKNOWN, "$") + '"'


def _is_content(source: str) -> bool:
    """Return whether a source means the content of a directory."""
    return posixpath.basename(source.rstrip("/")) in ("", ".", "..")


def _taken(line: Copied, at: int) -> str:
    """Return the command that copies a source of a stage to the working directory."""
    place = f"{_WORK}/{at}.0"
    source = shlex.quote(line.source + "/." * _is_content(line.source))
    return f"mkdir -p {place} && cp -fRL -- {source} {place}/"


def _put(line: Copied, context: Path, payload: Path, at: int) -> str:
    """Copy the sources of a ``%files`` line on the host to the payload, following links; return the
    commands for the build.
    """
    if line.stage:
        name = "." if _is_content(line.source) else posixpath.basename(line.source.rstrip("/"))
        return _command(f"{at}.0/{name}", line.target or line.source)
    commands = ""
    for index, path in enumerate(copied_paths(line, context)):
        inner = "" if path.name and not _is_content(line.source) else "/."
        name = f"{at}.{index}/{path.resolve().name if inner else path.name}"
        copy = payload / name
        copy.parent.mkdir()
        if path.is_dir():
            shutil.copytree(path, copy, symlinks=False)
        else:
            shutil.copy2(path, copy)
        commands += _command(f"{name}{inner}", line.target or os.path.relpath(path, context))
    return commands


def _command(name: str, target: str) -> str:
    absolute = target if target.startswith("/") else f"/{target}"
    return f"put {shlex.quote(f'{_WORK}/{name}')} {shlex.quote(absolute)}\n"


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
    found = fitting(context, line.source)
    if not found:
        raise SpecError(_FIELD, line.source, f"the source of %files does not exist in {context}")
    for path in found:
        try:
            _count(str(path), context.resolve(), (), {})
        except OSError as error:
            raise SpecError(_FIELD, str(path), f"it must be readable ({error})") from error
    return found


def _count(path: str, root: Path, above: tuple[str, ...], counts: dict[str, int]) -> int:
    """Return how many files and directories a copy of a path has; links are followed.

    Args:
        path: the path.
        root: directory that all must lie in.
        above: the directories that the walk to the path went through, without links.
        counts: what is known already, by paths without links.

    Raises:
        OSError: a directory cannot be read.
        SpecError: a file lies elsewhere or is a special file, or the copy has no end.
    """
    real = os.path.realpath(path)
    if real in above:
        raise SpecError(_FIELD, path, "a link may not lead to a directory that contains it")
    if real in counts:
        return counts[real]
    if not Path(real).is_relative_to(root):
        raise SpecError(_FIELD, path, f"the files must lie in {root}; copy them there")
    if not (os.path.isfile(real) or os.path.isdir(real)):
        raise SpecError(_FIELD, path, "%files may contain only files and directories")
    count = 1
    for name in os.listdir(real) if os.path.isdir(real) else ():
        count += _count(os.path.join(path, name), root, (*above, real), counts)
        if count > _MOST_FILES or len(above) > _MOST_LEVELS:
            allowed = f"it must have at most {_MOST_FILES} files, {_MOST_LEVELS} directories deep"
            raise SpecError(_FIELD, path, allowed)
    counts[real] = count
    return count


def parse_environment(script: str) -> dict[str, str]:
    """Return the variables that a script exports, in the order of their export; references to other
    variables stay, see :func:`~hyperruntime.images.words.expand_known`.

    Raises:
        SpecError: the script does more than set variables to text and to values of other variables.
    """
    rest = _GAP.sub("", script.replace("\\\n", ""))
    values: dict[str, str] = {}
    exported: dict[str, None] = {}
    while rest:
        found = _STATEMENT.match(rest) or _refuse(rest)
        for name, equals, word in _ASSIGNMENT.findall(found[2]):
            if equals:
                values[name] = _value(word, values)
            elif not found[1]:
                _refuse(rest)
            # exported in every environment, so a plain assignment has an effect
            if found[1] or name == "PATH":
                exported[name] = None
        rest = _GAP.sub("", rest[found.end() :])
    return {name: values[name] for name in exported if name in values}


def _value(word: str, known: Mapping[str, str]) -> str:
    try:
        value = expand_known(word, known)
    except SpecError as error:
        raise SpecError("%environment", error.value, error.allowed) from None
    if _OF_THE_RUN.search(value):
        _refuse(word)
    return value


def _refuse(text: str) -> NoReturn:
    raise SpecError(
        "%environment",
        text.partition("\n")[0].strip(),
        "without Apptainer, write `export NAME=value`; only quotes and $OTHER are supported",
    )
