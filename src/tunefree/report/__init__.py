"""What people look at: the terminal, the page, figures for papers."""
