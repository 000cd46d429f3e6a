"""What an image does in a build from it is read where Podman keeps it, or from a saved copy."""

from __future__ import annotations

import json

import hyperruntime as hr
from hyperruntime_podman import bases
from tests.conftest import EngineCommand


def test_the_configuration_of_an_image_is_found(
    runtime: hr.Runtime, base_image: str, engine_command: EngineCommand
) -> None:
    identifier = engine_command.run("image", "inspect", "--format", "{{.Id}}", base_image).strip()
    kept, saved = bases._configuration(identifier), bases._saved_configuration(identifier)
    assert json.loads(kept)["rootfs"]["diff_ids"] == json.loads(saved)["rootfs"]["diff_ids"]
