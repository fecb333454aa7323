"""What the API takes and returns: one pydantic model per object."""
