"""One torch thread for every test: two test machines should compute the same way."""

import torch

torch.set_num_threads(1)
