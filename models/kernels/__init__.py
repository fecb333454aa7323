"""Attention kernels for the paged cache, behind two torch operators.

    operators.py    the operators: write the cache, attend to it; what `torch.compile` sees
    reference.py    plain torch, any device
    split_kv.py     Triton: decoding and windows of drafts
    write_cache.py  Triton: new keys and values to their slots
    packed.py       prompts, by torch's own kernel for ragged batches

`backends.kernels` says which of them run where. `split_kv` and `write_cache` import Triton, so they
are imported only where they do.
"""
