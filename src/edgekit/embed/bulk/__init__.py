"""Many texts -> a file of vectors: readers, writers, and a journal, so that a kill costs a second's work."""
