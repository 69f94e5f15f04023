"""What a trainer imports: `Client` submits jobs and takes their results; it needs the standard library and pydantic."""

from prorl_celery.client.client import Client, ResultPage
from prorl_celery.client.events import JobEvent
from prorl_celery.errors import ApiError, ApiUnavailable
from prorl_celery.jobs.models import JobRequest, JobStatus, Result

__all__ = ["ApiError", "ApiUnavailable", "Client", "JobEvent", "JobRequest", "JobStatus", "Result", "ResultPage"]
