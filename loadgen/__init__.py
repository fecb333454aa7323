"""The client's side of a benchmark: makes load for an endpoint, and measures what comes back.

Nothing here knows the engine, except `offline`, which calls it in place of an endpoint.
"""
