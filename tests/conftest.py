"""Fixtures that all areas share."""

pytest_plugins = ["redis_fixtures", "skips"]
