"""What every layer shares: types, errors, random numbers, layout and plan, text and files."""
