"""What a person said, on a command line or on the page -> what is asked of an engine, and the answer."""
