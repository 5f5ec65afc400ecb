"""What must be held: the bill and its lines."""
