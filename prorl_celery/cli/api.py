"""The HTTP API as the commands use it: JSON in, JSON out, over the client's transport."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from prorl_celery.client.transport import Transport
from prorl_celery.errors import ApiUnavailable, SettingsError


class Api:
    """One service. `patience`: seconds that a busy (429) or absent service is waited for in each call."""

    def __init__(self, url: str, token: str | None = None, *, patience: float = 0.0) -> None:
        self.url = url
        self._token = token
        try:
            self._transport = Transport(url, token, patience)
        except ValueError as error:
            raise SettingsError(str(error)) from error

    def with_patience(self, patience: float) -> Api:
        """The same service with another patience."""
        return Api(self.url, self._token, patience=patience)

    def get(self, *path: str, **query: Any) -> Any:
        """GET a path (its parts are quoted) with a query (None is left out). Raises `ApiError`."""
        return self._call("GET", path, query=query, wait=float(query.get("wait") or 0.0))

    def post(self, *path: str, body: Any, wait: float = 0.0) -> Any:
        """POST a JSON body; the service may hold its answer for `wait` seconds. Raises `ApiError`."""
        return self._call("POST", path, body=body, wait=wait)

    def delete(self, *path: str, **query: Any) -> Any:
        """DELETE. Raises `ApiError`."""
        return self._call("DELETE", path, query=query)

    def _call(self, method: str, path: tuple[str, ...], **call: Any) -> Any:
        target = "/" + "/".join(quote(part, safe="") for part in path)
        try:
            return json.loads(self._transport.call(method, target, **call).body)
        except ApiUnavailable as error:
            raise ApiUnavailable(
                f"no service answers at {self.url} (`prorl up` starts one): {error}", status=error.status
            ) from error
