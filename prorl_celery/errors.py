"""Every error this project raises, in one tree.

    ProrlError
     |- SettingsError                a PRORL_* variable is unknown or its value is wrong
     |- StoreError
     |   |- StoreUnavailable         Redis did not answer; whether the write took place is unknown
     |   |- JobNotFound              no job of that id was ever accepted (or all trace of it has expired)
     |   |- JobConflict              the id is taken by a job with another body
     |   |- NotFinished              the job has no result yet
     |   |- NotFailed                the job has not failed, so it cannot be retried
     |   |- ResultExpired            the job ended, its result is past its time to live
     |   |- QueueFull                PRORL_MAX_QUEUED jobs wait already
     |   |   '- StoreFull            Redis's memory is nearly full
     |   |- LogBehind                the turn log lacks what was logged before
     |   |- TooLarge                 a blob is over its size limit
     |   |- BatchError               a batch refuses; carries `batch_id`
     |   |   |- BatchNotFound        no such batch
     |   |   |- BatchConflict        its id, or a prompt's, is taken by another body
     |   |   |- BatchEnded           it takes no more prompts
     |   |   '- BatchNotLeft         it keeps nothing that another could adopt
     |   '- FenceLost                a later claim owns the job; the writer must stop and clean up
     |- ApiError                     the service refused a client's call; carries its problem document
     |   '- ApiUnavailable           the service gave no answer in time
     |- ModelError                   a model of our own, run beside the service, is not to be had
     |   |- MachineUnfit             this machine cannot run it; the message says what is missing and what helps
     |   |- ModelNotPrepared         it could not be installed or converted
     |   '- ModelServerFailed        its server did not start, or answered nonsense
     |- DatasetError                 a data set could not be prepared; the message names the file and the field
     |- ImageError                   an image could not be built, pulled or removed
     |   |- ImageNotFound            no repository has it, or none that lets us in
     |   '- DiskFull                 the images' disk is full; what is complete stays
     '- StageError                   a stage of a job failed; carries the `kind` that the API reports
         |- BadInstance              bad_instance: the task's data cannot be run
         |- HandlerError             handler: the handler's own code raised
         |- SandboxError             sandbox: a sandbox could not be started, entered or kept
         |   |- SandboxUnavailable   the machine cannot run this kind of sandbox at all
         |   |- SandboxRefused       it asks for what no sandbox of that kind, or none on this node, may be
         |   |- BadImage             the image to start from is missing, out of reach, incomplete or another machine's
         |   |- NoKernel             no IPython kernel starts in the sandbox
         |   |- CannotGoOn           what another process began of a rollout cannot be gone on with: it starts over
         |   '- KeeperLost           the node's keeper is gone, and its sandboxes with it
         |- ToolError                tool: a tool broke (not: a command that failed, which is an observation)
         |- BackendError             backend: an inference backend failed, answered nonsense, or none came in time
         |   |- BackendGone          it does not answer, broke off its reply, or was taken out: another may go on
         |   '- NoBackend            no backend of that model within PRORL_BACKEND_WAIT
         |- ContextOverflow          context_overflow: the prompt alone is too long for the model
         |- StageTimeout             timeout: the stage overran its deadline
         |- Cancelled                cancelled: somebody cancelled the job
         |- Stopping             (no kind: the process stops; the job is given back uncharged)
         |   '- StoppedInDoubt   (what was done in its sandboxes may have been stopped along: a rollout starts over)
         |- LostWorker               lost_worker: the process that held the job died
         |- EvalError                eval: scoring failed (not: scored as wrong)
         |   |- Unjudged             a judge was to score, and there is none or its word cannot be read
         |   |- LengthUnknown        a reward is to be shaped by its trajectory's length, which its backend did not tell
         |   |- RewardUnavailable    the reward server is down, busy or too slow
         |   '- RewardRefused        the reward server refused what it was asked, or answered what is no score
         '- InternalError            internal: a bug of ours
             |- ChildLost            a handler's function ran in a child process, and that was killed
             |- NodeExhausted        this machine has no process, descriptor or memory left for it
             '- VersionSkew          the job is in a stage that this version does not know

`kind` and `retryable` are those of the API's error object. Infrastructure faults are retryable; faults of
the job's own data or code are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class ProrlError(Exception):
    """Base of every error of this project."""


class SettingsError(ProrlError, ValueError):
    """A `PRORL_*` variable is unknown, or its value does not fit."""


class StoreError(ProrlError):
    """The job store refused or failed. `job_id` is the job concerned, where there is one."""

    def __init__(self, message: str, *, job_id: str | None = None) -> None:
        super().__init__(message)
        self.job_id = job_id


class StoreUnavailable(StoreError):
    """Redis did not answer in time; whether a write took place is unknown."""


class JobNotFound(StoreError, LookupError):
    """No job of that id is known."""


class JobConflict(StoreError):
    """A job of that id exists with another body."""


class NotFinished(StoreError):
    """The job has not ended yet, so it has no result."""


class NotFailed(StoreError):
    """The job is live, ended otherwise than by a failure or a time-out, or is a batch's: it cannot be retried."""


class ResultExpired(StoreError):
    """The job ended, but its result is no longer kept."""


class QueueFull(StoreError):
    """As many jobs as allowed wait for init already."""


class StoreFull(QueueFull):
    """Redis's memory is nearly full: what is left is for the jobs that were accepted."""


class LogBehind(StoreError, ValueError):
    """A turn, or what a call of it gave, cannot be appended: the turn log does not have what comes before it."""


class TooLarge(StoreError):
    """A blob exceeds its limit; the message names both sizes."""


class BatchError(StoreError):
    """A batch refuses. `batch_id` is the batch concerned, `prompt_id` the prompt, where there is one."""

    def __init__(self, message: str, *, batch_id: str | None = None, prompt_id: str | None = None) -> None:
        super().__init__(message)
        self.batch_id = batch_id
        self.prompt_id = prompt_id


class BatchNotFound(BatchError, LookupError):
    """No batch of that id is known."""


class BatchConflict(BatchError):
    """The batch's id, or a prompt's, is taken by another body."""


class BatchEnded(BatchError):
    """The batch is over: it takes no more prompts."""


class BatchNotLeft(BatchError):
    """The batch keeps nothing that another could adopt."""


class FenceLost(StoreError):
    """The claim is no longer the job's current one: stop, clean up, write nothing."""


class ApiError(ProrlError):
    """The service refused a call of the client. `status` is HTTP's, `problem` the problem document (RFC 9457)."""

    def __init__(self, message: str, *, status: int | None, problem: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.problem = dict(problem or {})

    @property
    def fields(self) -> dict[str, str]:
        """The bad fields of a 422: dotted path -> what is wrong."""
        errors = self.problem.get("errors")
        named = [error for error in errors if isinstance(error, dict)] if isinstance(errors, list) else []
        return {str(error.get("field")): str(error.get("message")) for error in named}


class ApiUnavailable(ApiError, ConnectionError):
    """The service gave no answer in time; whether the call took effect is unknown."""


class ModelError(ProrlError):
    """A model of our own, run beside the service, is not to be had."""


class MachineUnfit(ModelError):
    """This machine cannot run the model; the message says what is missing and what would help."""


class ModelNotPrepared(ModelError):
    """The model or its server could not be installed, or the model could not be converted."""


class ModelServerFailed(ModelError):
    """The model's server did not start in time, ended, or answered nonsense."""


class DatasetError(ProrlError):
    """A data set could not be prepared: a file of it is wrong, or what it names is not to be had."""


class ImageError(ProrlError):
    """An image could not be built, pulled or removed; the message names it and what helps."""


class ImageNotFound(ImageError, LookupError):
    """No repository has the image, or none that lets us in: trying again would not help."""


class DiskFull(ImageError):
    """There is no room for the image where images are kept. Those that are complete stay."""


class StageError(ProrlError):
    """A stage of a job failed.

    None of them is an `OSError`: who catches that around a file in a sandbox means the file. `job_id` and `stage` are
    filled in by the stage runner when the raiser does not know them.
    """

    kind: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, job_id: str | None = None, stage: str | None = None) -> None:
        super().__init__(message)
        self.job_id = job_id
        self.stage = stage


class BadInstance(StageError, ValueError):
    """The instance cannot be run; `field` names the part that is wrong, where one does."""

    kind = "bad_instance"

    def __init__(
        self, message: str, *, field: str | None = None, job_id: str | None = None, stage: str | None = None
    ) -> None:
        super().__init__(message, job_id=job_id, stage=stage)
        self.field = field


class HandlerError(StageError):
    """The handler's own code raised, or returned what is not JSON."""

    kind = "handler"


class SandboxError(StageError):
    """A sandbox could not be started, entered or kept."""

    kind = "sandbox"
    retryable = True


class SandboxUnavailable(SandboxError):
    """This machine cannot run that kind of sandbox; the message says what is missing."""

    retryable = False


class SandboxRefused(SandboxError):
    """A sandbox was asked for that its kind cannot be, or that the node does not allow; the message names the field
    or the setting. Asking again would not help.
    """

    retryable = False


class BadImage(SandboxError):
    """No sandbox can start from the image on this machine; the message says why and what would help."""

    retryable = False


class NoKernel(SandboxError):
    """No IPython kernel starts in the sandbox; the message says why, and what helps."""


class CannotGoOn(SandboxError):
    """A rollout was begun by another process, and its sandbox cannot be taken over, or its handler does not do again
    what the turn log says it did. The attempt starts over, for a few times uncharged.
    """


class KeeperLost(SandboxError):
    """The node's keeper is gone, and with it every sandbox it owned."""


class ToolError(StageError):
    """A tool broke. A command that merely fails is an observation, not this."""

    kind = "tool"
    retryable = True


class BackendError(StageError):
    """An inference backend failed or answered nonsense; `url` names it."""

    kind = "backend"
    retryable = True

    def __init__(
        self, message: str, *, url: str | None = None, job_id: str | None = None, stage: str | None = None
    ) -> None:
        super().__init__(message, job_id=job_id, stage=stage)
        self.url = url


class BackendGone(BackendError):
    """The backend does not answer, broke off its reply, fails every call, or was taken out. Nothing of the call is
    kept, so that another backend of the same model can be asked the same.
    """


class NoBackend(BackendError):
    """No backend serves the model, and none came within `PRORL_BACKEND_WAIT`."""


class ContextOverflow(StageError):
    """The prompt does not fit the context, before anything was sampled or after."""

    kind = "context_overflow"


class StageTimeout(StageError):
    """The stage overran its deadline."""

    kind = "timeout"


class Cancelled(StageError):
    """The job was cancelled while this ran."""

    kind = "cancelled"


class Stopping(StageError):
    """The process is stopping; the job goes back, uncharged, to where it can begin again."""

    retryable = True


class StoppedInDoubt(Stopping):
    """The process is stopping, and what was under way in a sandbox has ended as if it had been stopped along: nobody
    may believe it, nor go on from there.
    """


class LostWorker(StageError):
    """The process that held the job died or stopped beating."""

    kind = "lost_worker"
    retryable = True


class EvalError(StageError):
    """Scoring itself failed. A wrong answer is a reward, not this."""

    kind = "eval"
    retryable = True


class Unjudged(EvalError):
    """A model was to judge, and none is set, what it said is no verdict however often it is asked, or what it was to
    judge does not fit its context. Another attempt would not help.
    """

    retryable = False


class LengthUnknown(EvalError):
    """A reward is to be shaped by its trajectory's length, and the backend gave neither token ids nor their count."""

    retryable = False


class RewardUnavailable(EvalError):
    """The reward server gave no score within the stage's time: it is down, busy or too slow."""


class RewardRefused(EvalError):
    """The reward server refused what it was asked, or answered what is no score. Asking again would not help."""

    retryable = False


class InternalError(StageError):
    """A bug of ours."""

    kind = "internal"


class ChildLost(InternalError):
    """The child process in which a handler's function ran was killed by a signal, before it answered."""

    retryable = True


class NodeExhausted(InternalError):
    """This process or machine has no process, descriptor or memory left for what was to be done."""

    retryable = True


class VersionSkew(InternalError):
    """The job waits for a stage that this version does not know: another worker may."""

    retryable = True


def sandbox_error(name: str, message: str) -> SandboxError:
    """The error of that name which another process raised; a plain one where there is none of that name."""
    kind = globals().get(name)
    if isinstance(kind, type) and issubclass(kind, SandboxError):
        return kind(message)
    return SandboxError(message)
