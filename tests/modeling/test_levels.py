"""The instruction levels of the CPU kernels, and their compilation."""

import ctypes
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine_server.modeling.native import build, levels
from engine_server.modeling.native.levels import (
    AMX,
    ARCH_PRCTL,
    LEVELS,
    V4,
    XFEATURE_XTILEDATA,
    instruction_level,
    instructions,
    supported_levels,
    tiles_are_permitted,
)

needs_compiler = pytest.mark.skipif(build.find_compiler() is None, reason="there is no g++ for this machine")
# The names of instructions that torch reports, beyond those of its capability.
REPORTED = ("avx_vnni", "avx512_vnni", "avx512_bf16", "avx512_fp16")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists a CPU's instructions")
def test_instructions_are_those_that_torch_reports() -> None:
    capability, reported = torch.backends.cpu.get_cpu_capability(), torch.cpu.get_capabilities()
    supported = supported_levels()
    assert ("avx2" in supported) == (capability in ("AVX2", "AVX512"))
    assert ("avx512" in supported) == (capability == "AVX512")
    assert {name for name in REPORTED if reported.get(name)} == instructions() & set(REPORTED)


@pytest.mark.parametrize(("with_float16", "level"), [(False, "avx512-bf16"), (True, "avx512-vnni")])
def test_cpu_that_multiplies_float32_faster_than_pairs_of_bfloat16_uses_the_level_without_them(
    with_float16: bool, level: str
) -> None:
    held = V4 | {"avx512_vnni", "avx512_bf16"} | ({"avx512_fp16"} if with_float16 else set())
    assert instruction_level(held) == level


@pytest.mark.parametrize("level", LEVELS)
def test_cpu_with_the_instructions_of_a_level_supports_it_first(level: str) -> None:
    assert supported_levels(LEVELS[level].needs)[0] == level


@pytest.mark.parametrize(("permitted", "level"), [(True, "amx"), (False, "avx512-vnni")])
def test_process_that_may_not_use_tiles_takes_the_next_level(
    permitted: bool, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = V4 | AMX | {"avx512_vnni", "avx512_bf16", "avx512_fp16"}
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {' '.join(held)}\n")
    monkeypatch.setattr(levels, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(levels, "tiles_are_permitted", lambda: permitted)
    instructions.cache_clear()
    try:
        assert instruction_level() == level
    finally:
        instructions.cache_clear()


@pytest.mark.skipif(
    (platform.system(), platform.machine()) != ("Linux", "x86_64"),
    reason="only Linux on x86-64 permits tiles",
)
def test_linux_lists_tiles_among_the_permitted_features_once_it_has_permitted_them() -> None:
    get_permitted_features, features = 0x1022, ctypes.c_uint64()
    permitted = tiles_are_permitted()
    ctypes.CDLL(None).syscall(
        ctypes.c_long(ARCH_PRCTL), ctypes.c_long(get_permitted_features), ctypes.byref(features)
    )
    assert permitted == bool(features.value >> XFEATURE_XTILEDATA & 1)


def test_cpu_without_avx2_has_no_level() -> None:
    assert supported_levels(frozenset(("sse4_2", "avx"))) == []
    assert instruction_level(frozenset(("sse4_2", "avx"))) not in LEVELS


def test_level_is_found_without_torch() -> None:
    program = (
        "import sys; from engine_server.modeling.native import build, levels; levels.instruction_level();"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two small sources in place of the kernels', which compile quickly."""
    for module in (build, levels):
        monkeypatch.setattr(module, "FOLDER", tmp_path)
    for name in ("a", "b"):
        (tmp_path / f"{name}.cpp").write_text(f"int {name}() {{ return 0; }}\n")
    return tmp_path


def libraries(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.glob("*.so"))


@needs_compiler
def test_own_level_alone_is_compiled_by_default_and_every_level_on_request(sources: Path) -> None:
    own = {instruction_level(), instruction_level(instructions() - AMX)} & LEVELS.keys()
    assert build.main([]) == 0
    assert libraries(sources) == sorted(f"kernels-{level}.so" for level in own)
    assert build.main(["--all"]) == 0
    assert libraries(sources) == sorted(f"kernels-{level}.so" for level in LEVELS)


@needs_compiler
def test_library_is_compiled_again_only_after_a_source_has_changed(sources: Path) -> None:
    build.compile_levels(str(build.find_compiler()), ["avx2"])
    assert not build.outdated("avx2")
    later = levels.library_file("avx2").stat().st_mtime_ns + 1_000_000_000
    os.utime(sources / "a.cpp", ns=(later, later))
    assert build.outdated("avx2")


@needs_compiler
def test_compilation_fails_with_an_error_of_the_compiler_and_leaves_no_file(sources: Path) -> None:
    (sources / "b.cpp").write_text("this is no program\n")
    with pytest.raises(subprocess.CalledProcessError):
        build.compile_levels(str(build.find_compiler()), ["avx2"])
    assert libraries(sources) == []
