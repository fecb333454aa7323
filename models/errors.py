"""What can go wrong between a Hugging Face model and our cache.

    ModelError              anything below
    ├── ModelNotFound       the name resolves to nothing we may load
    ├── UnsupportedModel    the model needs something a paged cache cannot give it
    ├── AttentionNotCalled  a layer did not attend through the paged cache
    ├── NotInvariant        a token's result depends on what else is in the batch
    ├── CompileFailed       the compiler refused a layer, or would compile again for each batch
    └── NoMemory            a cache is larger than the memory there is

Each message names the model class (or the path), what was found, and what to do.
"""

from ..graph.errors import StepweaveError


class ModelError(StepweaveError):
    """A model cannot be loaded, or did not do what the engine relies on."""

    code = "SW-MODEL"


class ModelNotFound(ModelError):
    """No such model: neither a directory, nor in the local hub cache, nor on the hub."""

    names_nothing = True


class UnsupportedModel(ModelError):
    """The architecture needs what only its own attention code knows, such as ALiBi."""


class AttentionNotCalled(ModelError):
    """Some layer used attention of its own, so its keys and values are not in the cache."""


class NotInvariant(ModelError):
    """A token's arithmetic depends on the other tokens of its batch, on this machine."""


class CompileFailed(ModelError):
    """The layers were to be compiled and cannot be, or not once for all batches."""


class NoMemory(ModelError):
    """There is no room for a cache of the size that was asked for."""
