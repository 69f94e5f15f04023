"""The `search` tool: look something up, from the worker, since sandboxes have no network."""

from __future__ import annotations

from typing import Any, ClassVar

from prorl_celery.sandbox.base import CancelSignal
from prorl_celery.search.base import MOST_RESULTS, QUERY_CHARACTERS, Found, QueryRefused, SearchBackend
from prorl_celery.settings import Settings
from prorl_celery.tools.base import Observation, function_schema

RESULTS = 5
"""How many there are where the call does not say."""
NOTHING = "Nothing was found."


class SearchTool:
    """Asks the node's search. It changes nothing, so a call that was lost is made again."""

    name: ClassVar[str] = "search"
    schema: ClassVar[dict[str, Any]] = function_schema(
        "search",
        "Search for documents about something. The answer lists the best ones: title, address, and the part that was "
        "found.",
        {
            "query": {"type": "string", "description": "What to look for, in words."},
            "max_results": {
                "type": "integer",
                "description": f"How many documents, at most {MOST_RESULTS}; {RESULTS} by default.",
            },
        },
        required=("query",),
    )

    def __init__(self, backend: SearchBackend, settings: Settings, cancel: CancelSignal) -> None:
        self._backend = backend
        self._timeout = settings.search_timeout_seconds
        self._limit_bytes = settings.tool_output_bytes
        self._cancel = cancel

    def __call__(self, arguments: dict[str, Any]) -> Observation:
        query = " ".join(arguments["query"].split()).encode("utf-8", "replace").decode()
        if not query:
            return Observation("The query is empty.")
        if len(query) > QUERY_CHARACTERS:
            return Observation(f"The query has {len(query)} characters; at most {QUERY_CHARACTERS} are allowed.")
        most = min(max(arguments.get("max_results", RESULTS), 1), MOST_RESULTS)
        try:
            found = self._backend.search(query, most=most, cancel=self._cancel, timeout=self._timeout)
        except QueryRefused as refused:
            return Observation(str(refused))
        return Observation(render(found, self._limit_bytes))


def render(found: list[Found], limit_bytes: int) -> str:
    """What was found, as the model reads it: of each the same share of the bytes, so that none hides the others."""
    if not found:
        return NOTHING
    share = limit_bytes // len(found)
    return "\n\n".join(_cut(_one(number, one), share) for number, one in enumerate(found, 1))


def _one(number: int, found: Found) -> str:
    lines = [f"[{number}] {found.title or found.url}", found.url if found.title else "", found.text]
    return "\n".join(line for line in lines if line)


def _cut(text: str, limit_bytes: int) -> str:
    data = text.encode()
    return text if len(data) <= limit_bytes else data[:limit_bytes].decode("utf-8", "ignore").rstrip() + " ..."
