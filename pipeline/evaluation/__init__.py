"""Is a candidate fit to serve: its metrics, the comparison with the model that serves, the verdict and its report."""
