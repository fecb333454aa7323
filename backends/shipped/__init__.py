"""A file for each backend that Stepweave ships. A device's name stands in its file only."""
