"""The application: one function per verb. Commands, the Python API and the page call these and nothing else."""
