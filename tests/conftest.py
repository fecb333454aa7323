"""What every test run starts from, whatever started it."""

import signal

import torch

torch.set_num_threads(1)  # two test machines should compute the same way

# A shell's background job inherits an ignored SIGINT; the tests of Ctrl-C press it for real.
signal.signal(signal.SIGINT, signal.default_int_handler)
