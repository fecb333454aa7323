"""What a GPU is needed to measure; each script rehearses on a CPU with `--toy`."""
