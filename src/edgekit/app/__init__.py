"""The application: one function per verb, which commands, the Python API and the page call.

`calibrate` is in `edgekit.runtime`, tiers are in `edgekit.engines.memo`.
"""
