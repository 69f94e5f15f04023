"""From one prompt of the agent's shell to the next: lines sent, markers awaited, a shell put right or replaced.

`markers` has what is sent and how a command's end is known, `terminal` the bytes both ways, `shellrc.sh` what answers.
"""

from __future__ import annotations

import secrets
from time import monotonic

from prorl_celery.errors import SandboxError
from prorl_celery.sandbox.control import Control
from prorl_celery.sandbox.markers import SHELL_ENDED, SHELL_STARTED, Marker, Markers, command_line
from prorl_celery.sandbox.notes import ShellNotes, ShellState
from prorl_celery.sandbox.output import CappedOutput
from prorl_celery.sandbox.page import Page
from prorl_celery.sandbox.terminal import Terminal

ANSWER_SECONDS = 1.0
"""How long the shell may take to answer when it is at its prompt."""
TIDY_SECONDS = 5.0
RESTART_SECONDS = 10.0
TRIES = 3
FIRST_TEND_SECONDS = 1.0
"""When the first process is asked to look after the shell; then after 4, 16, 16, ... seconds. See `init.sh`."""
LAST_TEND_SECONDS = 16.0


class Prompts:
    """Knows the shell by its last prompt. Raises `SandboxError`, `FenceLost`, and what the cancel signal raises."""

    def __init__(self, terminal: Terminal, *, nonce: str, control: Control, page: Page, notes: ShellNotes) -> None:
        self._terminal = terminal
        self._markers = Markers(nonce)
        self._control = control
        self._page = page
        self._notes = notes
        self._id_base = secrets.token_hex(2).encode()
        self._commands = 0
        self.restore(notes.shell)

    def restore(self, shell: ShellState) -> None:
        """Begin with what another holder knew of the shell."""
        self.status = shell.status
        """What `$?` is at the next command's start."""
        self.shell_group = shell.group
        """The shell's process group, as this process sees it; 0 until it was seen at its prompt."""
        self.ran: bytes | None = shell.ran or None
        """What the last marker said was begun last."""
        self._shell_pid = shell.pid
        self._carry = b""
        self.restarted = self.nudged = False
        """Since these were reset: another shell stands, an empty line was sent."""

    @property
    def state(self) -> ShellState:
        """What is known of the shell."""
        return ShellState(self.status, self.shell_group, self.ran or b"", self._shell_pid)

    def send(self, command: str, *, tidy: bool = False, behind: bytes = b"", noted: bool = False) -> bytes:
        """Begin to send a command; its id. `noted`: it is one that a successor of ours would be asked about."""
        self._commands += 1
        command_id = b"%b%d" % (self._id_base, self._commands)
        line = command_line(command, command_id, status=self.status, tidy=tidy)
        self._terminal.set_modes()
        if noted:
            self._terminal.send(
                line, note=lambda: self._notes.command(command_id, len(line), self.state, at=monotonic())
            )
        else:
            self._terminal.send(behind + line)
        return command_id

    def hear_again(self, first: bytes, missing: int, rest: bytes, output: CappedOutput) -> None:
        """Take what the terminal has said to a holder before us as if it said it now."""
        if missing:
            marker: Marker | None
            while True:
                marker, first = self._markers.scan(first, output)
                if marker is None:
                    break
            output.add(first)
            output.skip(missing)
            first = b""
        self._carry = first + rest

    def tidy(self) -> str:
        """Put right what a command did to the shell, or have a new one where that fails; its working directory."""
        probe = self.send(":", tidy=True)
        marker = self.wait((probe,), CappedOutput(0), monotonic() + TIDY_SECONDS)
        if marker is None or marker.untidy or marker.ran not in (probe, self._shell_pid):
            return self.replace()
        return marker.cwd

    def replace(self) -> str:
        """Have a new shell in place of one that is of no use any more; its working directory."""
        with self._page:
            self._notes.replacing = True
        self._control.request("restart")
        marker = self.wait((), CappedOutput(0), monotonic() + RESTART_SECONDS)
        if marker is None:
            raise SandboxError("the sandbox's shell runs no commands, and could not be replaced")
        with self._page:
            self._notes.replacing = False
        return marker.cwd

    def synchronise(self, tries: int = TRIES) -> Marker | None:
        """Make sure that no interrupt is on its way which would hit the next command; None if the shell is silent."""
        for _ in range(tries):
            # bash may lose a character to an interrupt that comes while it reads.
            probe = self.send(":", tidy=True, behind=b"\n")
            marker = self.wait((probe,), CappedOutput(0), monotonic() + ANSWER_SECONDS)
            if marker is not None:
                return marker
        return None

    def settle(self, patience: float = TIDY_SECONDS) -> str:
        """Have a shell at a prompt, with nothing on its way to it or from it; its working directory."""
        if self._notes.replacing:
            self.replace()
        for _ in range(TRIES):
            probe = self.send(":", tidy=True)
            marker = self.wait((probe,), CappedOutput(0), monotonic() + patience)
            if marker is None or (marker.ran == probe and marker.untidy):
                self.replace()
            elif marker.ran == probe:
                return marker.cwd
            # Else another shell has come meanwhile, and what was sent to the one before may have gone with it.
        raise SandboxError("the sandbox's shell could not be brought back to its prompt")

    def wait(
        self, wanted: tuple[bytes, ...], output: CappedOutput, deadline: float, *, nudge: bool = False
    ) -> Marker | None:
        """Read (and send what waits) until a marker of a wanted command or a new shell; None at the deadline.

        After a syntax error bash may show its last prompt again. With `nudge` an unexpected prompt is answered by an
        empty line, which brings the right one.
        """
        tend_after = FIRST_TEND_SECONDS
        tend_at = monotonic() + tend_after
        data: bytes | None = b""
        while True:
            while data or self._carry:
                marker, self._carry = self._markers.scan(self._carry + (data or b""), output)
                if marker is None:
                    break
                data = b""
                if marker.command_id == SHELL_ENDED:
                    self._terminal.send(b"")
                    continue
                self.ran = marker.ran
                self.shell_group = self.shell_group or self._terminal.foreground()
                if marker.command_id in wanted:
                    return marker
                if marker.ran in wanted:
                    # Given up half-way. Why the second half was skipped is seen when it is tried again.
                    return marker._replace(status=marker.now, now=marker.now or 1)
                if marker.command_id == SHELL_STARTED and marker.ran != self._shell_pid:
                    self._shell_pid, self.restarted, self.status = marker.ran, True, 0
                    self.shell_group = self._terminal.foreground()
                    return marker
                if nudge and not self.nudged and not self._terminal.is_sending:
                    self.nudged = True
                    self._terminal.send(b"\n")
            now = monotonic()
            if now >= deadline:  # also when there was data: a flood of output must not outrun the time-out
                return None
            if data is None:
                with self._page:
                    self._notes.seen_at = now
                self._control.tend()
                tend_after = min(4 * tend_after, LAST_TEND_SECONDS)
                tend_at = now + tend_after
            data = self._terminal.receive(min(deadline, tend_at))
