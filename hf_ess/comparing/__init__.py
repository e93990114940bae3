"""What a delimiter does to a model's memory: substitution runs, paired statistics, and models side by side."""
