"""Makes the Flask application: settings in, application out. Nothing is connected until the first request needs it."""

from __future__ import annotations

from flask import Flask

from prorl_celery.app import Publisher, make_app
from prorl_celery.handlers.registry import HandlerRegistry, load_handlers
from prorl_celery.jobs.replies import publisher_of
from prorl_celery.jobs.store import JobStore
from prorl_celery.scheduling.backends import BackendRegistry
from prorl_celery.scheduling.batches import BatchRegistry
from prorl_celery.scheduling.nodes import NodeRegistry
from prorl_celery.scheduling.policy import PolicyRegistry
from prorl_celery.settings import Settings
from prorl_celery.store.clients import blocking_client, script_client
from prorl_celery.store.keys import Keys
from web import auth, backends, batches, events, jobs, metrics, nodes, operations, policy, problems, reading, results
from web.ended import ResultsStream
from web.following import Following
from web.heeding import Heeding
from web.services import EXTENSION, Publishing, Services
from web.waiters import EndedJobs, Waiters


def create_app(
    settings: Settings,
    *,
    store: JobStore | None = None,
    backend_registry: BackendRegistry | None = None,
    node_registry: NodeRegistry | None = None,
    policy_registry: PolicyRegistry | None = None,
    heeding: Heeding | None = None,
    handlers: HandlerRegistry | None = None,
    publisher: Publishing | None = None,
    ended: EndedJobs | None = None,
    following: Following | None = None,
) -> Flask:
    """The application. What is not given is made from the settings.

    Raises `SettingsError` for a wrong token entry or a handler that cannot be loaded.
    """
    app = Flask("prorl", static_folder=None)
    app.url_map.strict_slashes = False
    app.config["MAX_CONTENT_LENGTH"] = settings.max_body_bytes
    client, blocking = script_client(settings, process="api"), blocking_client(settings, process="api")
    publishing = publisher or Publisher(make_app(settings, process="api"))
    pauses = policy_registry or PolicyRegistry(client, settings)
    app.extensions[EXTENSION] = Services(
        settings=settings,
        store=store or JobStore(client, settings, publish=publishing.publish_all),
        backends=backend_registry or BackendRegistry(client, settings),
        nodes=node_registry or NodeRegistry(client, settings),
        policy=pauses,
        heeding=heeding or Heeding(pauses, blocking),
        handlers=load_handlers(settings) if handlers is None else handlers,
        publisher=publishing,
        batches=BatchRegistry(client, settings, publisher_of(publishing.publish_all)),
        waiters=Waiters(ended or ResultsStream(blocking, settings), limit=settings.max_waiters),
        following=following or Following(blocking, Keys(settings.key_prefix)),
    )
    problems.install(app)
    reading.install(app)
    auth.install(app, auth.parse_entries(settings.api_tokens))
    for module in (jobs, events, results, batches, backends, policy, nodes, operations, metrics):
        app.register_blueprint(module.blueprint)
    return app
