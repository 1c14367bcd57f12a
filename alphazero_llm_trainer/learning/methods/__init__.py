"""A method is one object in one file: its rows, what it minimises, and what its searches ask."""
