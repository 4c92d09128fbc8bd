"""Use cases, one verb a module. Knows neither Celery nor Redis: it is handed a store and a way to dispatch."""
