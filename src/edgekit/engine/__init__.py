"""What each engine allocates."""
