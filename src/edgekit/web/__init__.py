"""The page and the REST API over the same calls as the command line."""
