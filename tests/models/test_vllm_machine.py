"""What stands in the way of a real model on a machine is named, with what helps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from prorl_celery.node.vllm.machine import Machine, check_machine, fast_dtype

GOOD = Machine(
    system="Linux",
    architecture="x86_64",
    cpu_flags=frozenset({"avx2", "fma"}),
    glibc=(2, 36),
    python=(3, 11),
    can_make_environments=True,
    available_memory=16 << 30,
    free_disk=50 << 30,
)


def fatal(machine: Machine, **known: object) -> list[str]:
    problems = check_machine(Path("/data"), machine=machine, **known)  # type: ignore[arg-type]
    return [str(problem) for problem in problems if problem.fatal]


def test_a_good_machine_has_no_fatal_problem() -> None:
    assert fatal(GOOD) == []
    assert check_machine(Path("/data"), machine=GOOD, torch_index="https://index.example/cpu") == []


def test_each_lack_is_named_with_what_helps() -> None:
    for lack, words in (
        ({"system": "Darwin"}, ("Linux", "Darwin")),
        ({"architecture": "riscv64"}, ("riscv64", "x86_64")),
        ({"cpu_flags": frozenset({"avx"})}, ("AVX2", "processor")),
        ({"glibc": (2, 17)}, ("glibc 2.28", "2.17")),
        ({"glibc": ()}, ("glibc 2.28", "none")),
        ({"python": (3, 14)}, ("3.11 to 3.13", "3.14")),
        ({"available_memory": 1 << 30}, ("4.0 GiB", "1.0 GiB", "limit")),
        ({"can_make_environments": False}, ("ensurepip", "python3-venv")),
        ({"free_disk": 1 << 30}, ("4.0 GiB", "/data has 1.0 GiB", "PRORL_DATA_DIR")),
    ):
        (problem,) = fatal(replace(GOOD, **lack))
        assert all(word in problem for word in words), problem


def test_an_unset_torch_index_is_told_but_not_fatal() -> None:
    (note,) = check_machine(Path("/data"), machine=GOOD)
    assert not note.fatal
    assert "PRORL_TORCH_INDEX" in str(note)
    assert "CPU" in note.remedy


def test_a_prepared_model_is_not_asked_for_disk_or_an_index() -> None:
    poor = replace(GOOD, free_disk=0, can_make_environments=False)
    assert check_machine(Path("/data"), machine=poor, installed=True) == []


def test_memory_that_the_kernel_does_not_tell_is_no_problem() -> None:
    assert fatal(replace(GOOD, available_memory=None)) == []


def test_the_number_type_is_the_one_the_processor_multiplies() -> None:
    assert fast_dtype(frozenset({"avx2", "avx512f"})) == "bfloat16"
    assert fast_dtype(frozenset({"avx2"})) == "float32"
    assert fast_dtype() in {"bfloat16", "float32"}


def test_this_machine_can_be_looked_at(tmp_path: Path) -> None:
    machine = Machine.here(tmp_path / "not" / "there" / "yet")
    assert machine.system == "Linux"
    assert machine.free_disk > 0
    assert machine.available_memory is None or machine.available_memory > 0
    assert machine.cpu_flags
