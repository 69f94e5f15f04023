"""The three stages as Celery tasks: claim, call the handler, commit, publish."""
