"""The operator's flags that shape pods."""

from pathlib import Path
from typing import Any

from waiting import until


def test_flags_give_profiles_and_lower_pod_security(
    world: Any, manifest: Any, start_operator: Any, tmp_path: Path
) -> None:
    world.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "flags"}})
    profiles = tmp_path / "profiles.yaml"
    profiles.write_text("gpu-l4: {resources: {gpu: 1}, podTemplate: {spec: {hostPID: true}}}")
    flags = ("--namespace=flags", "--lease-namespace=flags", f"--profiles-file={profiles}")
    start_operator(world.service_account("flags", "flags"), *flags, "--pod-security=any")

    world.apply(manifest("with-flags", "flags", profile="gpu-l4"))

    pod = until(lambda: world.get("deployment", "with-flags-engine", "flags"))["spec"]["template"]["spec"]
    assert pod["hostPID"] is True
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    world.kubectl("delete", "llmd", "with-flags", "-n", "flags")
