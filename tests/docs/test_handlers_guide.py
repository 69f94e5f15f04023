"""docs/handlers.md, followed to the letter in an empty folder: its files are written, its commands run, and what they
print is what stands there.

A fenced block whose head names a file (```python sql.py) goes to that file's end. In a `console` block a line that
begins with "$ " is a command, and the lines up to the next are what it prints; `...` stands for anything. A block
`console service` is a service, which runs until the end.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from e2e_service import eventually

from prorl_celery.testing.kit import HandlerContract

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "handlers.md").read_text()
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND_SECONDS = 180.0
READY_SECONDS = 90.0


def commands(block: str) -> list[tuple[str, str]]:
    """Each command of a console block, and what it should print."""
    found: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return [(command, "\n".join(lines)) for command, lines in found]


def matches(wanted: str, said: str) -> bool:
    """Whether it was said, where `...` in what is wanted stands for anything."""
    pattern = ".*".join(re.escape(part) for part in wanted.strip().split("..."))
    return re.fullmatch(pattern, said.strip(), re.DOTALL) is not None


class Reader:
    """Somebody who does what the guide says, in one folder."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder = folder
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("PRORL_", "PYTEST_"))}
        self._environment = {**ours, "PATH": path, "HOME": str(home)}

    def write(self, name: str, text: str) -> None:
        with (self.folder / name).open("a") as file:
            file.write(text)

    def run(self, command: str) -> str:
        """What the command prints, stderr too."""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_SECONDS,
        )
        return done.stdout

    @contextmanager
    def service(self, command: str) -> Iterator[None]:
        """The service of this command, on a port that is free, until the block ends."""
        process = subprocess.Popen(
            ["bash", "-c", f"{command.replace('prorl up', 'exec prorl up')} --port 0"],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.DEVNULL,
        )
        try:
            noted = self.folder / ".prorl" / "service.json"
            assert eventually(lambda: noted.exists() or process.poll() is not None, READY_SECONDS)
            assert process.poll() is None, "the service did not start"
            yield
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)


@pytest.mark.e2e
@pytest.mark.slow
def test_the_guide_can_be_followed_to_the_letter(tmp_path: Path) -> None:
    folder, home = tmp_path / "here", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    reader = Reader(folder, home)
    ran = 0
    with ExitStack() as stack:
        for language, name, text in BLOCK.findall(GUIDE):
            if language == "console" and name == "service":
                [(command, _)] = commands(text)
                stack.enter_context(reader.service(command))
            elif language == "console":
                for command, wanted in commands(text):
                    said = reader.run(command)
                    assert matches(wanted, said), f"$ {command}\n{said}\n-- but the guide says --\n{wanted}"
                    ran += 1
            elif name:
                reader.write(name, text)
    assert ran >= 8
    assert {"sql.py", "sql.json", "sql.oracle.jsonl", "test_sql.py"} <= {path.name for path in folder.iterdir()}


def test_the_guide_names_each_check_of_the_kit_and_no_other() -> None:
    table = GUIDE[GUIDE.index("| test | the handler must") : GUIDE.index("## In a service")]
    cells = "".join(row.split("|")[1] for row in table.splitlines() if row.startswith("| `"))
    told = [name.replace("...", ".*") for name in re.findall(r"`([a-z_.]+)`", cells)]
    checks = [name.removeprefix("test_") for name in vars(HandlerContract) if name.startswith("test_")]
    assert not [check for check in checks if not any(re.fullmatch(pattern, check) for pattern in told)]
    assert not [pattern for pattern in told if not any(re.fullmatch(pattern, check) for check in checks)]
