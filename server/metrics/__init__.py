"""What `/metrics` says, in the form of Prometheus."""
