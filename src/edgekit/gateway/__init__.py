"""The server in front of engines: OpenAI's API, within the limits that the memory was planned for."""
