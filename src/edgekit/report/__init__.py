"""An Inspection -> what a person or a program reads."""
