"""Machines to run a model on: probes of this one, and the table of devices that others are described with."""
