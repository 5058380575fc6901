"""Losses: functions of scores and positives."""
