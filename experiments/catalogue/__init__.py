"""Every method of the catalogue on one problem."""
