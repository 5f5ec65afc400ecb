"""What is known of a tokenizer before its vocabulary is read: its kind, and the memory it takes."""
