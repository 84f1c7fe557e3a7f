"""Small hand-computed cases; the folders mirror src/tunefree."""
