"""Subtitles, recognised speech and on-screen text of videos."""
