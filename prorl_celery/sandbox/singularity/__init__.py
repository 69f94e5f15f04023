"""The sandbox kind with an image: a Singularity or Apptainer instance, and an `exec` in it on a pseudo-terminal.

program      which of the two there is, and its version
options      how it is called
registry     a keeper's instances by name and pid, findable by others
instances    spython, which starts, lists and stops them, behind checks
containers   one keeper's instances: started and entered
seal         what bounds an instance's disk, from outside
unpack       image files where they cannot be mounted
starter, inotify     waiting for a start
hold.sh, enter.sh    around `init.sh`: on the host, and first inside

For operators. An image is a folder (`singularity build --sandbox`) or a SIF. A folder starts fastest and needs nothing.
A SIF is mounted where that can be (`unpack`); else the keeper unpacks it once, into its share. An image whose /usr is
an empty folder borrows the host's (`deploy/images/make_skeleton.sh`). An agent can change files of the image, in a
layer of its own, where they belong to the user that sandboxes run as; those of a SIF do.

An instance has its own pids, IPC and host name, no /sys, no network unless PRORL_SANDBOX_NETWORKS allows one, and of
the host only what PRORL_SANDBOX_BINDS allows: the site's own `bind path` lines are left out. All it can write is one
tmpfs of the size asked for (`seal`): root, workspace, /tmp, /var/tmp, /dev/shm and home. That is memory.

`fakeroot` where PRORL_SANDBOX_FAKEROOT allows it: root inside, who owns the image's files if the sandbox user does.
With a line in /etc/subuid there are more users inside, and then the limit of processes is one for each of them: without
control groups nothing bounds their sum.
"""

from prorl_celery.sandbox.image_check import borrows_usr
from prorl_celery.sandbox.singularity.containers import START_SECONDS, Singularity
from prorl_celery.sandbox.singularity.program import Program, command, find
from prorl_celery.sandbox.singularity.registry import INIT_NAMES

__all__ = ["INIT_NAMES", "START_SECONDS", "Program", "Singularity", "borrows_usr", "command", "find"]
