"""The Celery application: the transport between stages, and nothing more.

A job's record in the store is the truth; a message holds a job id and a fence. Hence results are off, canvas is unused
and a message may be lost or doubled without harm. Reasons for the settings stand beside them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery import Celery
from celery.app.amqp import AMQP
from kombu.entity import Exchange, Queue
from kombu.exceptions import OperationalError
from kombu.transport import TRANSPORT_ALIASES
from redis.exceptions import RedisError

from prorl_celery.errors import StoreUnavailable
from prorl_celery.jobs.messages import Message, Role, node_queue
from prorl_celery.jobs.models import STAGES
from prorl_celery.settings import Settings
from prorl_celery.store.address import Address, broker_url
from prorl_celery.store.broker import Connection
from prorl_celery.store.clients import TIMEOUT_SECONDS
from prorl_celery.store.connections import name_of

# A url of a Unix socket, "redis+socket://", names its transport itself: that would be kombu's and not ours.
TRANSPORT_ALIASES["redis"] = "prorl_celery.store.broker:Transport"

EXCHANGE = Exchange("prorl", type="direct")  # type: ignore[no-untyped-call]

PRIORITY_STEPS = [0, 3, 6, 9]
"""Redis's four levels; 0 is served first."""

DAY_SECONDS = 24 * 3600

CHANNEL_CONNECTIONS = 8
"""Most connections of one channel; a worker's one channel acknowledges over them, a publisher's uses one."""

HEALTH_SECONDS = 5
"""How often a consumer asks whether the other end of its connection is still there; it gives it up at the second
look without an answer.
"""


class _Wiring(AMQP):  # type: ignore[misc]
    """Celery's, with our connection."""

    Connection = Connection


def task_name(stage: str) -> str:
    """The Celery task of a stage."""
    return f"prorl.{stage}"


def queue_named(name: str) -> Queue:
    """A queue of ours as kombu wants it; `task_create_missing_queues` is off, so names alone do not do."""
    return Queue(name, EXCHANGE, routing_key=name)  # type: ignore[no-untyped-call]


def make_app(settings: Settings, *, boot: str | None = None, connections: int = 16, process: str = "prorl") -> Celery:
    """The application as every process configures it.

    All participants must agree on the transport options (on a shared broker the shortest visibility time-out wins),
    so workers, API, upkeep and Flower all come here. `boot` adds this node's own queues. `connections` is the most that
    publish at once; `process` is named in what Redis knows of them.

    Raises `SettingsError` for a Redis url that is none.
    """
    address = Address.parse(settings.redis_url)
    app = Celery("prorl", broker=broker_url(settings.redis_url), amqp=_Wiring, set_as_current=False)
    queues = [queue_named(name) for name in (*STAGES, "solo")]
    if boot is not None:
        bound: tuple[Role, ...] = ("rollout", "eval", "solo")
        queues += [queue_named(node_queue(stage, settings.node, boot)) for stage in bound]
    app.conf.update(
        task_queues=queues,
        task_default_queue="init",
        task_default_exchange=EXCHANGE.name,
        task_default_exchange_type="direct",
        task_default_routing_key="init",
        task_create_missing_queues=False,
        # Late ack: a message of a killed worker comes back after the visibility time-out, long after our own sweep
        # has published a fresh one; the claim refuses the stale copy.
        task_acks_late=True,
        task_reject_on_worker_lost=False,
        task_ignore_result=True,
        task_store_errors_even_if_ignored=False,
        task_serializer="json",
        result_serializer="json",
        accept_content=["json"],
        result_accept_content=["json"],
        # With late ack and the threads pool this reserves exactly as many messages as there are slots.
        # `worker_disable_prefetch` stays off: it filled 37 of 64 slots.
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_send_task_events=settings.task_events,
        task_send_sent_event=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        # A Redis that is full, or a replica now, refuses: the worker connects anew until it does not.
        broker_channel_error_retry=True,
        broker_transport=f"prorl_celery.store.broker:{'Sentinel' if address.sentinels else ''}Transport",
        broker_pool_limit=connections,
        # Control queues expire by themselves, else their keys stay for ever.
        control_queue_expires=60,
        control_queue_ttl=30,
        task_publish_retry_policy={
            "max_retries": 3,
            "interval_start": 0,
            "interval_step": 0.2,
            "interval_max": 0.5,
        },
        broker_transport_options={
            "visibility_timeout": DAY_SECONDS,
            "priority_steps": PRIORITY_STEPS,
            "queue_order_strategy": "priority",
            "socket_timeout": TIMEOUT_SECONDS,
            "socket_connect_timeout": TIMEOUT_SECONDS,
            "socket_keepalive": True,
            "health_check_interval": HEALTH_SECONDS,
            "max_connections": CHANNEL_CONNECTIONS,
            "client_name": name_of(settings, process, "broker"),
            "sentinels": address.sentinels,
            "master_name": address.service,
            "sentinel_kwargs": address.sentinel_options or {},
        },
        enable_utc=True,
        timezone="UTC",
    )
    return app


class Publisher:
    """Publishes stage messages. Thread-safe: every publish borrows a producer from the application's pool."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def publish(self, message: Message) -> None:
        """Publish one message. Raises `StoreUnavailable`; the sweep then publishes it later."""
        self.publish_all([message])

    def publish_all(self, messages: Iterable[Message]) -> None:
        """Publish messages over one producer, in order. Raises `StoreUnavailable` at the first that fails."""
        message: Message | None = None
        try:
            with self._app.producer_or_acquire() as producer:
                for message in messages:
                    self._send(message, producer)
        except (OperationalError, RedisError, OSError) as error:
            job_id = message.job_id if message else None
            raise StoreUnavailable(f"the broker did not take a message: {error}", job_id=job_id) from error

    def _send(self, message: Message, producer: Any) -> None:
        self._app.send_task(
            task_name(message.stage),
            args=[message.job_id, message.fence],
            task_id=f"{message.job_id}/{message.fence}",
            queue=queue_named(message.queue),
            priority=message.level,
            producer=producer,
            ignore_result=True,
            # The representations Celery adds for monitors would double the message.
            argsrepr="",
            kwargsrepr="",
        )
