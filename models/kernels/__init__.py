"""Kernels of decoder layers: attention over the paged cache, and what stands between products.

    operators.py    two torch operators: write the cache, attend to it; what `torch.compile` sees
    reference.py    both in plain torch, any device
    split_kv.py     Triton: decoding and windows of drafts
    write_cache.py  Triton: new keys and values to their slots
    packed.py       prompts, by torch's own kernel for ragged batches
    forms.py        what families do differently in norms, positions and activations
    add_norm.py     Triton: an addition and the norm after it
    rotate.py       Triton: positions of queries and keys, and their way to the cache
    gate.py         Triton: the middle of a gated MLP
    places.py       Triton: where positions lie in the cache
    spread.py       Triton: logits of part of a vocabulary over all of it

`backends.kernels` says which of them run where. Those that import Triton are imported only where
they do.
"""
