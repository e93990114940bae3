"""From a file, a string or a data set to tokens, with what each covers of the text and where the delimiters are."""
