"""Annotations to records, files to frames."""
