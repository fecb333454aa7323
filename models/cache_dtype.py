"""What a cache can keep of keys and values, and in which formats, by name."""

from typing import Literal

CacheDType = Literal["auto", "int8", "float8_e4m3"]
"""`auto`: that of the model. The others are 8 bits with scales (`cache_format.py`)."""

CacheForm = Literal["auto", "latent", "expanded"]
"""`latent`: what keys and values of all heads are made of (`latent.py`). `expanded`: the keys and
values themselves. `auto`: the first where a model has it."""
