"""What serves: the versions on disk and the ledger that says which of them, since when."""
