"""Tables of what was found, for a terminal or a page of text."""
