"""One pipeline on several engines: where each request goes, and how it outlives its engine."""
