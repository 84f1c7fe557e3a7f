"""Small cases done by hand. Folders and files mirror src/tunefree, benchmarks and experiments."""
