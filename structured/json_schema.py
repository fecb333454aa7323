"""Which JSON Schemas may be compiled: nothing that would be dropped in silence.

A grammar library ignores the keywords it cannot turn into a grammar, so an output could break the
schema while its user believes that it cannot. So a schema is brought into its normal form, which
needs few keywords, and written for a library in the forms that it was found to serve exactly, by
random outputs. What is left is refused, naming the place and the keyword; or, if that is asked for,
compiled with a warning that says the same. A schema may still be read more strictly than the
standard does: properties come in the order of the schema, and none but those that it names, unless
`additionalProperties` says so; names beside very long ones do not begin as these do.

Annotations (title, description, default, examples, unknown keywords and formats) constrain nothing
and pass.
"""

from __future__ import annotations

import json
from typing import Final, Literal

from .schema_document import Document
from .schema_llguidance import LLGuidanceWriter
from .schema_normal import Normaliser
from .schema_writer import SchemaWriter
from .schema_xgrammar import XGrammarWriter
from .source import dump_json

Library = Literal["xgrammar", "llguidance"]

_WRITERS: Final[dict[Library, type[SchemaWriter]]] = {
    "xgrammar": XGrammarWriter,
    "llguidance": LLGuidanceWriter,
}


def rewrite_schema(source: str, library: Library) -> tuple[str, tuple[str, ...]]:
    """A schema for a library, and which constraints it would ignore.

    Definitions are looked at where they are referred to.

    Args:
        source: JSON text of a schema.
        library: that is to compile it.

    Returns:
        The JSON text that the library is given, and for each constraint that it would ignore the
        place as a JSON pointer, the keyword, and what to do.

    Raises:
        GrammarError: the text is no JSON Schema, or a reference leads nowhere.
    """
    writer = _WRITERS[library](Normaliser(Document(json.loads(source))))
    schema, unenforced = writer.document()
    return dump_json(schema), unenforced
