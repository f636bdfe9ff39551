"""The operator's flags that shape pods."""

from pathlib import Path
from typing import Any

from waiting import until


def test_flags_give_profiles_and_lower_pod_security(
    world: Any, manifest: Any, start_operator: Any, tmp_path: Path
) -> None:
    profiles = tmp_path / "profiles.yaml"
    profiles.write_text("gpu-l4: {resources: {gpu: 1}, podTemplate: {spec: {hostPID: true}}}")
    flags = (f"--namespace={world.namespace}", f"--lease-namespace={world.namespace}")
    start_operator(world.service_account(), *flags, f"--profiles-file={profiles}", "--pod-security=any")

    world.apply(manifest("with-flags", profile="gpu-l4"))

    pod = until(lambda: world.get("deployment", "with-flags-engine"))["spec"]["template"]["spec"]
    assert pod["hostPID"] is True
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
