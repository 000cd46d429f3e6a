"""CDI specs of every version and form are read, and a broken file does not affect the others."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hyperruntime.errors import DeviceNotFoundError, SpecError
from hyperruntime.gpu.cdi import VERSIONS, DeviceNode, Edits
from hyperruntime.gpu.devices import DeviceRegistry, load_devices, merge_edits
from hyperruntime.spec import ContainerSpec, Mount

NVIDIA: dict[str, Any] = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "containerEdits": {
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "deviceNodes": [{"path": "/dev/nvidiactl"}],
        "mounts": [
            {
                "hostPath": "/usr/lib/libcuda.so.1",
                "containerPath": "/usr/lib/libcuda.so.1",
                "options": ["ro", "bind"],
            }
        ],
        "hooks": [
            {
                "hookName": "createContainer",
                "path": "/usr/bin/nvidia-ctk",
                "args": ["nvidia-ctk", "hook"],
            }
        ],
    },
    "devices": [
        {
            "name": "0",
            "containerEdits": {
                "deviceNodes": [{"path": "/dev/nvidia0", "hostPath": "/dev/nvidia3"}]
            },
        },
        {
            "name": "1",
            "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia1", "permissions": "rwm"}]},
        },
    ],
}


# Each list names the one before it ten times: 600 bytes that stand for a million values.
ALIASES = "- &a0 x\n" + "".join(f"- &a{n + 1} [{', '.join([f'*a{n}'] * 10)}]\n" for n in range(6))


def write(folder: Path, name: str, value: object) -> Path:
    path = folder / name
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def problems(registry: DeviceRegistry) -> str:
    return "\n".join(f"{finding.subject} {finding.detail}" for finding in registry.findings)


@pytest.mark.parametrize("suffix", ["json", "yaml", "yml"])
@pytest.mark.parametrize("version", VERSIONS)
def test_devices_of_a_spec_of_any_version_and_form_are_found(
    tmp_path: Path, suffix: str, version: str
) -> None:
    spec = {**NVIDIA, "cdiVersion": version}
    write(
        tmp_path, f"nvidia.{suffix}", json.dumps(spec) if suffix == "json" else yaml.safe_dump(spec)
    )
    registry = load_devices([tmp_path])
    assert registry.names() == ("nvidia.com/gpu=0", "nvidia.com/gpu=1")
    assert registry.findings == ()


def test_merged_edits_of_two_devices_contain_the_common_part_once(tmp_path: Path) -> None:
    write(tmp_path, "nvidia.json", NVIDIA)
    edits = merge_edits(load_devices([tmp_path]).resolve(["nvidia.com/gpu=0", "nvidia.com/gpu=1"]))
    assert edits.env == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert edits.device_nodes == (
        DeviceNode(path="/dev/nvidiactl", host_path="/dev/nvidiactl"),
        DeviceNode(path="/dev/nvidia0", host_path="/dev/nvidia3"),
        DeviceNode(path="/dev/nvidia1", host_path="/dev/nvidia1", permissions="rwm"),
    )
    library = "/usr/lib/libcuda.so.1"
    assert edits.mounts == (Mount(source=library, target=library),)
    assert edits.mounts[0].read_only
    assert [hook.args for hook in edits.hooks] == [("nvidia-ctk", "hook")]


def test_additional_groups_are_read(tmp_path: Path) -> None:
    devices = [{"name": "0", "containerEdits": {"additionalGids": [44, 109]}}]
    write(tmp_path, "x.json", {"cdiVersion": "0.7.0", "kind": "a.com/gpu", "devices": devices})
    assert merge_edits(load_devices([tmp_path]).resolve(["a.com/gpu=0"])).groups == (44, 109)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cdiVersion": "2.0.0"}, "cdiVersion '2.0.0'"),
        ({"cdiVersion": None}, "cdiVersion None"),
        ({"kind": "nvidia"}, "kind 'nvidia'"),
        ({"kind": ["a.com/gpu"]}, "kind"),
        ({"devices": {}}, "not a list"),
        ({"devices": []}, "no device"),
        ({"devices": ["0"]}, "a device"),
        ({"devices": [{"name": "a b"}]}, "'a b'"),
        ({"devices": [{"name": "0"}, {"name": "0"}]}, "twice"),
        ({"containerEdits": {"env": ["novalue"]}}, "'novalue'"),
        ({"containerEdits": {"env": [1]}}, "1"),
        ({"containerEdits": {"deviceNodes": [{"path": "dev/x"}]}}, "'dev/x'"),
        ({"containerEdits": {"deviceNodes": [{"path": "/dev/x", "permissions": "q"}]}}, "'q'"),
        ({"containerEdits": {"deviceNodes": [{"path": "/dev/x", "type": "z"}]}}, "'z'"),
        ({"containerEdits": {"mounts": [{"hostPath": "/x"}]}}, "containerPath"),
        ({"containerEdits": {"mounts": [{"hostPath": "/x", "containerPath": "/x", "options": [1]}]}}, "all strings"),
        ({"containerEdits": {"hooks": [{"hookName": "later", "path": "/x"}]}}, "'later'"),
        ({"containerEdits": {"additionalGids": [-1]}}, "-1"),
        ({"containerEdits": 7}, "containerEdits"),
    ],
)  # fmt: skip
def test_an_invalid_file_is_reported_and_the_others_are_read(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    write(tmp_path, "bad.json", {**NVIDIA, **change})
    write(tmp_path, "good.json", {**NVIDIA, "kind": "amd.com/gpu"})
    registry = load_devices([tmp_path])
    assert set(registry.names()) == {"amd.com/gpu=0", "amd.com/gpu=1"}
    assert "bad.json" in problems(registry)
    assert words in problems(registry)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("x.json", "{", "not JSON"),
        ("x.json", "[" * 100_000, "nests too deep"),
        ("x.json", "[]", "list instead of a mapping for the file"),
        ("x.yaml", "a: [", "not YAML"),
        ("x.yaml", "? {a: 1}\n: b", "not YAML"),
        ("x.yaml", "!!python/object/apply:os.system ['false']", "not YAML"),
        ("x.yaml", "a: 2001-99-99", "not YAML"),
        ("x.yaml", "", "NoneType"),
        ("x.yaml", ALIASES, "more than 100000 values"),
    ],
)
def test_a_file_that_cannot_be_parsed_is_a_finding(
    tmp_path: Path, name: str, text: str, words: str
) -> None:
    write(tmp_path, name, text)
    registry = load_devices([tmp_path])
    assert registry.devices == {}
    assert words in problems(registry)


def test_a_path_that_is_not_a_regular_file_is_a_finding_and_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.json")
    (tmp_path / "directory.yaml").mkdir()
    (tmp_path / "dangling.json").symlink_to("nowhere")
    write(tmp_path, "README", "no spec")
    registry = load_devices([tmp_path, tmp_path / "missing", tmp_path / "README"])
    assert len(registry.findings) == 4
    assert all(finding.ok is False and finding.next_step for finding in registry.findings)


def test_a_later_directory_overrides_an_earlier_one(tmp_path: Path) -> None:
    for place, node in (("a", "/dev/one"), ("b", "/dev/two")):
        (tmp_path / place).mkdir()
        devices = [{"name": "0", "containerEdits": {"deviceNodes": [{"path": node}]}}]
        write(
            tmp_path / place,
            "x.json",
            {"cdiVersion": "0.3.0", "kind": "a.com/gpu", "devices": devices},
        )
    registry = load_devices([tmp_path / "a", tmp_path / "b"])
    assert merge_edits(registry.resolve(["a.com/gpu=0"])).device_nodes[0].path == "/dev/two"


def test_a_device_described_by_two_files_of_one_directory_is_ignored(tmp_path: Path) -> None:
    write(tmp_path, "a.json", NVIDIA)
    write(tmp_path, "b.json", {**NVIDIA, "devices": [{"name": "1"}]})
    registry = load_devices([tmp_path])
    assert registry.names() == ("nvidia.com/gpu=0",)
    assert "describes nvidia.com/gpu=1, as" in problems(registry)


def test_the_environment_variable_selects_other_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "nvidia.json", NVIDIA)
    monkeypatch.setenv("HYPERRUNTIME_CDI_DIRS", f"/nowhere:{tmp_path}")
    assert load_devices().names("nvidia.com/gpu") == ("nvidia.com/gpu=0", "nvidia.com/gpu=1")


def test_an_unknown_device_is_reported_with_a_close_match(tmp_path: Path) -> None:
    with pytest.raises(DeviceNotFoundError, match="nvidia-ctk cdi generate"):
        load_devices([tmp_path]).resolve(["nvidia.com/gpu=0"])
    write(tmp_path, "nvidia.json", NVIDIA)
    write(tmp_path, "broken.json", "{")
    with pytest.raises(
        DeviceNotFoundError, match=r"did you mean 'nvidia.com/gpu=[01]'.*broken\.json"
    ):
        load_devices([tmp_path]).resolve(["nvidia.com/gpu=7"])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(data=st.data())
def test_a_spec_with_any_changed_value_is_read_or_reported(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    spec = json.loads(json.dumps(NVIDIA))
    places = [(spec, key) for key in spec] + [
        (spec["containerEdits"], key) for key in spec["containerEdits"]
    ]
    places += [
        (spec["devices"], 0),
        (spec["devices"][0], "name"),
        (spec["containerEdits"]["hooks"], 0),
    ]
    holder, key = data.draw(st.sampled_from(places))
    holder[key] = data.draw(JSON)
    folder = tmp_path_factory.mktemp("cdi")
    write(folder, "x.json", spec)
    write(folder, "y.yaml", yaml.safe_dump(spec))
    registry = load_devices([folder])
    assert registry.devices or registry.findings
    assert all(isinstance(device.edits, Edits) for device in registry.devices.values())


@given(content=st.binary(max_size=200), suffix=st.sampled_from(["json", "yaml"]))
def test_a_file_with_any_content_is_read_or_reported(
    content: bytes, suffix: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("cdi")
    (folder / f"x.{suffix}").write_bytes(content)
    registry = load_devices([folder])
    assert registry.devices == {}
    assert len(registry.findings) == 1


@pytest.mark.parametrize(
    ("given_gpus", "expected"),
    [
        (None, None),
        ("all", "all"),
        ("auto", "auto:1"),
        ("auto:4", "auto:4"),
        ("0", ("0",)),
        (["0", "1", "0"], ("0", "1")),
        ("nvidia.com/gpu=0:1", ("nvidia.com/gpu=0:1",)),
        (
            ("GPU-8f2c5c6e-1111-2222-3333-444455556666",),
            ("GPU-8f2c5c6e-1111-2222-3333-444455556666",),
        ),
    ],
)
def test_gpus_of_a_spec_are_accepted_in_several_forms(given_gpus: Any, expected: Any) -> None:
    assert ContainerSpec(image="x", gpus=given_gpus).gpus == expected


@pytest.mark.parametrize(
    "gpus", ["", "auto:0", "auto:x", "some", (), ("",), ("0 1",), 1, ("all",), "a/b", "x\n", True]
)
def test_invalid_gpus_are_rejected(gpus: Any) -> None:
    with pytest.raises(SpecError, match="gpus"):
        ContainerSpec(image="x", gpus=gpus)
