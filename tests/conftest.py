"""Fixtures that all areas share."""

pytest_plugins = ["deadlines", "redis_fixtures", "skips"]
