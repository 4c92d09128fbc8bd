"""Use cases, one verb a module. Knows neither Celery nor Redis: it gets a store and a way to dispatch."""
