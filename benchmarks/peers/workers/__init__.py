"""One process per side. `worker.py` is started by its path, in the environment of the side."""
