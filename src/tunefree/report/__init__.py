"""What people look at: the progress bar and tables in the terminal."""
