"""Searches have a service that does as it is told, and a loop to make calls on."""

from search_service import loop, never, service

__all__ = ["loop", "never", "service"]
