"""A keeper's instances: started in children of it, and entered."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from prorl_celery.errors import SandboxError
from prorl_celery.sandbox.base import SandboxSpec
from prorl_celery.sandbox.binds import allowed_binds
from prorl_celery.sandbox.image_check import borrows_usr, check_image
from prorl_celery.sandbox.launch import Launch, User
from prorl_celery.sandbox.packages import kernel_python
from prorl_celery.sandbox.singularity import bridge, options, program
from prorl_celery.sandbox.singularity.instances import Instances
from prorl_celery.sandbox.singularity.registry import Registry, instance_name, kill_recorded
from prorl_celery.sandbox.singularity.seal import WORKDIR, NotSealed, seal
from prorl_celery.sandbox.singularity.starter import Starter
from prorl_celery.sandbox.singularity.unpack import as_folder, can_mount
from prorl_celery.settings import Settings

log = logging.getLogger(__name__)

START_SECONDS = 60.0
"""Longest start of an instance; seen: 0.3 s for a folder."""
UNPACK_SECONDS = 600.0
"""Longest start where an image file must be unpacked first."""


class Singularity:
    """Instances of one keeper, by a program that was found (`program.find`)."""

    def __init__(self, settings: Settings, user: User | None, share: Path, boot: str, found: program.Program) -> None:
        self._program = found
        self._settings = settings
        self._user = user
        self._share = share
        self._registry = Registry(share, boot, user, self._program)
        self._instances = Instances(self._registry, user)
        self._set_uid_only = program.why_no_user_namespaces()
        if self._set_uid_only:
            log.error(
                "instances run set-uid, with the disk that the site's `sessiondir max size` gives each of their "
                "places and not PRORL_SANDBOX_DISK: %s",
                self._set_uid_only,
            )

    def instance_name(self, spec: SandboxSpec, sandbox_id: str) -> str:
        """Names an instance for whoever finds it (`registry`)."""
        return instance_name(self._settings.node, spec.job_id, spec.attempt, sandbox_id)

    def start_seconds(self, spec: SandboxSpec) -> float:
        """How long a start may take."""
        return UNPACK_SECONDS if Path(spec.image or "").suffix else START_SECONDS

    def start_instance(self, spec: SandboxSpec, name: str, ready: Callable[[int, bool], None]) -> int:
        """Start an instance. `ready` is called when it can be entered, which is some 0.2 s before the program and
        spython are content with it: with the pid of its first process, and whether it borrows the host's /usr. Returned
        is the pid that the program tells.

        Blocks; for a child process of the keeper. Raises: `SandboxError`.
        """
        if spec.network == "bridge":
            bridge.find().disconnect_left_behind()
        starter = Starter(lambda: self._start(spec, name))
        try:
            record = self._registry.await_record(name, until=starter.pipe, timeout=self.start_seconds(spec))
            if record is not None:
                self._seal(record.pid, spec)
                if spec.network == "bridge":
                    bridge.find().connect(name, record.pid)
                ready(record.pid, borrows_usr(Path(spec.image or "")))
        except OSError as error:
            raise SandboxError(f"the instance {name} could not be watched: {error}") from error
        pid = starter.result()
        if record is None or record.pid != pid:
            raise SandboxError(f"the instance {name} started without telling so where it was told to")
        return pid

    def launch(self, spec: SandboxSpec, name: str, pid: int, *, nonce: str) -> Launch:
        """The `exec` that holds the sandbox's terminal, in the instance whose first process is `pid`."""
        return Launch(
            argv=options.enter_argv(self._program, spec, name, pid, nonce=nonce),
            env=self._registry.environment(),
            user=self._user,
            workdir=WORKDIR,
        )

    def forget(self, name: str) -> None:
        """Remove what an instance that has ended leaves, but for what a bridge notes."""
        self._registry.forget(name)

    def disconnect(self, name: str, network: str) -> None:
        """Undo what a bridge knows of an instance that has ended; `network` is the path of the network it had.

        Blocks. Raises: `SandboxError`.
        """
        bridge.find().disconnect(name, network)

    def kill(self, name: str) -> int:
        """Kill an instance whose start failed half way; how many there were."""
        return kill_recorded(self._registry.path, name)

    def _start(self, spec: SandboxSpec, name: str) -> int:
        """In a process of its own, which it changes."""
        image = Path(spec.image or "")
        check_image(image, self._user)
        binds = allowed_binds(spec.binds, self._settings.sandbox_binds, self._user)
        if borrows_usr(image):
            ours = kernel_python(self._share).folders if spec.kernel else ()
            binds = (options.borrowed_usr(), *(options.folder(*each) for each in ours), *binds)
        self._instances.become()
        if image.is_file() and not can_mount(self._program):
            image = as_folder(image, self._registry, self._program)
        chosen = options.start_options(self._program, spec, binds=binds, user_namespaces=not self._set_uid_only)
        return self._instances.start(str(image), name, chosen)

    def _seal(self, pid: int, spec: SandboxSpec) -> None:
        try:
            seal(pid, spec.disk_bytes, self._user, online=spec.network != "none")
        except NotSealed:
            if not self._set_uid_only:
                raise
