"""Steps on a CPU without their Python: operations noted once, and done again on the same memory."""
