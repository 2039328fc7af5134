"""What replaces attention: a file per idea, its forms side by side."""
