"""Metrics, evaluation, reports and figures."""
