"""Processes: Celery workers, the supervisor that keeps them alive, and the embedded server."""
