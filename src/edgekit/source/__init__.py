"""The former place of `edgekit.sources`."""
