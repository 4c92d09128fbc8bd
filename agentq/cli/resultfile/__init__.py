"""Results of a batch in files that only grow by what is new, and on standard output."""
