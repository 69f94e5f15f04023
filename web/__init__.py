"""The HTTP API: a Flask application over the library. Thin: validate, call the store, render."""

from web.factory import create_app

__all__ = ["create_app"]
