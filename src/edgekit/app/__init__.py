"""The application: one function per verb, which the commands, the Python API and the web server call."""
