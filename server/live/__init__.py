"""The live page, and what it asks for each second."""
