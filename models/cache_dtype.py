"""The formats in which a cache can keep keys and values, by name."""

from typing import Literal

CacheDType = Literal["auto", "int8", "float8_e4m3"]
"""`auto`: that of the model. The others are 8 bits with scales (`cache_format.py`)."""
