"""What is said and written in videos. Knows nothing of stores."""
