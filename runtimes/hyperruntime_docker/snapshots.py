"""Snapshots of Docker's containers: images that the daemon commits."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hyperruntime.driver import ContainerRecord
from hyperruntime.host.owner import LABEL
from hyperruntime.layers.snapshots.kept_images import (
    FACTS,
    MOST_LAYERS,
    SNAPSHOTS,
    Labels,
    of_dead_owners,
)
from hyperruntime_docker.args import UID_LABEL
from hyperruntime_docker.client import Engine, translated


def commit(engine: Engine, container: str, added: Sequence[str], labels: Labels, name: str) -> str:
    """Make an image of a container's files; return its identifier.

    The configuration is that of the container's image: what its spec adds is not part of it.

    Args:
        engine: the connection to the daemon.
        container: its name.
        added: the variables that its spec adds, with their values.
        labels: returns those to add, from what the daemon knows about the image.
        name: the name of the new image.

    Raises:
        EngineError: the daemon cannot make it.
    """
    api = engine.api(patient=True)
    with translated(f"{container} cannot be committed"):
        there = api.inspect_container(container)
        below = api.inspect_image(there["Image"])
        given = {**there["Config"]["Labels"], **labels(below)}
        config = {**_config(below["Config"], added), "Labels": given}
        if len(below["RootFS"]["Layers"]) < MOST_LAYERS:
            repository, _, tag = name.rpartition(":")
            made = api.commit(container, repository, tag, pause=False, conf=config)
            return str(made["Id"])
        return _import(api, container, config, name)


class SnapshotImages:
    """The images of snapshots.

    See :class:`~hyperruntime.layers.snapshots.kept_images.EngineImages`.
    """

    def __init__(self, engine: Engine) -> None:
        """Use an engine, which connects when it is first needed."""
        self._engine = engine

    def names(self, repository: str) -> Iterator[str]:
        """Return the names in a repository."""
        with translated("snapshots cannot be listed"):
            found = self._engine.api().images(filters={"reference": repository})
        names = (name for one in found for name in one["RepoTags"] or ())
        return (name for name in names if name.startswith(f"{repository}:"))

    def inspect(self, reference: str) -> dict[str, Any] | None:
        """Return what the daemon knows about an image."""
        from docker.errors import ImageNotFound

        with translated(f"image {reference} cannot be inspected"), suppress(ImageNotFound):
            return dict(self._engine.api().inspect_image(reference))
        return None

    def tag(self, identifier: str, name: str) -> None:
        """Give an image a further name."""
        with translated(f"{name} cannot be made"):
            self._engine.api().tag(identifier, *name.rsplit(":", 1))

    def users(self, identifier: str) -> list[str]:
        """Return the names of the containers of an image."""
        with translated("containers cannot be listed"):
            found = self._engine.api().containers(all=True, filters={"ancestor": identifier})
        return [str(one["Names"][0]).lstrip("/") for one in found]

    def export(self, identifier: str, tar: Path, labels: Mapping[str, str]) -> None:
        """Write all files of an image to a tar."""
        api = self._engine.api(patient=True)
        given = {**labels, UID_LABEL: str(os.getuid())}
        with translated(f"the files of image {identifier} cannot be read"):
            made = api.create_container(identifier, "never-started", labels=given)
            try:
                with tar.open("wb") as file:
                    for chunk in api.export(made):
                        file.write(chunk)
            finally:
                api.remove_container(made, v=True, force=True)

    def remove(self, names: Sequence[str]) -> None:
        """Remove snapshots by their names, in this order; other images below stay. The daemon
        refuses the last name of a named one while a container uses it.
        """
        from docker.errors import ImageNotFound

        api = self._engine.api(patient=True)
        with translated("snapshots cannot be removed"):
            for name in names:
                with suppress(ImageNotFound):
                    below = api.inspect_image(name)["Parent"]
                    is_unnamed = name.startswith(f"{SNAPSHOTS}:")
                    api.remove_image(name, force=is_unnamed, noprune=True)
                    _remove_unnamed(api, below)


def _remove_unnamed(api: Any, image: str) -> None:  # noqa: ANN401 - the SDK is untyped
    """Remove a snapshot that lost its name while another one lay over it, and those below it."""
    from docker.errors import APIError

    with suppress(APIError):  # it is used
        while image and not (found := api.inspect_image(image))["RepoTags"]:
            if FACTS not in (found["Config"]["Labels"] or {}):
                return
            api.remove_image(image, noprune=True)
            image = found["Parent"]


def dead_snapshots(engine: Engine) -> tuple[ContainerRecord, ...]:
    """Return the snapshots whose owner is dead."""
    filters = {"reference": SNAPSHOTS, "label": LABEL}
    with translated("snapshots cannot be listed"):
        found = engine.api().images(filters=filters)
    return of_dead_owners(
        (str(name), float(one["Created"]), dict(one["Labels"]))
        for one in found
        for name in one["RepoTags"] or ()
    )


def _config(below: Mapping[str, Any], added: Sequence[str]) -> dict[str, Any]:
    """Return the configuration of an image's child. The daemon adds what is missing from the
    container's, so each field has a value; a variable without one counts as removed.
    """
    env = list(below.get("Env") or ())
    known = {one.partition("=")[0] for one in env}
    names = [one.partition("=")[0] for one in added]
    return {
        **below,
        "Env": [*env, *(name for name in names if name not in known)],
        "User": below.get("User") or "0",
        "WorkingDir": below.get("WorkingDir") or "/",
        "Entrypoint": below.get("Entrypoint") or [],
        "Cmd": below.get("Cmd") or [],
    }


def _import(api: Any, container: str, config: Mapping[str, Any], name: str) -> str:  # noqa: ANN401 - the SDK is untyped
    """Make an image with one layer, which has all files of a container."""
    repository, _, tag = name.rpartition(":")
    changes = [f"LABEL {_quoted(key)}={_quoted(value)}" for key, value in config["Labels"].items()]
    for one in config["Env"]:
        key, is_set, value = one.partition("=")
        changes += [f"ENV {key}={_quoted(value)}"] if is_set else []
    changes += [f"USER {config['User']}", f"WORKDIR {config['WorkingDir']}".replace("$", "\\$")]
    for word in ("Entrypoint", "Cmd"):
        changes.append(f"{word.upper()} {json.dumps(config[word])}")
    changes += [f"VOLUME {json.dumps(list(volumes))}"] if (volumes := config.get("Volumes")) else []
    files = api.export(container)
    answer = api.import_image(
        src=files, repository=repository, tag=tag, changes=changes, stream_src=True
    )
    return str(json.loads(answer.splitlines()[-1])["status"])


def _quoted(word: str) -> str:
    """Return a word as Dockerfiles have it."""
    return '"' + re.sub(r'(["\\$])', r"\\\1", word) + '"'
