"""Pages about finished work: what a folder holds, drawn and tabulated from its JSON files alone."""
