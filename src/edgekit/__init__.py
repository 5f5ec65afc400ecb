"""EdgeKit: will this model run on my machine, and how?"""

__version__ = "0.1.0"
