"""A notebook as a batch job: the same cells in the same order, with the same records."""
