"""Parse the hooks of a CDI spec, so that their work can be done without an OCI runtime: pure.

Source: the hook commands of nvidia-ctk(1) and nvidia-cdi-hook(1), NVIDIA Container Toolkit 1.13 to 1.18.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

import attrs

from hyperruntime.errors import UnsupportedOptionError
from hyperruntime.gpu.cdi import Hook
from hyperruntime_apptainer.args import NAME

# chmod: the directories are ours already. The other hook stops the driver's library from making device files, and a
# container of ours cannot make any.
NEEDLESS = ("chmod", "disable-device-node-modification")
_LINKS, _CACHE, _COMPAT = "create-symlinks", "update-ldcache", "enable-cuda-compat"
_KNOWN = (_LINKS, _CACHE, _COMPAT, *NEEDLESS)


@attrs.frozen(kw_only=True)
class Wishes:
    """The effects that hooks ask for.

    Attributes:
        links: pairs of a link's path in the container and its target.
        folders: directories that the dynamic linker searches for libraries.
        driver_major: the host driver's major version. CUDA compatibility libraries of the image for a newer driver are
            preferred; "" means never.
    """

    links: tuple[tuple[str, str], ...] = ()
    folders: tuple[str, ...] = ()
    driver_major: str = ""


def parse_hooks(hooks: Sequence[Hook]) -> Wishes:
    """Return the effects that hooks ask for.

    Raises:
        UnsupportedOptionError: a hook is an unknown program, or a link is not ``TARGET::PATH``.
    """
    links: list[tuple[str, str]] = []
    folders: list[str] = []
    major = ""
    for hook in hooks:
        command = next((word for word in hook.args if word in _KNOWN), None)
        if command is None:
            raise _refusal(hook, "only an OCI runtime can run it")
        options = _options(hook.args)
        if command == _LINKS:
            links += [_parse_link(hook, text) for name, text in options if name == "--link"]
        elif command == _CACHE:
            folders += [posixpath.normpath(text) for name, text in options if name == "--folder"]
        elif command == _COMPAT:
            version = next((text for name, text in options if name == "--host-driver-version"), "")
            major = major or (re.match(r"[0-9]*", version) or [""])[0]
    return Wishes(links=tuple(dict.fromkeys(links)), folders=tuple(dict.fromkeys(folders)), driver_major=major)


def _options(args: Sequence[str]) -> list[tuple[str, str]]:
    """Return the options of an argv, from ``--name=value`` and ``--name value``."""
    found = []
    for number, word in enumerate(args):
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            found.append((name, value if equals else "".join(args[number + 1 : number + 2])))
    return found


def _parse_link(hook: Hook, text: str) -> tuple[str, str]:
    target, _, link = text.partition("::")
    if not target or not link.startswith("/"):
        raise _refusal(hook, f"its link {text!r} is not TARGET::PATH")
    link = posixpath.normpath(link)
    return link, posixpath.normpath(posixpath.join(posixpath.dirname(link), target))


def _refusal(hook: Hook, why: str) -> UnsupportedOptionError:
    words = " ".join(hook.args) or hook.path
    step = "use a CDI spec without this hook, or use Podman or Docker"
    return UnsupportedOptionError(NAME, "gpus", f"the CDI spec has a hook ({words}), and {why}; {step}")
