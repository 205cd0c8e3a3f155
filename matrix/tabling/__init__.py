"""Empty: the formats of the table are in `matrix.table_formats`."""
