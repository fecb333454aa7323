"""Stepweave against what somebody would use on a CPU instead."""
