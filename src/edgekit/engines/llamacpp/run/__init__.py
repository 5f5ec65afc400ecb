"""llama.cpp at work: started from a plan, watched, and stopped in time."""
