"""The HTTP service: an API that clients of OpenAI's speak, above `AsyncLLM`."""
